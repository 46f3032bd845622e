// From the drawing to the screen and back. The drawing's second coordinate goes up, the screen's down.

const MARGIN = 0.07;

export class View {
  constructor() {
    Object.assign(this, { scale: 1, left: 0, top: 0, width: 1, height: 1 });
  }

  /** Show all of a box, centered. */
  fit(box, width, height) {
    Object.assign(this, { width, height });
    const margin = Math.max(24, MARGIN * Math.min(width, height));
    this.scale = Math.max(1e-9, Math.min((width - 2 * margin) / box.width, (height - 2 * margin) / box.height));
    this.left = box.x + box.width / 2 - width / 2 / this.scale;
    this.top = box.y + box.height / 2 + height / 2 / this.scale;
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

  pan(dx, dy) {
    this.left -= dx / this.scale;
    this.top += dy / this.scale;
  }

  /** Zoom so that the place under a point of the screen stays there. */
  zoom(factor, sx = this.width / 2, sy = this.height / 2) {
    const [x, y] = this.at(sx, sy);
    this.scale *= factor;
    this.left = x - sx / this.scale;
    this.top = y + sy / this.scale;
  }

  get key() {
    return `${this.scale} ${this.left} ${this.top} ${this.width} ${this.height}`;
  }
}
