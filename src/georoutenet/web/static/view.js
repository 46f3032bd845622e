// From the drawing to the screen and back. The drawing's second coordinate goes up, the screen's down.

// Room for the tools at the left, a caption above and the legend below.
const INSET = { left: 62, right: 20, top: 62, bottom: 40 };

export class View {
	scale = 1;
	left = 0;
	top = 0;
	width = 0;
	height = 0;

	/** Show all of a box, centered. */
	fit(box, width, height) {
		Object.assign(this, { width, height });
		const across = width - INSET.left - INSET.right;
		const down = height - INSET.top - INSET.bottom;
		this.scale = Math.max(1e-9, Math.min(across / box.width, down / box.height));
		this.left = box.x + box.width / 2 - (INSET.left + across / 2) / this.scale;
		this.top = box.y + box.height / 2 + (INSET.top + down / 2) / this.scale;
	}

	screenX(x) {
		return (x - this.left) * this.scale;
	}

	screenY(y) {
		return (this.top - y) * this.scale;
	}

	/** The drawing's place under a point of the screen. */
	at(sx, sy) {
		return [this.left + sx / this.scale, this.top - sy / this.scale];
	}

	get center() {
		return this.at(this.width / 2, this.height / 2);
	}

	pan(dx, dy) {
		this.left -= dx / this.scale;
		this.top += dy / this.scale;
	}

	/** Zoom so that the place under a point of the screen stays there. */
	zoom(factor, sx, sy) {
		const [x, y] = this.at(sx, sy);
		this.scale *= factor;
		this.left = x - sx / this.scale;
		this.top = y + sy / this.scale;
	}

	get key() {
		return `${this.scale} ${this.left} ${this.top} ${this.width} ${this.height}`;
	}
}
