// A scene onto a canvas, or onto anything with the same few calls (see svg.js).
//
// A scene is {problem, view, colors, scores, threshold, shows, tour, before, color, without}. `before` is the tour whose
// edges are compared with the tour's; `without` is a city that is left out with its edges, because it is being dragged.

import { OUTLINE } from "./outline.js";

const LEVELS = 8;

/** In proportion to how far apart the cities are. */
function cityRadius({ n, box }, view) {
	const side = (view.scale * (box.width + box.height)) / 2;
	return Math.max(1.1, Math.min(5.5, (0.13 * side) / Math.sqrt(Math.max(n, 1))));
}

export const tourWidth = (radius) => Math.max(1.1, Math.min(2.4, radius * 0.62));

/** How an edge of a probability is drawn. */
export const edgeWidth = (probability, radius) => (0.3 + 1.7 * probability) * Math.min(4, radius);
export const edgeOpacity = (probability) => 0.25 + 0.55 * probability;

export function paint(context, scene) {
	const { problem, view, shows } = scene;
	scene.radius = cityRadius(problem, view);
	scene.at = (city) => [view.screenX(problem.x[city]), view.screenY(problem.y[city])];
	context.lineJoin = context.lineCap = "round";
	backdrop(context, scene);
	if (shows.edges && scene.scores) edges(context, scene);
	if (scene.tour?.length === problem.n && problem.n > 1) tourLines(context, scene);
	if (shows.start && scene.scores) starts(context, scene);
	cities(context, scene);
}

/** A line through points of the screen. */
export function trace(context, points) {
	context.beginPath();
	points.forEach(([x, y], k) => (k ? context.lineTo(x, y) : context.moveTo(x, y)));
	context.stroke();
}

/** A map under degrees, the frame of the unit square elsewhere. */
function backdrop(context, { problem, view, colors }) {
	const screen = (places) => places.map(([x, y]) => [view.screenX(x), view.screenY(y)]);
	context.lineWidth = 1;
	context.strokeStyle = colors.frame;
	if (!problem.isDegrees) {
		if (problem.box.width === 1 && problem.box.height === 1) trace(context, screen([[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]]));
		return;
	}
	context.strokeStyle = colors.coast;
	context.fillStyle = colors.land;
	trace(context, screen([...OUTLINE, OUTLINE[0]].map((place) => problem.drawn(place))));
	context.fill();
	const [west, north] = view.at(0, 0);
	const [east, south] = view.at(view.width, view.height);
	const { middle, scale } = problem.chart;
	const each = [1, 2, 5, 10, 15, 30].find((degrees) => Math.max(east - west, north - south) / degrees < 9) ?? 45;
	const grid = (from, to, ends) => {
		for (let degrees = Math.ceil(from / each) * each; degrees <= to; degrees += each) trace(context, screen(ends(degrees)));
	};
	context.strokeStyle = colors.frame;
	grid(Math.max(-90, south), Math.min(90, north), (lat) => [[west, lat], [east, lat]]);
	grid(west / scale + middle, east / scale + middle, (lon) => [north, south].map((y) => [(lon - middle) * scale, y]));
}

function segments(context, { at, without }, pairs) {
	context.beginPath();
	for (const [i, j] of pairs) {
		if (i === without || j === without) continue;
		context.moveTo(...at(i));
		context.lineTo(...at(j));
	}
	context.stroke();
}

/** The network's opinion: the wider, the more probable. One path for each of a few widths is fast. */
function edges(context, scene) {
	const { from, to, probability } = scene.scores;
	const levels = Array.from({ length: LEVELS }, () => []);
	for (let k = 0; k < probability.length && probability[k] >= scene.threshold; k++) {
		levels[Math.min(LEVELS - 1, Math.floor(LEVELS * probability[k]))].push([from[k], to[k]]);
	}
	context.strokeStyle = scene.colors.probability;
	levels.forEach((pairs, level) => {
		const middle = (level + 0.5) / LEVELS;
		context.lineWidth = edgeWidth(middle, scene.radius);
		context.globalAlpha = edgeOpacity(middle);
		if (pairs.length) segments(context, scene, pairs);
	});
	context.globalAlpha = 1;
}

/** The edges of one tour that another has not. */
export function newEdges(tour, other) {
	const after = new Int32Array(tour.length);
	const next = (cities, k) => cities[(k + 1) % cities.length];
	other.forEach((city, k) => (after[city] = next(other, k)));
	const pairs = Array.from(tour, (city, k) => [city, next(tour, k)]);
	return pairs.filter(([i, j]) => after[i] !== j && after[j] !== i);
}

function tourLines(context, scene) {
	const { tour, at, color, colors, without } = scene;
	const before = scene.before?.length === tour.length ? scene.before : null;
	const width = tourWidth(scene.radius);
	context.lineWidth = width;
	if (before) {
		context.strokeStyle = colors.removed;
		context.setLineDash([2, 5]);
		segments(context, scene, newEdges(before, tour));
		context.setLineDash([]);
	}
	const gap = tour.indexOf(without);
	const cities = gap < 0 ? [...tour, tour[0]] : [...tour.slice(gap + 1), ...tour.slice(0, gap)];
	context.strokeStyle = color;
	trace(context, cities.map(at));
	if (before) {
		context.strokeStyle = colors.added;
		context.lineWidth = width + 1.6;
		segments(context, scene, newEdges(tour, before));
	}
}

function disk(context, x, y, radius) {
	context.moveTo(x + radius, y);
	context.arc(x, y, radius, 0, 2 * Math.PI);
}

/** Where the network would start: disks whose area grows with the probability, the largest 22 pixels wide each way. */
function starts(context, { problem, at, colors, scores, without, radius }) {
	const most = Math.max(...scores.start);
	context.fillStyle = colors.start;
	context.globalAlpha = 0.4;
	context.beginPath();
	scores.start.forEach((probability, i) => {
		const size = 22 * Math.sqrt(probability / most);
		if (i < problem.n && i !== without && size > radius) disk(context, ...at(i), size);
	});
	context.fill();
	context.globalAlpha = 1;
}

function cities(context, { problem, at, colors, without, radius }) {
	context.fillStyle = colors.city;
	context.beginPath();
	for (let i = 0; i < problem.n; i++) {
		if (i === without) continue;
		const [x, y] = at(i);
		// Thousands of circles take long, and a square of three pixels looks the same.
		if (radius < 1.6) context.rect(x - radius, y - radius, 2 * radius, 2 * radius);
		else disk(context, x, y, radius);
	}
	context.strokeStyle = colors.paper;
	context.lineWidth = 2;
	if (radius > 2.5) context.stroke();
	context.fill();
}

/** What moves with the pointer: the dragged city with its edges, the selected one, a label, a keyboard's cross. */
export function paintPointer(context, scene, { dragged, selected, hovered, cross }) {
	const { problem, view, colors, tour, color, radius } = scene;
	const at = (city) => {
		const [x, y] = city === dragged?.city ? [dragged.x, dragged.y] : [problem.x[city], problem.y[city]];
		return [view.screenX(x), view.screenY(y)];
	};
	const ring = (city, size) => {
		context.beginPath();
		disk(context, ...at(city), size);
	};
	if (dragged) {
		const k = tour?.length === problem.n ? tour.indexOf(dragged.city) : -1;
		context.strokeStyle = color;
		context.lineWidth = tourWidth(radius);
		if (k >= 0) trace(context, [tour.at(k - 1), dragged.city, tour[(k + 1) % tour.length]].map(at));
		context.fillStyle = colors.city;
		ring(dragged.city, radius + 1.5);
		context.fill();
	}
	context.strokeStyle = colors.accent;
	context.lineWidth = 2;
	if (selected !== null) {
		ring(selected, radius + 5);
		context.stroke();
	}
	if (cross) {
		const [x, y] = [view.screenX(cross[0]), view.screenY(cross[1])];
		trace(context, [[x - 10, y], [x + 10, y]]);
		trace(context, [[x, y - 10], [x, y + 10]]);
	}
	const named = hovered ?? selected;
	if (named === null) return;
	const [x, y] = at(named);
	const text = problem.label(named);
	context.font = "13px system-ui, sans-serif";
	const width = context.measureText(text).width + 12;
	const left = Math.max(2, Math.min(view.width - width - 2, x - width / 2));
	const top = y > 40 ? y - radius - 32 : y + radius + 10;
	context.fillStyle = colors.city;
	context.fillRect(left, top, width, 22);
	context.fillStyle = colors.paper;
	context.textBaseline = "middle";
	context.fillText(text, left + 6, top + 11.5);
}
