// The controls on the page, and what they say at the moment.

import { COMPARISONS, FIRST_TOURS, isNetwork } from "./methods.js";
import { SHAPE_NAMES } from "./random.js";
import { formatCount, formatSeconds } from "./words.js";

export const byId = (id) => document.getElementById(id);
const MOST_RANDOM = 10000;
const LEAST_RANDOM = 5;

function fill(select, entries) {
  select.replaceChildren(...entries.map(([value, text]) => new Option(text, value)));
}

export class Panel {
  /** `changed()` is called when a method, the comparison or what is shown was changed. */
  constructor(changed) {
    this.changed = changed;
    this.weights = ["georoutenet"];
    fill(byId("shape"), SHAPE_NAMES.map((name) => [name, name]));
    for (const which of ["a", "b"]) {
      fill(this.part(which, "first"), Object.entries(FIRST_TOURS).map(([value, { words }]) => [value, words]));
      byId(`method-${which}`).addEventListener("change", () => this.refresh());
    }
    byId("compare").addEventListener("change", () => this.compare());
    for (const id of ["show-edges", "show-start", "threshold", "seconds"]) byId(id).addEventListener("input", () => this.refresh());
    byId("size-slider").addEventListener("input", () => {
      byId("size").value = this.rounded(LEAST_RANDOM * (MOST_RANDOM / LEAST_RANDOM) ** byId("size-slider").value);
    });
    byId("size").addEventListener("input", () => this.slide());
    for (const button of document.querySelectorAll("#tabs button")) button.addEventListener("click", () => this.toggleTab(button));
    this.slide();
  }

  rounded(n) {
    const unit = 10 ** Math.max(0, Math.floor(Math.log10(n)) - 1);
    return Math.round(n / unit) * unit;
  }

  slide() {
    byId("size-slider").value = Math.log(this.size / LEAST_RANDOM) / Math.log(MOST_RANDOM / LEAST_RANDOM);
  }

  get size() {
    return Math.max(1, Math.min(MOST_RANDOM, Math.round(Number(byId("size").value)) || 1));
  }

  part(which, name) {
    return document.querySelector(`#method-${which} [data-part=${name}]`);
  }

  method(which) {
    const part = (name) => this.part(which, name);
    return { first: part("first").value, weights: part("weights").value || "georoutenet", improve: part("improve").checked };
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

  /** Set the second method by what it is to be compared for. */
  compare() {
    const make = COMPARISONS[byId("compare").value];
    if (make) {
      const other = make(this.method("a"), this.weights);
      // Two weights are compared only where both methods ask the network.
      if (byId("compare").value === "weights") this.setMethod("a", { first: other.first });
      this.setMethod("b", other);
    }
    this.refresh();
  }

  refresh() {
    for (const which of ["a", "b"]) {
      document.querySelector(`#method-${which} .weights`).hidden = this.weights.length < 2 || !isNetwork(this.method(which));
    }
    byId("method-b").hidden = !this.compares;
    document.querySelector("#method-a .which").textContent = this.compares ? "First tour, left" : "First tour";
    document.body.classList.toggle("compares", this.compares);
    byId("threshold-text").textContent = `${byId("threshold").value} %`;
    byId("seconds-text").textContent = formatSeconds(this.seconds);
    this.changed();
  }

  setWeights(list) {
    this.weights = list.map((each) => each.name);
    for (const which of ["a", "b"]) {
      const { weights } = this.method(which);
      fill(this.part(which, "weights"), list.map((each) => [each.name, each.name]));
      this.setMethod(which, { weights });
    }
    this.refresh();
  }

  setExamples(list) {
    const entries = list.map(({ name, title, cities }) => [name, `${title ?? name} (${formatCount(cities)})`]);
    fill(byId("example"), [["", "choose…"], ...entries]);
  }

  setLimits({ cities, seconds, searches }) {
    byId("seconds").max = seconds;
    const several = searches ? `, ${searches === 1 ? "one search" : `${searches} searches`} at a time` : "";
    byId("limits").textContent = `This server solves up to ${formatCount(cities)} cities, ${seconds} s each${several}.`;
    this.refresh();
  }

  /** The settings that a link carries, and back. */
  get settings() {
    const said = { m: this.method("a").first, s: this.seconds };
    if (!this.method("a").improve) said.i = 0;
    if (this.compares) said.vs = byId("compare").value;
    return said;
  }

  apply({ m, s, i, vs }) {
    this.setMethod("a", { first: m, improve: i !== "0" });
    if (Number(s) > 0) byId("seconds").value = Number(s);
    if (vs in COMPARISONS) byId("compare").value = vs;
    this.compare();
  }

  toggleTab(button) {
    for (const each of document.querySelectorAll("#tabs button")) {
      const opens = each === button && each.getAttribute("aria-expanded") === "false";
      each.setAttribute("aria-expanded", opens);
      byId(each.dataset.tab).classList.toggle("open", opens);
    }
  }
}
