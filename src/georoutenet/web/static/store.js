// The problem on the page and those before it. Fires "change" with what kind of change it was.

const MOST_STEPS = 200;

export class Store extends EventTarget {
	constructor(problem) {
		super();
		this.problem = problem;
		this.past = [];
		this.future = [];
		this.group = null;
	}

	/**
	 * Take a problem over. `change` says what became of the cities: {kind: "new" | "move" | "add" | "remove", city}.
	 * Changes in a row with the same `group` are undone together.
	 */
	commit(problem, change = { kind: "new" }, group) {
		if (!group || group !== this.group) {
			this.past.push(this.problem);
			if (this.past.length > MOST_STEPS) this.past.shift();
		}
		this.group = group;
		this.future = [];
		this.show(problem, change);
	}

	undo() {
		this.turn(this.past, this.future);
	}

	redo() {
		this.turn(this.future, this.past);
	}

	turn(from, to) {
		if (from.length === 0) return;
		this.group = null;
		to.push(this.problem);
		const problem = from.pop();
		this.show(problem, { kind: problem.n === this.problem.n ? "move" : "new" });
	}

	show(problem, change) {
		this.problem = problem;
		this.dispatchEvent(new CustomEvent("change", { detail: change }));
	}
}
