// A search as the page remembers it: every tour that the server sent, and a player that shows them again.

import { stream } from "./api.js";

/** One call of the stream. Fires "frame" for each tour, "bound", and at the end "end". */
export class Run extends EventTarget {
	constructor(problem, method, options) {
		super();
		Object.assign(this, { problem, method, options, frames: [], bound: null, result: null, error: null });
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
		this.bound = content.lower_bound ?? this.bound;
		this.made = content.method ?? this.made; // what made the first tour; not the network where time was short
		if (name === "done") this.result = content;
		if (content.tour && !(name === "done" && last && last.length === content.length)) {
			const { length, iterations = 0 } = content;
			this.frames.push({ tour: Int32Array.from(content.tour), length, seconds, iterations, name });
		}
		this.dispatchEvent(new Event(content.tour ? "frame" : "bound"));
	}

	/** The last frame at or before a time, or -1. */
	indexAt(seconds) {
		return this.frames.findLastIndex((frame) => frame.seconds <= seconds);
	}
}

/** Shows the frames of one or two runs by one clock. Fires "move" when another frame is to be seen. */
export class Player extends EventTarget {
	runs = [];
	times = [];
	position = -1;
	isPlaying = true;
	speed = 0; // frames per second; 0 is as fast as the search was
	time = 0;

	show(runs) {
		Object.assign(this, { runs, times: [], position: -1, time: 0 });
		for (const run of runs) run.addEventListener("frame", () => this.runs === runs && this.grew());
		this.moved();
	}

	moved() {
		this.dispatchEvent(new Event("move"));
	}

	/** Collect the moments at which something changes, of all runs, in order. */
	grew() {
		const shown = this.seconds;
		const times = this.runs.flatMap((run) => run.frames.map((frame) => frame.seconds));
		this.times = [...new Set(times)].sort((a, b) => a - b);
		const follows = this.isPlaying && this.speed === 0 && this.isLive;
		this.position = follows ? this.times.length - 1 : Math.max(0, this.indexAt(shown));
		this.wake();
		this.moved();
	}

	indexAt(seconds) {
		return this.times.findLastIndex((time) => time <= seconds);
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
		const last = this.times.length - 1;
		this.position = Math.max(Math.min(0, last), Math.min(position, last));
		this.time = this.seconds;
		this.moved();
	}

	step(by) {
		this.pause();
		this.seek(this.position + by);
	}

	pause() {
		this.isPlaying = false;
		this.moved();
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

	/** Go on frame by frame while there is something ahead. */
	wake() {
		if (this.isTicking || !this.isPlaying || this.isAtEnd) return;
		this.isTicking = true;
		let before = performance.now();
		let due = 0;
		const tick = (now) => {
			const passed = Math.max(0, now - before) / 1000;
			before = now;
			this.isTicking = this.isPlaying && !this.isAtEnd;
			if (!this.isTicking) return this.moved();
			let next = this.position;
			if (this.speed === 0) next = this.indexAt((this.time += passed));
			else {
				due += passed * this.speed;
				next += Math.floor(due);
				due %= 1;
			}
			if (next > this.position) {
				this.position = Math.min(next, this.times.length - 1);
				if (this.speed > 0) this.time = this.seconds;
				this.moved();
			}
			requestAnimationFrame(tick);
		};
		requestAnimationFrame(tick);
	}
}
