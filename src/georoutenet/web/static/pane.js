// One map on the page: what was painted is kept, so that a dragged city costs one copy and a few lines a frame.

import { scores as askScores } from "./api.js";
import { paint, paintPointer } from "./paint.js";

const WAIT = 120; // milliseconds without a change before the network is asked
const QUICK = 200; // up to so many cities it is asked while one is dragged

export class Pane {
  constructor(figure, color) {
    Object.assign(this, { figure, color, run: null, carried: null, scores: null, asked: null });
    this.canvas = figure.querySelector("canvas");
    this.caption = figure.querySelector("figcaption");
    this.kept = document.createElement("canvas");
    this.key = [];
  }

  get isShown() {
    return !this.figure.hidden;
  }

  /** The tour at a time, and the one before it where a step is looked at. */
  tourAt(seconds, isStepping) {
    const frame = this.run?.frameAt(seconds);
    if (!frame) return { tour: this.carried, before: null, frame: null };
    const index = this.run.frames.indexOf(frame);
    return { tour: frame.tour, before: isStepping && index > 0 ? this.run.frames[index - 1].tour : null, frame };
  }

  draw(scene, pointer) {
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [scene.view.width * ratio, scene.view.height * ratio].map(Math.round);
    const { problem, view, colors, scores, threshold, shows, tour, before, without } = scene;
    const key = [problem, view.key, colors, scores, threshold, shows.edges, shows.start, tour, before, without, ratio];
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
    scene.radius = this.radius;
    paintPointer(context, scene, pointer);
  }
}

/** Asks for the network's opinion of a pane's problem, one request at a time, always about the latest. */
export class Opinions {
  constructor({ changed, failed }) {
    Object.assign(this, { changed, failed });
    this.waiting = new Map();
    this.busy = new Set();
  }

  /** `wanted` is {problem, weights}, or null where nothing is to be shown. */
  want(pane, wanted, isDragging = false) {
    clearTimeout(this.waiting.get(pane)?.timer);
    const isSame = wanted && pane.asked && wanted.problem === pane.asked.problem && wanted.weights === pane.asked.weights;
    if (isSame) return;
    if (!wanted || wanted.problem.n < 3) {
      pane.asked = pane.scores = null;
      this.waiting.delete(pane);
      this.changed();
      return;
    }
    if (isDragging && (wanted.problem.n > QUICK || this.busy.has(pane))) return;
    // Edges of other cities would be wrong; of the same ones they are only late.
    if (pane.scores && (pane.scores.n !== wanted.problem.n || pane.asked?.weights !== wanted.weights)) pane.scores = null;
    const timer = setTimeout(() => this.ask(pane), isDragging ? 0 : WAIT);
    this.waiting.set(pane, { ...wanted, timer });
    this.changed();
  }

  isThinking(pane) {
    return this.busy.has(pane) || this.waiting.has(pane);
  }

  async ask(pane) {
    if (this.busy.has(pane)) return; // the request on its way asks again when it is back
    const wanted = this.waiting.get(pane);
    this.waiting.delete(pane);
    this.busy.add(pane);
    try {
      const answer = await askScores(wanted.problem, wanted.weights);
      if (!this.waiting.has(pane) || this.waiting.get(pane).problem.n === wanted.problem.n) {
        pane.asked = wanted;
        pane.scores = {
          n: wanted.problem.n,
          from: Int32Array.from(answer.edges, (edge) => edge[0]),
          to: Int32Array.from(answer.edges, (edge) => edge[1]),
          probability: Float32Array.from(answer.edges, (edge) => edge[2]),
          start: Float32Array.from(answer.start),
        };
      }
    } catch (error) {
      if (error.status !== 429) this.failed(error);
      else if (!this.waiting.has(pane)) this.waiting.set(pane, { ...wanted, timer: setTimeout(() => this.ask(pane), 700) });
    }
    this.busy.delete(pane);
    if (this.waiting.has(pane)) {
      clearTimeout(this.waiting.get(pane).timer);
      this.waiting.get(pane).timer = setTimeout(() => this.ask(pane), 50);
    }
    this.changed();
  }
}
