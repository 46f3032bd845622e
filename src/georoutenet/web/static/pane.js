// One map on the page: what was painted is kept, so that a dragged city costs one copy and a few lines a frame.

import { scores } from "./api.js";
import { paint, paintPointer } from "./paint.js";

const WAIT = 120; // milliseconds without a change before the network is asked
const BUSY = 700; // and before it is asked again when the server had no time

export class Pane {
	constructor(figure, color) {
		Object.assign(this, { figure, color, run: null, carried: null, scores: null, asked: null, wanted: null, radius: 3 });
		this.canvas = figure.querySelector("canvas");
		this.caption = figure.querySelector("figcaption");
		this.kept = document.createElement("canvas");
		this.key = [];
	}

	/** The tour at a time, and the one before it where a step is looked at. */
	tourAt(seconds, isStepping) {
		const index = this.run ? this.run.indexAt(seconds) : -1;
		if (index < 0) return { tour: this.carried, before: null, frame: null };
		const frame = this.run.frames[index];
		return { tour: frame.tour, before: isStepping && index > 0 ? this.run.frames[index - 1].tour : null, frame };
	}

	draw(scene, pointer) {
		const ratio = window.devicePixelRatio || 1;
		const [width, height] = [scene.view.width * ratio, scene.view.height * ratio].map(Math.round);
		const { problem, view, colors, threshold, shows, tour, before, without } = scene;
		const key = [problem, view.key, colors, scene.scores, threshold, shows.edges, shows.start, tour, before, without, ratio];
		if (key.some((each, k) => each !== this.key[k])) {
			this.key = key;
			Object.assign(this.kept, { width, height });
			const context = this.kept.getContext("2d");
			context.scale(ratio, ratio);
			paint(context, scene);
			this.radius = scene.radius;
		}
		if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
		const context = this.canvas.getContext("2d");
		context.setTransform(1, 0, 0, 1, 0, 0);
		context.clearRect(0, 0, width, height);
		context.drawImage(this.kept, 0, 0);
		context.scale(ratio, ratio);
		paintPointer(context, { ...scene, radius: this.radius }, pointer);
	}
}

/** Asks for the network's opinion, for each pane one request at a time and always about the latest problem. */
export class Opinions {
	constructor({ changed, failed }) {
		Object.assign(this, { changed, failed });
	}

	/** `wanted` is {problem, weights}, or null where nothing is to be shown. While a city is dragged there is no wait. */
	want(pane, wanted, isDragging = false) {
		const isOf = (other) => other && wanted && other.problem === wanted.problem && other.weights === wanted.weights;
		if (isOf(pane.wanted) || (!pane.wanted && isOf(pane.asked))) return;
		const asked = wanted && wanted.problem.n >= 3 ? wanted : null;
		// Edges of other cities would be wrong; of the same ones, one of them moved, they are only late.
		if (!asked || pane.asked?.problem.n !== asked.problem.n || pane.asked.weights !== asked.weights) pane.scores = pane.asked = null;
		pane.wanted = asked;
		clearTimeout(pane.timer);
		if (asked && !pane.isAsking) pane.timer = setTimeout(() => this.ask(pane), isDragging ? 0 : WAIT);
		this.changed();
	}

	async ask(pane) {
		const asked = pane.wanted;
		let wait = 0;
		pane.isAsking = true;
		try {
			const { edges, start } = await scores(asked.problem, asked.weights);
			const part = (k, Kind) => Kind.from(edges, (edge) => edge[k]);
			if (pane.wanted?.problem.n === asked.problem.n && pane.wanted.weights === asked.weights) {
				pane.asked = asked;
				pane.scores = { from: part(0, Int32Array), to: part(1, Int32Array), probability: part(2, Float32Array), start };
			}
		} catch (error) {
			if (error.status === 429) wait = BUSY;
			else this.failed(error);
		}
		pane.isAsking = false;
		if (pane.wanted === asked && wait === 0) pane.wanted = null;
		if (pane.wanted) pane.timer = setTimeout(() => this.ask(pane), wait);
		this.changed();
	}
}
