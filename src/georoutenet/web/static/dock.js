// Under the map: playback, the numbers of the tour that is shown, the chart; and the legend and captions on the map.

import { drawChart } from "./chart.js";
import { setIcon } from "./icons.js";
import { edgeOpacity, edgeWidth, tourWidth } from "./paint.js";
import { byId } from "./panel.js";
import { formatCount, formatLength, formatPercent, formatSeconds } from "./words.js";

function element(name, text, className = "") {
	return Object.assign(document.createElement(name), { textContent: text, className });
}

/** An entry of the legend: a stroke or a disk as on the map, and words. */
function sample(text, { disk = 0, ...look }) {
	const make = (name) => document.createElementNS("http://www.w3.org/2000/svg", name);
	const svg = make("svg");
	const shape = make(disk ? "circle" : "path");
	const form = disk ? { cx: 13, cy: 8, r: disk, stroke: "none" } : { d: "M2 8h22" };
	for (const [name, value] of Object.entries({ ...form, ...look })) shape.setAttribute(name, value);
	svg.append(shape);
	const entry = element("span", "");
	entry.append(svg, text);
	return entry;
}

export class Dock {
	constructor(player) {
		this.player = player;
		byId("back").addEventListener("click", () => player.step(-1));
		byId("forward").addEventListener("click", () => player.step(1));
		byId("play").addEventListener("click", () => (this.isGoing ? player.pause() : player.play()));
		byId("scrub").addEventListener("input", () => {
			player.pause();
			player.seek(Number(byId("scrub").value));
		});
		byId("speed").addEventListener("change", () => player.setSpeed(Number(byId("speed").value)));
	}

	/** Whether pausing would hold something. */
	get isGoing() {
		return this.player.isPlaying && (this.player.isLive || !this.player.isAtEnd);
	}

	draw({ problem, panes, colors, shows }) {
		const { player } = this;
		const count = player.times.length;
		byId("back").disabled = player.position <= 0;
		byId("forward").disabled = player.position >= count - 1;
		byId("play").disabled = count === 0 && !player.isLive;
		byId("play").setAttribute("aria-label", this.isGoing ? "Pause" : "Play");
		setIcon(byId("play"), this.isGoing ? "pause" : "play");
		Object.assign(byId("scrub"), { max: Math.max(0, count - 1), disabled: count < 2 });
		byId("scrub").value = Math.max(0, player.position);
		const frame = count ? [element("i", "frame "), `${player.position + 1} of ${count}`] : [player.isLive ? "starting…" : "no tour yet"];
		byId("counter").replaceChildren(...frame);
		const shown = panes.map((pane) => ({ pane, run: pane.run, ...pane.tourAt(player.seconds, !player.isPlaying) }));
		this.captions(shown, problem);
		this.numbers(shown, problem, colors);
		this.chart(shown, problem, colors);
		this.legend(shown, colors, shows);
	}

	captions(shown, problem) {
		for (const { pane, run, frame, tour } of shown) {
			const length = frame ? formatLength(frame.length, problem.unit) : tour ? "…" : `${formatCount(problem.n)} cities`;
			const method = frame ? `${run.made}${run.method.improve ? " + search" : ""} · ` : "";
			pane.caption.replaceChildren(element("b", length), method + problem.name);
		}
	}

	numbers(shown, { unit, optimum }, colors) {
		const rows = [];
		const row = (title, make) => {
			const cells = shown.map((each) => (each.frame && make(each)) || "");
			if (cells.every((cell) => cell === "")) return;
			const heading = Object.assign(element("th", title), { scope: "row" });
			const made = element("tr", "");
			made.append(heading, ...cells.map((cell) => element("td", cell, /proven|reached/.test(cell) ? "proven" : "")));
			rows.push(made);
		};
		const above = (length, other) => 100 * (length / other - 1);
		const excess = (length, other, none) => (length <= other * (1 + 1e-9) ? none : formatPercent(above(length, other)));
		const isAlone = shown.length === 1;
		row("First tour", ({ run }) => formatLength(run.frames[0].length, unit));
		row("Length now", ({ frame, run }) => {
			const gain = -above(frame.length, run.frames[0].length);
			return formatLength(frame.length, unit) + (isAlone && gain > 0.0005 ? ` (−${formatPercent(gain)})` : "");
		});
		row("Lower bound", ({ run }) => run.bound && formatLength(run.bound, unit));
		row("Too long by at most", ({ run, frame }) => run.bound && excess(frame.length, run.bound, "0, proven optimal"));
		if (optimum !== null) row(`Above the optimum ${formatLength(optimum)}`, ({ frame }) => excess(frame.length, optimum, "reached"));
		row("After", ({ frame }) => {
			const kicks = isAlone && frame.iterations ? `, ${formatCount(frame.iterations)} kicks` : "";
			return formatSeconds(frame.seconds) + kicks;
		});
		byId("numbers").tBodies[0].replaceChildren(...rows);
		if (!isAlone && rows.length) shown.forEach(({ pane }, k) => (rows[1].cells[k + 1].style.boxShadow = `inset 0 -2px ${colors[pane.color]}`));
		byId("notes").textContent = [...new Set(shown.flatMap(({ run }) => run?.result?.notes ?? []))].join("; ");
	}

	chart(shown, { optimum, unit }, colors) {
		const { player } = this;
		const asked = shown.filter(({ run }) => run?.frames.length);
		const series = asked.map(({ run, pane }) => ({
			frames: run.frames,
			bound: run.bound,
			color: colors[pane.color],
			end: run.isRunning ? player.times.at(-1) : Math.max(run.result?.timings.total ?? 0, run.frames.at(-1).seconds),
		}));
		drawChart(byId("chart"), { series, optimum, now: player.seconds, colors });
		const said = asked.map(({ run }) => [run.frames[0], run.frames.at(-1)].map(({ length }) => formatLength(length, unit)).join(" to "));
		byId("chart").setAttribute("aria-label", `Length over time: ${said.join("; ")}`);
	}

	legend(shown, colors, shows) {
		const { radius } = shown[0].pane;
		const width = tourWidth(radius);
		const hasScores = shown.some(({ pane }) => pane.scores);
		const entries = [];
		if (shown.some(({ tour }) => tour)) entries.push(sample("tour", { stroke: colors.accent, "stroke-width": width }));
		if (shown.some(({ before }) => before)) {
			entries.push(sample("new in this step", { stroke: colors.added, "stroke-width": width + 1.6 }));
			entries.push(sample("gone", { stroke: colors.removed, "stroke-width": width, "stroke-dasharray": "2 5" }));
		}
		for (const probability of hasScores && shows.edges ? [0.1, 0.5, 1] : []) {
			const look = { stroke: colors.probability, "stroke-width": edgeWidth(probability, radius), opacity: edgeOpacity(probability) };
			entries.push(sample(`in ${100 * probability} %${probability === 1 ? " of its tours" : ""}`, look));
		}
		if (hasScores && shows.start) entries.push(sample("start", { fill: colors.start, disk: 7, opacity: 0.4 }));
		byId("legend").replaceChildren(...entries);
	}
}
