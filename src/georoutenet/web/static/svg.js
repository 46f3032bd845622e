// The few calls of a canvas that paint.js makes, written down as an SVG file.

const round = (value) => Math.round(value * 100) / 100;

export class SvgContext {
  constructor(width, height, background) {
    Object.assign(this, { width, height, lineWidth: 1, globalAlpha: 1, fillStyle: "#000", strokeStyle: "#000" });
    this.dash = [];
    this.path = [];
    this.parts = [`<rect width="${width}" height="${height}" fill="${background}"/>`];
  }

  beginPath() {
    this.path = [];
  }

  moveTo(x, y) {
    this.path.push(`M${round(x)} ${round(y)}`);
  }

  lineTo(x, y) {
    this.path.push(`L${round(x)} ${round(y)}`);
  }

  closePath() {
    this.path.push("Z");
  }

  /** Whole circles only; the path stands at their right. */
  arc(x, y, radius) {
    const r = round(radius);
    this.path.push(`a${r} ${r} 0 1 1 ${round(-2 * radius)} 0a${r} ${r} 0 1 1 ${round(2 * radius)} 0`);
  }

  rect(x, y, width, height) {
    this.path.push(`M${round(x)} ${round(y)}h${round(width)}v${round(height)}h${round(-width)}Z`);
  }

  setLineDash(dash) {
    this.dash = dash;
  }

  stroke() {
    const dash = this.dash.length ? ` stroke-dasharray="${this.dash.join(" ")}"` : "";
    this.put(`fill="none" stroke="${this.strokeStyle}" stroke-width="${round(this.lineWidth)}"${dash}`);
  }

  fill() {
    this.put(`fill="${this.fillStyle}"`);
  }

  put(how) {
    if (this.path.length === 0) return;
    const faint = this.globalAlpha < 1 ? ` opacity="${round(this.globalAlpha)}"` : "";
    this.parts.push(`<path d="${this.path.join("")}" ${how}${faint}/>`);
  }

  toString() {
    const { width, height } = this;
    return [
      `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"`,
      ' stroke-linecap="round" stroke-linejoin="round">\n',
      this.parts.join("\n"),
      "\n</svg>\n",
    ].join("");
  }
}
