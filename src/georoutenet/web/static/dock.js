// Under the map: playback, the numbers of the tour that is shown, the chart; and the legend and captions on the map.

import { drawChart } from "./chart.js";
import { describe } from "./methods.js";
import { cityRadius, edgeWidth, tourWidth } from "./paint.js";
import { byId } from "./panel.js";
import { formatCount, formatLength, formatPercent, formatSeconds, plural } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";

function element(name, text, className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = className;
  return made;
}

/** A line of the legend: a stroke or a disk as on the map, and words. */
function sample(text, { color, width = 2, dash = "", disk = 0, opacity = 1 }) {
  const svg = document.createElementNS(SVG, "svg");
  const shape = document.createElementNS(SVG, disk ? "circle" : "path");
  const said = disk
    ? { cx: 13, cy: 8, r: disk, fill: color, stroke: "none" }
    : { d: "M2 8h22", stroke: color, "stroke-width": width, "stroke-dasharray": dash };
  for (const [name, value] of Object.entries({ ...said, opacity })) shape.setAttribute(name, value);
  svg.append(shape);
  const made = element("span", "");
  made.append(svg, text);
  return made;
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

  draw({ problem, panes, colors, shows, several }) {
    const { player } = this;
    const count = player.times.length;
    byId("back").disabled = player.position <= 0;
    byId("forward").disabled = player.position >= count - 1;
    byId("play").disabled = count === 0 && !player.isLive;
    byId("play").setAttribute("aria-label", this.isGoing ? "Pause" : "Play");
    byId("play").querySelector("use").setAttribute("href", this.isGoing ? "#i-pause" : "#i-play");
    Object.assign(byId("scrub"), { max: Math.max(0, count - 1), disabled: count < 2 });
    byId("scrub").value = Math.max(0, player.position);
    byId("counter").textContent = count ? `frame ${player.position + 1} of ${count}` : player.isLive ? "starting…" : "no tour yet";
    const shown = panes.map((pane) => ({ pane, run: pane.run, ...pane.tourAt(player.seconds, !player.isPlaying) }));
    for (const each of shown) this.caption(each, problem, several);
    this.numbers(shown, problem, colors);
    this.chart(shown, problem, colors);
    this.legend(shown, problem, colors, shows);
  }

  caption({ pane, run, frame, tour }, problem, several) {
    const length = element("b", frame ? formatLength(frame.length, problem.unit) : tour ? "…" : plural(problem.n, "city"));
    const words = run ? `${describe(run.method, several)}` : "";
    pane.caption.replaceChildren(length, `${words}${words && problem.name ? " · " : ""}${problem.name}`);
  }

  numbers(shown, problem, colors) {
    const rows = [];
    const row = (title, cells) => {
      if (cells.every((cell) => cell === null)) return;
      const made = element("tr", "");
      const heading = element("th", title);
      heading.scope = "row";
      made.append(heading, ...cells.map((cell) => element("td", cell?.[0] ?? "–", cell?.[1] ?? "")));
      rows.push(made);
    };
    const of = (make) => shown.map((each) => (each.frame ? make(each) : null));
    const { unit, optimum } = problem;
    const { seconds } = this.player;
    const above = (length, other) => 100 * (length / other - 1);
    const isClose = (length, other) => length <= other * (1 + 1e-9);
    row("First tour", of(({ run }) => [formatLength(run.frames[0].length, unit)]));
    row("Length now", of(({ frame, run }) => {
      const gained = above(frame.length, run.frames[0].length);
      return [`${formatLength(frame.length, unit)}${gained < -0.0005 ? ` (−${formatPercent(-gained)})` : ""}`];
    }));
    row("Lower bound", of(({ run }) => {
      const bound = run.boundAt(Infinity);
      return bound && [formatLength(bound, unit)];
    }));
    row("Too long by at most", of(({ run, frame }) => {
      const bound = run.boundAt(Infinity);
      return bound && (isClose(frame.length, bound) ? ["0 %: proven optimal", "proven"] : [formatPercent(above(frame.length, bound))]);
    }));
    if (optimum !== null) {
      row("Best known", shown.map(() => [formatLength(optimum, unit)]));
      row("Above it", of(({ frame }) => (isClose(frame.length, optimum) ? ["reached", "proven"] : [formatPercent(above(frame.length, optimum))])));
    }
    row("After", of(({ frame }) => [
      `${formatSeconds(Math.min(frame.seconds, seconds))}${frame.iterations ? `, ${formatCount(frame.iterations)} kicks` : ""}`,
    ]));
    const body = byId("numbers").tBodies[0];
    body.replaceChildren(...rows);
    const [colored] = body.rows;
    shown.forEach(({ pane }, k) => {
      if (colored && shown.length > 1) for (const each of body.rows) if (each.rowIndex === 1) each.cells[k + 1].style.color = colors[pane.color];
    });
  }

  chart(shown, problem, colors) {
    const { player } = this;
    const series = shown
      .filter(({ run }) => run)
      .map(({ run, pane }) => ({
        frames: run.frames,
        bounds: run.bounds,
        color: colors[pane.color],
        end: Math.max(run.result?.timings?.total ?? 0, run.frames.at(-1)?.seconds ?? 0),
      }));
    drawChart(byId("chart"), { series, optimum: problem.optimum, now: player.seconds, colors });
    const said = shown
      .filter(({ run }) => run?.frames.length)
      .map(({ run }) => `${formatLength(run.frames[0].length, problem.unit)} to ${formatLength(run.frames.at(-1).length, problem.unit)}`);
    byId("chart").setAttribute("aria-label", said.length ? `Length over time: ${said.join("; ")}` : "Length over time");
  }

  legend(shown, problem, colors, shows) {
    const radius = cityRadius(problem.n, shown[0].pane.canvas.clientWidth * shown[0].pane.canvas.clientHeight);
    const hasScores = shown.some(({ pane }) => pane.scores);
    const items = [];
    const hasTour = shown.some(({ tour }) => tour);
    if (hasTour) items.push(sample("tour", { color: colors["tour-a"], width: tourWidth(radius) }));
    if (shown.some(({ before }) => before)) {
      items.push(sample("new in this step", { color: colors.added, width: tourWidth(radius) + 1.6 }));
      items.push(sample("gone", { color: colors.removed, width: tourWidth(radius), dash: "2 5" }));
    }
    if (hasScores && shows.edges) {
      for (const probability of [0.1, 0.5, 1]) {
        const look = { color: colors.probability, width: edgeWidth(probability, radius), opacity: 0.25 + 0.55 * probability };
        items.push(sample(`${100 * probability} %${probability === 1 ? " probable" : ""}`, look));
      }
    }
    if (hasScores && shows.start) items.push(sample("start", { color: colors.start, disk: 7, opacity: 0.4 }));
    byId("legend").replaceChildren(...items);
  }
}
