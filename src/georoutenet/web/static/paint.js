// A scene onto a canvas, or onto anything with the same few calls (see svg.js).
//
// A scene is {problem, view, colors, scores, threshold, shows, tour, before, color, without}. `before` is the tour whose
// edges are compared with the tour's; `without` is a city that is left out with its edges, because it is being dragged.

import { OUTLINE } from "./outline.js";

const LEVELS = 8;

export const cityRadius = (n, room) => Math.max(1.1, Math.min(5.5, 0.16 * Math.sqrt(room / Math.max(n, 1))));

/** How wide an edge of a probability is drawn. */
export const edgeWidth = (probability, radius) => (0.25 + 2 * probability) * Math.min(4, radius);

export function paint(context, scene) {
  const { problem, view, shows } = scene;
  scene.radius = cityRadius(problem.n, view.width * view.height);
  context.lineJoin = context.lineCap = "round";
  backdrop(context, scene);
  if (shows.edges && scene.scores) edges(context, scene);
  if (scene.tour) tourLines(context, scene);
  if (shows.start && scene.scores) starts(context, scene);
  cities(context, scene);
}

function line(context, view, points) {
  context.beginPath();
  points.forEach(([x, y], i) => {
    const [sx, sy] = [view.screenX(x), view.screenY(y)];
    if (i === 0) context.moveTo(sx, sy);
    else context.lineTo(sx, sy);
  });
}

/** A map under degrees, the unit square's frame under what was drawn there. */
function backdrop(context, { problem, view, colors }) {
  context.lineWidth = 1;
  if (!problem.isDegrees) {
    const { x, y, width, height } = problem.box;
    context.strokeStyle = colors.frame;
    line(context, view, [[x, y], [x + width, y], [x + width, y + height], [x, y + height], [x, y]]);
    if (problem.box.width === 1 && problem.box.height === 1) context.stroke();
    return;
  }
  line(context, view, OUTLINE.map((place) => problem.drawn(place)));
  context.closePath();
  context.fillStyle = colors.land;
  context.fill();
  context.strokeStyle = colors.coast;
  context.stroke();
  const [west, north] = view.at(0, 0);
  const [east, south] = view.at(view.width, view.height);
  const span = Math.max(east - west, north - south);
  const each = [1, 2, 5, 10, 15, 30].find((degrees) => span / degrees < 9) ?? 45;
  context.strokeStyle = colors.frame;
  const { middle, scale } = problem.chart;
  for (let lat = Math.ceil(Math.max(-90, south) / each) * each; lat <= Math.min(90, north); lat += each) {
    line(context, view, [[west, lat], [east, lat]]);
    context.stroke();
  }
  for (let lon = Math.ceil((west / scale + middle) / each) * each; lon <= east / scale + middle; lon += each) {
    const x = (lon - middle) * scale;
    line(context, view, [[x, north], [x, south]]);
    context.stroke();
  }
}

/** The network's opinion: the wider, the more probable. One path for each of a few widths is fast. */
function edges(context, { problem, view, colors, scores, threshold, without, radius }) {
  const { from, to, probability } = scores;
  let end = probability.findIndex((each) => each < threshold);
  if (end < 0) end = probability.length;
  context.strokeStyle = colors.probability;
  let k = 0;
  for (let level = LEVELS; level >= 1 && k < end; level--) {
    const least = (level - 1) / LEVELS;
    const first = k;
    context.beginPath();
    for (; k < end && (probability[k] >= least || level === 1); k++) {
      const [i, j] = [from[k], to[k]];
      if (i === without || j === without) continue;
      context.moveTo(view.screenX(problem.x[i]), view.screenY(problem.y[i]));
      context.lineTo(view.screenX(problem.x[j]), view.screenY(problem.y[j]));
    }
    if (k === first) continue;
    const middle = (level - 0.5) / LEVELS;
    context.lineWidth = edgeWidth(middle, radius);
    context.globalAlpha = 0.25 + 0.55 * middle;
    context.stroke();
  }
  context.globalAlpha = 1;
}

/** Neighbors of each city in a tour, two by two. */
function neighbors(tour) {
  const pairs = new Int32Array(2 * tour.length);
  tour.forEach((city, k) => {
    pairs[2 * city] = tour[(k + tour.length - 1) % tour.length];
    pairs[2 * city + 1] = tour[(k + 1) % tour.length];
  });
  return pairs;
}

/** The edges of one tour that another has not. */
export function newEdges(tour, other) {
  const pairs = neighbors(other);
  const found = [];
  tour.forEach((city, k) => {
    const next = tour[(k + 1) % tour.length];
    if (pairs[2 * city] !== next && pairs[2 * city + 1] !== next) found.push([city, next]);
  });
  return found;
}

function segments(context, { problem, view, without }, pairs) {
  context.beginPath();
  for (const [i, j] of pairs) {
    if (i === without || j === without) continue;
    context.moveTo(view.screenX(problem.x[i]), view.screenY(problem.y[i]));
    context.lineTo(view.screenX(problem.x[j]), view.screenY(problem.y[j]));
  }
  context.stroke();
}

export const tourWidth = (radius) => Math.max(1.1, Math.min(2.4, radius * 0.62));

function tourLines(context, scene) {
  const { problem, view, tour, before, color, colors, without, radius } = scene;
  if (tour.length !== problem.n || problem.n < 2) return;
  const compared = before && before.length === tour.length ? before : null;
  if (compared) {
    context.strokeStyle = colors.removed;
    context.lineWidth = tourWidth(radius);
    context.setLineDash([2, 5]);
    segments(context, scene, newEdges(compared, tour));
    context.setLineDash([]);
  }
  context.strokeStyle = color;
  context.lineWidth = tourWidth(radius);
  context.beginPath();
  let isPenDown = false;
  for (let k = 0; k <= tour.length; k++) {
    const city = tour[k % tour.length];
    if (city === without) {
      isPenDown = false;
      continue;
    }
    const [x, y] = [view.screenX(problem.x[city]), view.screenY(problem.y[city])];
    if (isPenDown) context.lineTo(x, y);
    else context.moveTo(x, y);
    isPenDown = true;
  }
  context.stroke();
  if (compared) {
    context.strokeStyle = colors.added;
    context.lineWidth = tourWidth(radius) + 1.6;
    segments(context, scene, newEdges(tour, compared));
  }
}

function disk(context, x, y, radius) {
  context.moveTo(x + radius, y);
  context.arc(x, y, radius, 0, 2 * Math.PI);
}

/** Where the network would start: rings whose area grows with the probability, largest 22 pixels. */
function starts(context, { problem, view, colors, scores, without, radius }) {
  const most = Math.max(...scores.start);
  context.fillStyle = colors.start;
  context.globalAlpha = 0.4;
  context.beginPath();
  scores.start.forEach((probability, i) => {
    const size = 22 * Math.sqrt(probability / most);
    if (i < problem.n && i !== without && size > radius) {
      disk(context, view.screenX(problem.x[i]), view.screenY(problem.y[i]), size);
    }
  });
  context.fill();
  context.globalAlpha = 1;
}

function cities(context, { problem, view, colors, without, radius }) {
  context.fillStyle = colors.city;
  context.beginPath();
  for (let i = 0; i < problem.n; i++) {
    if (i === without) continue;
    const [x, y] = [view.screenX(problem.x[i]), view.screenY(problem.y[i])];
    // Thousands of circles take long, and a square of three pixels looks the same.
    if (radius < 1.6) context.rect(x - radius, y - radius, 2 * radius, 2 * radius);
    else disk(context, x, y, radius);
  }
  if (radius > 2.5) {
    context.strokeStyle = colors.paper;
    context.lineWidth = 2;
    context.stroke();
  }
  context.fill();
}

/** What moves with the pointer: the dragged city with its edges, the selected one, a label, a keyboard's cross. */
export function paintPointer(context, scene, { dragged, selected, hovered, cross }) {
  const { problem, view, colors, tour, color, radius } = scene;
  const place = (city) =>
    city === dragged?.city
      ? [view.screenX(dragged.x), view.screenY(dragged.y)]
      : [view.screenX(problem.x[city]), view.screenY(problem.y[city])];
  if (dragged) {
    const [x, y] = place(dragged.city);
    const k = tour && tour.length === problem.n ? tour.indexOf(dragged.city) : -1;
    if (k >= 0 && tour.length > 1) {
      context.strokeStyle = color;
      context.lineWidth = tourWidth(radius);
      context.beginPath();
      context.moveTo(...place(tour[(k + tour.length - 1) % tour.length]));
      context.lineTo(x, y);
      context.lineTo(...place(tour[(k + 1) % tour.length]));
      context.stroke();
    }
    context.fillStyle = colors.city;
    context.beginPath();
    disk(context, x, y, radius + 1.5);
    context.fill();
  }
  if (selected !== null && selected < problem.n) {
    context.strokeStyle = colors.accent;
    context.lineWidth = 2;
    context.beginPath();
    disk(context, ...place(selected), radius + 5);
    context.stroke();
  }
  if (cross) {
    const [x, y] = [view.screenX(cross[0]), view.screenY(cross[1])];
    context.strokeStyle = colors.accent;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(x - 10, y);
    context.lineTo(x + 10, y);
    context.moveTo(x, y - 10);
    context.lineTo(x, y + 10);
    context.stroke();
  }
  const named = hovered ?? selected;
  if (named !== null && named < problem.n) label(context, problem.label(named), ...place(named), scene);
}

function label(context, text, x, y, { colors, view, radius }) {
  context.font = "13px system-ui, sans-serif";
  const width = context.measureText(text).width + 12;
  const left = Math.max(2, Math.min(view.width - width - 2, x - width / 2));
  const top = y > 40 ? y - radius - 32 : y + radius + 10;
  context.fillStyle = colors.city;
  context.beginPath();
  context.roundRect(left, top, width, 22, 6);
  context.fill();
  context.fillStyle = colors.paper;
  context.textBaseline = "middle";
  context.fillText(text, left + 6, top + 11.5);
}
