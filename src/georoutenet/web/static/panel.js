// The controls on the page, and what they say at the moment.

import { COMPARISONS, FIRST_TOURS, isNetwork } from "./methods.js";
import { SHAPE_NAMES } from "./random.js";
import { formatCount } from "./words.js";

export const byId = (id) => document.getElementById(id);
const MOST_RANDOM = 10000;

function fill(select, entries) {
	select.replaceChildren(...entries.map(([value, text]) => new Option(text, value)));
}

export class Panel {
	/** `changed()` is called when a method, the comparison or what is shown was changed. */
	constructor(changed) {
		this.changed = changed;
		this.weights = [];
		const copy = Object.assign(byId("method-a").cloneNode(true), { id: "method-b" });
		byId("compare").parentElement.after(copy);
		fill(byId("shape"), SHAPE_NAMES.map((name) => [name, name]));
		for (const which of ["a", "b"]) {
			fill(this.part(which, "first"), Object.entries(FIRST_TOURS).map(([value, { words }]) => [value, words]));
			byId(`method-${which}`).addEventListener("change", () => this.refresh());
		}
		byId("compare").addEventListener("change", () => this.compare());
		for (const id of ["show-edges", "show-start", "threshold", "seconds"]) byId(id).addEventListener("input", () => this.refresh());
		const tabs = [...document.querySelectorAll("#tabs button")];
		const toggle = (chosen) => {
			for (const tab of tabs) {
				const opens = tab === chosen && tab.getAttribute("aria-expanded") === "false";
				tab.setAttribute("aria-expanded", opens);
				byId(tab.dataset.tab).classList.toggle("open", opens);
			}
		};
		for (const tab of tabs) tab.addEventListener("click", () => toggle(tab));
	}

	get size() {
		return (byId("size").value = Math.max(1, Math.min(MOST_RANDOM, Math.round(Number(byId("size").value)) || 1)));
	}

	part(which, name) {
		return document.querySelector(`#method-${which} [data-part=${name}]`);
	}

	method(which) {
		const [first, weights, improve] = ["first", "weights", "improve"].map((name) => this.part(which, name));
		return { first: first.value, weights: weights.value || "georoutenet", improve: improve.checked };
	}

	setMethod(which, { first, weights, improve }) {
		if (first in FIRST_TOURS) this.part(which, "first").value = first;
		if (this.weights.includes(weights)) this.part(which, "weights").value = weights;
		if (improve !== undefined) this.part(which, "improve").checked = improve;
	}

	get methods() {
		return this.compares ? [this.method("a"), this.method("b")] : [this.method("a")];
	}

	get compares() {
		return byId("compare").value !== "off";
	}

	get seconds() {
		return Number(byId("seconds").value);
	}

	get shows() {
		return { edges: byId("show-edges").checked, start: byId("show-start").checked };
	}

	get threshold() {
		return byId("threshold").value / 100;
	}

	/** Set both methods by what is to be compared. */
	compare() {
		const [a, b] = COMPARISONS[byId("compare").value](this.method("a"), this.weights);
		this.setMethod("a", a);
		this.setMethod("b", b);
		this.refresh();
	}

	refresh() {
		for (const which of ["a", "b"]) this.part(which, "weights").parentElement.hidden = !isNetwork(this.method(which));
		byId("method-b").hidden = !this.compares;
		document.body.classList.toggle("compares", this.compares);
		byId("threshold-text").textContent = `${byId("threshold").value} %`;
		byId("seconds-text").textContent = `${this.seconds} s`;
		this.changed();
	}

	setWeights(list) {
		this.weights = list.map((each) => each.name);
		for (const which of ["a", "b"]) {
			const { weights } = this.method(which);
			fill(this.part(which, "weights"), list.map(({ name }) => [name, name]));
			this.setMethod(which, { weights });
		}
		this.compare();
	}

	setExamples(list) {
		fill(byId("example"), [["", "Examples…"], ...list.map(({ name, title }) => [name, title])]);
	}

	setLimits({ cities, seconds, searches }) {
		byId("seconds").max = seconds;
		const several = `${searches} ${searches === 1 ? "search" : "searches"} at a time`;
		byId("limits").textContent = `This server solves up to ${formatCount(cities)} cities, for up to ${seconds} s, ${several}.`;
		this.refresh();
	}

	/** The settings that a link carries, and back. */
	get settings() {
		const { first, improve } = this.method("a");
		return { first, improve, seconds: this.seconds, compare: byId("compare").value };
	}

	apply({ first, improve, seconds, compare }) {
		this.setMethod("a", { first, improve: improve !== "false" });
		if (Number(seconds) > 0) byId("seconds").value = Number(seconds);
		if (compare in COMPARISONS) byId("compare").value = compare;
		this.compare();
	}
}
