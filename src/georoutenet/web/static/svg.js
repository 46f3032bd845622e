// The few calls of a canvas that paint.js makes, written down as an SVG file.

const round = (value) => Math.round(value * 100) / 100;

export class SvgContext {
	dash = [];
	path = "";
	globalAlpha = 1;

	constructor(width, height, background) {
		Object.assign(this, { width, height });
		this.parts = [`<rect width="${width}" height="${height}" fill="${background}"/>`];
	}

	beginPath() {
		this.path = "";
	}

	moveTo(x, y) {
		this.path += `M${round(x)} ${round(y)}`;
	}

	lineTo(x, y) {
		this.path += `L${round(x)} ${round(y)}`;
	}

	/** Whole circles only; the path stands at their right. */
	arc(x, y, radius) {
		const half = (across) => `a${round(radius)} ${round(radius)} 0 1 1 ${round(across)} 0`;
		this.path += half(-2 * radius) + half(2 * radius);
	}

	rect(x, y, width, height) {
		this.path += `M${round(x)} ${round(y)}h${round(width)}v${round(height)}h${round(-width)}Z`;
	}

	setLineDash(dash) {
		this.dash = dash;
	}

	stroke() {
		this.put(`fill="none" stroke="${this.strokeStyle}" stroke-width="${round(this.lineWidth)}" stroke-dasharray="${this.dash.join(" ")}"`);
	}

	fill() {
		this.put(`fill="${this.fillStyle}"`);
	}

	put(how) {
		if (this.path) this.parts.push(`<path d="${this.path}" ${how} opacity="${round(this.globalAlpha)}"/>`);
	}

	toString() {
		const { width, height } = this;
		return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"
 stroke-linecap="round" stroke-linejoin="round">
${this.parts.join("\n")}
</svg>
`;
	}
}
