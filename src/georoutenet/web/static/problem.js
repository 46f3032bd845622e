// Cities, the rule of their distances, and where they are drawn. A problem never changes: edits make new ones.

const DEGREES = "GREAT_CIRCLE";
// Coordinates of GEO are degrees and minutes in one number, those of EXPLICIT have no part in distances.
const NOT_EDITABLE = new Set(["GEO", "EXPLICIT"]);
export const UNIT_SQUARE = { x: 0, y: 0, width: 1, height: 1 };

/** How degrees become a flat picture: a cylinder true at the middle latitude, cut at the widest gap of longitudes. */
function chartFor(coordinates) {
	if (coordinates.length === 0) return { middle: -96, scale: 0.78 };
	const [latitudes, longitudes] = [0, 1].map((k) => coordinates.map((pair) => pair[k]).sort((a, b) => a - b));
	const gaps = longitudes.map((each, k) => (k ? each - longitudes[k - 1] : each + 360 - longitudes.at(-1)));
	const gap = Math.max(...gaps);
	const middle = longitudes[gaps.indexOf(gap)] + (360 - gap) / 2;
	return { middle, scale: Math.max(0.1, Math.cos(((latitudes[0] + latitudes.at(-1)) * Math.PI) / 360)) };
}

const around = (degrees) => ((((degrees + 180) % 360) + 360) % 360) - 180;

export class Problem {
	/**
	 * `columns` are what else is known of each city, `id_column` the one that names them. `optimum` and `example` hold
	 * only while the cities are as they came. `plane` is the server's drawing.
	 */
	constructor({ name, rule = "EUCLIDEAN", coordinates, columns = {}, id_column = null, ...rest }) {
		const { matrix = null, optimum = null, example = null, ...drawing } = rest;
		Object.assign(this, { name, rule, coordinates, columns, id_column, matrix, optimum, example });
		this.ids = id_column === null ? null : columns[id_column];
		this.n = coordinates.length;
		this.isDegrees = rule === DEGREES;
		this.isEditable = !NOT_EDITABLE.has(rule);
		this.unit = this.isDegrees ? "km" : "";
		this.chart = drawing.chart ?? (this.isDegrees ? chartFor(coordinates) : null);
		this.plane = this.isEditable ? null : (drawing.plane ?? coordinates);
		this.x = new Float64Array(this.n);
		this.y = new Float64Array(this.n);
		coordinates.forEach((pair, i) => ([this.x[i], this.y[i]] = this.plane?.[i] ?? this.drawn(pair)));
		this.box = drawing.box ?? this.bounds();
	}

	/** Where coordinates are drawn. */
	drawn([a, b]) {
		return this.isDegrees ? [around(b - this.chart.middle) * this.chart.scale, a] : [a, b];
	}

	/** Coordinates of a place in the drawing, rounded to about a ten-thousandth of what is seen. */
	coordinatesAt(x, y) {
		const span = Math.max(this.box.width, this.box.height);
		const digits = Math.min(9, Math.max(0, 4 - Math.floor(Math.log10(span))));
		const round = (value) => Number(value.toFixed(digits));
		if (!this.isDegrees) return [round(x), round(y)];
		return [round(Math.max(-90, Math.min(90, y))), round(around(x / this.chart.scale + this.chart.middle))];
	}

	bounds() {
		if (this.n === 0) return UNIT_SQUARE;
		const [left, right] = [Math.min(...this.x), Math.max(...this.x)];
		const [bottom, top] = [Math.min(...this.y), Math.max(...this.y)];
		const least = Math.max(right - left, top - bottom) * 0.05 || Math.abs(left) * 0.1 || 1;
		const width = Math.max(right - left, least);
		const height = Math.max(top - bottom, least);
		return { x: (left + right - width) / 2, y: (bottom + top - height) / 2, width, height };
	}

	/** Other cities, and what `change` makes of each column. */
	edited(coordinates, change) {
		const { name, rule, chart, box, id_column } = this;
		const columns = Object.fromEntries(Object.entries(this.columns).map(([key, values]) => [key, change(values, key)]));
		return new Problem({ name, rule, chart, box, id_column, coordinates, columns });
	}

	/** With a city at a place of the drawing. */
	withCity(x, y) {
		let number = this.n + 1;
		while (this.ids?.includes(`new ${number}`)) number++;
		const added = (values, key) => [...values, key === this.id_column ? `new ${number}` : null];
		return this.edited([...this.coordinates, this.coordinatesAt(x, y)], added);
	}

	withCityAt(city, x, y) {
		const coordinates = this.coordinates.slice();
		coordinates[city] = this.coordinatesAt(x, y);
		return this.edited(coordinates, (values) => values);
	}

	without(city) {
		const rest = (values) => values.filter((_, i) => i !== city);
		return this.edited(rest(this.coordinates), rest);
	}

	/** The nearest city within a distance of the drawing, or null. */
	nearest(x, y, within) {
		let best = null;
		let least = within * within;
		for (let i = 0; i < this.n; i++) {
			const distance = (this.x[i] - x) ** 2 + (this.y[i] - y) ** 2;
			if (distance <= least) [best, least] = [i, distance];
		}
		return best;
	}

	label(city) {
		return this.ids ? String(this.ids[city]) : `city ${city}`;
	}

	/** What requests say of the instance. */
	get body() {
		const { name, rule, coordinates, columns, id_column, matrix } = this;
		return { name, rule, coordinates, columns, id_column, matrix };
	}
}

/** The tour with a new last city where it lengthens the drawing least. */
export function insertLast(tour, { n, x, y }) {
	const distance = (i, j) => Math.hypot(x[i] - x[j], y[i] - y[j]);
	const longer = Array.from(tour, (i, k) => {
		const j = tour[(k + 1) % tour.length];
		return distance(i, n - 1) + distance(n - 1, j) - distance(i, j);
	});
	const at = longer.indexOf(Math.min(...longer)) + 1;
	return Int32Array.of(...tour.slice(0, at), n - 1, ...tour.slice(at));
}

export const takeOut = (tour, city) => tour.filter((each) => each !== city).map((each) => each - (each > city));
