// A search as the page remembers it: every tour that the server sent, and a player that shows them again.

import { stream } from "./api.js";

/** One call of the stream. Fires "frame" for each tour, "bound", and at the end "end". */
export class Run extends EventTarget {
  constructor(problem, method, options) {
    super();
    Object.assign(this, { problem, method, options, frames: [], bounds: [], result: null, error: null });
    this.isRunning = false;
    this.controller = new AbortController();
  }

  async start() {
    this.isRunning = true;
    try {
      await stream(this.problem, this.options, this.controller.signal, (name, content) => this.take(name, content));
    } catch (error) {
      if (error.name !== "AbortError") this.error = error;
    }
    this.isRunning = false;
    this.dispatchEvent(new Event("end"));
    return this;
  }

  stop() {
    this.controller.abort();
  }

  take(name, content) {
    const last = this.frames.at(-1);
    const seconds = Math.max(content.seconds ?? content.timings?.total ?? 0, last?.seconds ?? 0);
    if (content.lower_bound != null && content.lower_bound !== this.bounds.at(-1)?.length) {
      this.bounds.push({ seconds, length: content.lower_bound });
    }
    if (name === "done") this.result = content;
    if (content.tour && !(name === "done" && last && last.length === content.length)) {
      const { length, iterations = 0 } = content;
      this.frames.push({ tour: Int32Array.from(content.tour), length, seconds, iterations, name });
    }
    this.dispatchEvent(new Event(content.tour ? "frame" : "bound"));
  }

  /** The last frame at or before a time. */
  frameAt(seconds) {
    let low = 0;
    let high = this.frames.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.frames[middle].seconds <= seconds) low = middle + 1;
      else high = middle;
    }
    return this.frames[low - 1] ?? null;
  }

  indexAt(seconds) {
    return this.frames.indexOf(this.frameAt(seconds));
  }

  boundAt(seconds) {
    return this.bounds.findLast((each) => each.seconds <= seconds)?.length ?? null;
  }
}

/** Shows the frames of one or two runs by one clock. Fires "move" when another frame is to be seen. */
export class Player extends EventTarget {
  constructor() {
    super();
    this.runs = [];
    this.times = [];
    this.position = -1;
    this.isPlaying = true;
    this.speed = 0; // frames per second; 0 is as fast as the search was
    this.time = 0;
    this.before = 0;
  }

  show(runs) {
    this.runs = runs;
    this.times = [];
    this.position = -1;
    this.time = 0;
    for (const run of runs) run.addEventListener("frame", () => this.grew(run));
    this.dispatchEvent(new Event("move"));
  }

  /** The moments at which something changes, of all runs, in order. */
  grew(run) {
    if (!this.runs.includes(run)) return;
    const shown = this.seconds;
    this.times = [...new Set(this.runs.flatMap((each) => each.frames.map((frame) => frame.seconds)))].sort((a, b) => a - b);
    const follows = this.isPlaying && this.speed === 0 && this.isLive;
    this.position = follows ? this.times.length - 1 : Math.max(0, this.times.findLastIndex((time) => time <= shown));
    if (this.isPlaying) this.wake();
    this.dispatchEvent(new Event("move"));
  }

  get isLive() {
    return this.runs.some((run) => run.isRunning);
  }

  get isAtEnd() {
    return this.position >= this.times.length - 1;
  }

  get seconds() {
    return this.times[this.position] ?? 0;
  }

  seek(position) {
    this.position = Math.max(Math.min(position, this.times.length - 1), Math.min(0, this.times.length - 1));
    this.time = this.seconds;
    this.dispatchEvent(new Event("move"));
  }

  step(by) {
    this.pause();
    this.seek(this.position + by);
  }

  pause() {
    this.isPlaying = false;
    this.dispatchEvent(new Event("move"));
  }

  play() {
    this.isPlaying = true;
    if (this.isAtEnd && !this.isLive) this.seek(0);
    else this.seek(this.speed === 0 && this.isLive ? this.times.length - 1 : this.position);
    this.wake();
  }

  setSpeed(speed) {
    this.speed = speed;
    this.time = this.seconds;
  }

  wake() {
    if (this.ticking || this.isAtEnd) return;
    this.ticking = true;
    this.before = performance.now();
    this.carry = 0;
    requestAnimationFrame((now) => this.tick(now));
  }

  tick(now) {
    const passed = Math.max(0, now - this.before) / 1000;
    this.before = now;
    if (!this.isPlaying || this.isAtEnd) {
      this.ticking = false;
      this.dispatchEvent(new Event("move"));
      return;
    }
    let next;
    if (this.speed === 0) {
      this.time += passed;
      next = this.times.findLastIndex((time) => time <= this.time);
    } else {
      this.carry += passed * this.speed;
      next = this.position + Math.floor(this.carry);
      this.carry -= Math.floor(this.carry);
      this.time = this.times[Math.min(next, this.times.length - 1)];
    }
    if (next > this.position) {
      this.position = Math.min(next, this.times.length - 1);
      this.dispatchEvent(new Event("move"));
    }
    requestAnimationFrame((later) => this.tick(later));
  }
}
