// Pointer, touch and keyboard on the map: add, drag, spray and erase cities, select, pan and zoom.

const CLICK = 5; // pixels that a click may wander
const REACH = { mouse: 10, pen: 14, touch: 22 };
const SPRAY = 16; // pixels between sprayed cities

export class Editor {
  /** `changed()` asks for a new picture, `dragging(problem)` tells what the problem would be, `say(text)` announces. */
  constructor(store, view, { changed, dragging, say, refuse }) {
    Object.assign(this, { store, view, changed, dragging, say, refuse });
    this.tool = "add";
    this.selected = null;
    this.hovered = null;
    this.dragged = null;
    this.cross = null;
    this.pointers = new Map();
    this.act = null;
    this.stroke = 0;
  }

  attach(canvas) {
    const on = (name, handler) =>
      canvas.addEventListener(name, (event) => handler.call(this, event, canvas), { passive: false });
    on("pointerdown", this.down);
    on("pointermove", this.move);
    on("pointerup", this.up);
    on("pointercancel", this.cancel);
    on("pointerleave", () => this.hover(null));
    on("wheel", this.wheel);
    on("keydown", this.key);
    on("blur", () => this.setCross(null));
    on("contextmenu", (event) => {
      event.preventDefault();
      const city = this.hit(event);
      if (city !== null) this.remove(city);
    });
  }

  /** Forget what belongs to cities that are no longer there. */
  reset() {
    if (this.selected !== null && this.selected >= this.store.problem.n) this.selected = null;
    this.hovered = null;
    this.dragged = null;
  }

  place(event) {
    return this.view.at(event.offsetX, event.offsetY);
  }

  hit(event) {
    return this.store.problem.nearest(...this.place(event), (REACH[event.pointerType] ?? 10) / this.view.scale);
  }

  isLocked() {
    if (this.store.problem.isEditable) return false;
    this.refuse(`Cities under the rule ${this.store.problem.rule} are shown as they are; they cannot be moved here.`);
    return true;
  }

  down(event, canvas) {
    if (event.button === 2) return;
    canvas.setPointerCapture(event.pointerId);
    canvas.focus({ preventScroll: true });
    this.setCross(null);
    this.pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    if (this.pointers.size > 1) {
      this.dragged = null;
      this.act = "pinch";
      return;
    }
    this.from = { x: event.offsetX, y: event.offsetY };
    this.city = this.hit(event);
    this.act = "press";
    this.stroke += 1;
    if (event.button === 1) this.act = "pan";
    else if (this.tool === "spray" && !this.isLocked()) this.spray(event);
    else if (this.tool === "erase" && !this.isLocked()) this.erase(event);
  }

  move(event) {
    const last = this.pointers.get(event.pointerId);
    if (!last) {
      this.hover(this.hit(event));
      return;
    }
    const now = { x: event.offsetX, y: event.offsetY };
    if (this.act === "pinch") this.pinch(event.pointerId, now);
    this.pointers.set(event.pointerId, now);
    const far = Math.hypot(now.x - this.from.x, now.y - this.from.y);
    if (this.act === "press" && far > CLICK) {
      if (this.city === null) this.act = "pan";
      else if (this.isLocked()) this.act = null;
      else [this.act, this.selected] = ["drag", this.city];
    }
    if (this.act === "pan") this.view.pan(now.x - last.x, now.y - last.y);
    else if (this.act === "drag") {
      const [x, y] = this.place(event);
      this.dragged = { city: this.city, x, y };
      this.dragging(this.dragged);
    } else if (this.act === "spray" && Math.hypot(now.x - this.sprayed.x, now.y - this.sprayed.y) > SPRAY) this.spray(event);
    else if (this.act === "erase") this.erase(event);
    this.changed();
  }

  up(event) {
    this.pointers.delete(event.pointerId);
    const act = this.act;
    if (this.pointers.size > 0) return;
    this.act = null;
    if (act === "drag" && this.dragged) {
      const { city, x, y } = this.dragged;
      this.dragged = null;
      this.store.commit(this.store.problem.withCityAt(city, x, y), { kind: "move", city });
    } else if (act === "press" && this.city !== null) {
      this.select(this.selected === this.city ? null : this.city);
    } else if (act === "press" && !this.isLocked()) {
      this.selected = null;
      this.add(...this.place(event));
    }
    this.changed();
  }

  cancel(event) {
    this.pointers.delete(event.pointerId);
    this.act = this.dragged = null;
    this.changed();
  }

  /** Two fingers: their middle moves the map, their distance scales it. */
  pinch(id, now) {
    const other = [...this.pointers].find(([each]) => each !== id)?.[1];
    if (!other) return;
    const last = this.pointers.get(id);
    const distance = (a) => Math.max(1, Math.hypot(a.x - other.x, a.y - other.y));
    this.view.pan((now.x - last.x) / 2, (now.y - last.y) / 2);
    this.view.zoom(distance(now) / distance(last), (now.x + other.x) / 2, (now.y + other.y) / 2);
  }

  wheel(event) {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 30 : 1;
    this.view.zoom(Math.exp(-0.0015 * event.deltaY * lines), event.offsetX, event.offsetY);
    this.changed();
  }

  hover(city) {
    if (city === this.hovered) return;
    this.hovered = city;
    this.changed();
  }

  add(x, y, group = null) {
    this.store.commit(this.store.problem.withCities([[x, y]]), { kind: "add" }, group);
    const { n, coordinates } = this.store.problem;
    this.say(`added ${this.store.problem.label(n - 1)} at ${coordinates[n - 1].join(", ")}; ${n} cities`);
  }

  spray(event) {
    const [dx, dy] = [Math.random() - 0.5, Math.random() - 0.5];
    const first = this.act === "press";
    const spread = first ? 0 : 30;
    this.act = "spray";
    this.sprayed = { x: event.offsetX, y: event.offsetY };
    this.add(...this.view.at(event.offsetX + spread * dx, event.offsetY + spread * dy), `stroke ${this.stroke}`);
  }

  erase(event) {
    this.act = "erase";
    const city = this.hit(event);
    if (city !== null) this.remove(city, `stroke ${this.stroke}`);
  }

  remove(city, group = null) {
    if (this.isLocked()) return;
    const label = this.store.problem.label(city);
    this.selected = this.hovered = null;
    this.store.commit(this.store.problem.without(city), { kind: "remove", city }, group);
    this.say(`removed ${label}; ${this.store.problem.n} cities`);
  }

  select(city) {
    this.selected = city;
    const { problem } = this.store;
    if (city !== null) this.say(`${problem.label(city)} at ${problem.coordinates[city].join(", ")}`);
    this.changed();
  }

  setCross(place) {
    if (this.cross === place) return;
    this.cross = place;
    this.changed();
  }

  /** Arrows move the selected city, or else a cross at which Enter adds one; comma and period select. */
  key(event) {
    const { problem } = this.store;
    const arrow = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    const far = (event.shiftKey ? 40 : 8) / this.view.scale;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (arrow) {
      const [dx, dy] = arrow.map((each) => each * far);
      if (this.selected === null) {
        const [x, y] = this.cross ?? this.view.at(this.view.width / 2, this.view.height / 2);
        this.setCross([x + dx, y + dy]);
      } else if (!this.isLocked()) {
        const city = this.selected;
        const moved = problem.withCityAt(city, problem.x[city] + dx, problem.y[city] + dy);
        this.store.commit(moved, { kind: "move", city }, `keys ${city}`);
        this.say(`${moved.label(city)} at ${moved.coordinates[city].join(", ")}`);
      }
    } else if ((event.key === "Enter" || event.key === "Insert") && !this.isLocked()) {
      this.selected = null;
      this.add(...(this.cross ?? this.view.at(this.view.width / 2, this.view.height / 2)));
    } else if ((event.key === "." || event.key === ",") && problem.n > 0) {
      const by = event.key === "." ? 1 : problem.n - 1;
      this.setCross(null);
      this.select(this.selected === null ? 0 : (this.selected + by) % problem.n);
    } else if ((event.key === "Delete" || event.key === "Backspace") && this.selected !== null) this.remove(this.selected);
    else if (event.key === "Escape") {
      this.setCross(null);
      this.select(null);
    } else if (event.key === "+" || event.key === "=") this.zoom(1.25);
    else if (event.key === "-") this.zoom(0.8);
    else return;
    event.preventDefault();
  }

  zoom(factor) {
    this.view.zoom(factor);
    this.changed();
  }
}
