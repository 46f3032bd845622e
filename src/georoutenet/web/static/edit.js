// Pointer, touch and keyboard on the map: add, drag, spray and erase cities, select, pan and zoom.

const CLICK = 5; // pixels that a click may wander
const REACH = { mouse: 10, pen: 14, touch: 22 };
const SPRAY = 16; // pixels between sprayed cities
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

export class Editor {
	/** `changed()` asks for a new picture, `dragging(where)` tells of a dragged city, `say(text)` announces. */
	constructor(store, view, calls) {
		Object.assign(this, { store, view, ...calls, tool: "add", selected: null, hovered: null, dragged: null, cross: null });
		this.pointers = new Map();
		this.stroke = 0;
	}

	attach(canvas) {
		const on = (name, handler) => canvas.addEventListener(name, handler.bind(this), { passive: false });
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
	reset(isNew) {
		if (isNew || this.selected >= this.store.problem.n) this.selected = null;
		this.hovered = this.dragged = null;
	}

	hit(event) {
		const reach = (REACH[event.pointerType] ?? 10) / this.view.scale;
		return this.store.problem.nearest(...this.view.at(event.offsetX, event.offsetY), reach);
	}

	isLocked() {
		const { isEditable, rule } = this.store.problem;
		if (!isEditable) this.refuse(`Cities under the rule ${rule} are shown as they are; they cannot be changed here.`);
		return !isEditable;
	}

	down(event) {
		if (event.button === 2) return;
		const { target, pointerId, offsetX: x, offsetY: y } = event;
		target.setPointerCapture(pointerId);
		target.focus({ preventScroll: true });
		this.setCross(null);
		this.pointers.set(pointerId, { x, y });
		this.city = this.hit(event);
		this.from = { x, y };
		this.stroke += 1;
		if (this.pointers.size > 1) {
			this.dragged = null;
			this.act = "pinch";
		} else if (event.button === 1) this.act = "pan";
		else if (this.tool === "add") this.act = "press";
		else {
			this.act = this.isLocked() ? null : this.tool;
			this.brush(event, 0);
		}
	}

	move(event) {
		const { pointerId, offsetX: x, offsetY: y } = event;
		const last = this.pointers.get(pointerId);
		if (!last) return this.hover(this.hit(event));
		if (this.act === "pinch") this.pinch(pointerId, last, { x, y });
		this.pointers.set(pointerId, { x, y });
		if (this.act === "press" && Math.hypot(x - this.from.x, y - this.from.y) > CLICK) {
			if (this.city === null) this.act = "pan";
			else if (this.isLocked()) this.act = null;
			else [this.act, this.selected] = ["drag", this.city];
		}
		if (this.act === "pan") this.view.pan(x - last.x, y - last.y);
		else if (this.act === "drag") {
			const [atX, atY] = this.view.at(x, y);
			this.dragged = { city: this.city, x: atX, y: atY };
			this.dragging(this.dragged);
		} else this.brush(event, SPRAY);
		this.changed();
	}

	up(event) {
		this.pointers.delete(event.pointerId);
		if (this.pointers.size > 0) return;
		const { act, dragged, city } = this;
		this.act = this.dragged = null;
		if (act === "drag" && dragged) {
			this.store.commit(this.store.problem.withCityAt(city, dragged.x, dragged.y), { kind: "move", city });
		} else if (act === "press" && city !== null) this.select(this.selected === city ? null : city);
		else if (act === "press") this.add(...this.view.at(event.offsetX, event.offsetY));
		this.changed();
	}

	cancel(event) {
		this.pointers.delete(event.pointerId);
		this.act = this.dragged = null;
		this.changed();
	}

	/** Spray or erase under the pointer; one stroke is undone at once. */
	brush(event, far) {
		const { offsetX: x, offsetY: y } = event;
		const group = `stroke ${this.stroke}`;
		const city = this.act === "erase" ? this.hit(event) : null;
		if (city !== null) this.remove(city, group);
		if (this.act !== "spray" || Math.hypot(x - this.from.x, y - this.from.y) < far) return;
		const jitter = () => 2 * far * (Math.random() - 0.5);
		this.from = { x, y };
		this.add(...this.view.at(x + jitter(), y + jitter()), group);
	}

	/** Two fingers: their middle moves the map, their distance scales it. */
	pinch(id, last, now) {
		const other = [...this.pointers].find(([each]) => each !== id)?.[1];
		if (!other) return;
		const distance = (a) => Math.max(1, Math.hypot(a.x - other.x, a.y - other.y));
		this.view.pan((now.x - last.x) / 2, (now.y - last.y) / 2);
		this.view.zoom(distance(now) / distance(last), (now.x + other.x) / 2, (now.y + other.y) / 2);
	}

	wheel(event) {
		event.preventDefault();
		this.view.zoom(Math.exp(-0.0015 * event.deltaY * (event.deltaMode ? 30 : 1)), event.offsetX, event.offsetY);
		this.changed();
	}

	hover(city) {
		if (city !== this.hovered) this.changed();
		this.hovered = city;
	}

	add(x, y, group) {
		if (this.isLocked()) return;
		this.selected = null;
		this.store.commit(this.store.problem.withCity(x, y), { kind: "add" }, group);
		this.tell(this.store.problem.n - 1);
	}

	remove(city, group) {
		if (this.isLocked()) return;
		this.say(`${this.store.problem.label(city)} removed`);
		this.selected = this.hovered = null;
		this.store.commit(this.store.problem.without(city), { kind: "remove", city }, group);
	}

	select(city) {
		this.selected = city;
		if (city !== null) this.tell(city);
		this.changed();
	}

	tell(city) {
		const { problem } = this.store;
		this.say(`${problem.label(city)} at ${problem.coordinates[city].join(", ")}`);
	}

	setCross(place) {
		if (this.cross !== place) this.changed();
		this.cross = place;
	}

	/** Arrows move the selected city, or else a cross at which Enter adds one; comma and period select. */
	key(event) {
		const { problem } = this.store;
		const { key } = event;
		const city = this.selected;
		if (event.ctrlKey || event.metaKey || event.altKey) return;
		if (key in ARROWS) {
			const far = (event.shiftKey ? 40 : 8) / this.view.scale;
			const [x, y] = city === null ? (this.cross ?? this.view.center) : [problem.x[city], problem.y[city]];
			const place = [x + far * ARROWS[key][0], y + far * ARROWS[key][1]];
			if (city === null) this.setCross(place);
			else if (!this.isLocked()) {
				this.store.commit(problem.withCityAt(city, ...place), { kind: "move", city }, `keys ${city}`);
				this.tell(city);
			}
		} else if (key === "Enter") this.add(...(this.cross ?? this.view.center));
		else if ((key === "." || key === ",") && problem.n > 0) {
			this.setCross(null);
			this.select(city === null ? 0 : (city + (key === "." ? 1 : problem.n - 1)) % problem.n);
		} else if ((key === "Delete" || key === "Backspace") && city !== null) this.remove(city);
		else if (key === "Escape") {
			this.setCross(null);
			this.select(null);
		} else if ("+=-".includes(key)) {
			this.view.zoom(key === "-" ? 0.8 : 1.25, this.view.width / 2, this.view.height / 2);
			this.changed();
		} else return;
		event.preventDefault();
	}
}
