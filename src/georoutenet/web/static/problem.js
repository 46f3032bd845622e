// Cities, the rule of their distances, and where they are drawn. A problem never changes: edits make new ones.

const DEGREES = "GREAT_CIRCLE";
// Coordinates of GEO are degrees and minutes in one number, those of EXPLICIT have no part in distances.
const NOT_EDITABLE = new Set(["GEO", "EXPLICIT"]);
export const UNIT_SQUARE = { x: 0, y: 0, width: 1, height: 1 };

/** How degrees become a flat picture: a cylinder true at the middle latitude, cut at the widest gap of longitudes. */
function chartFor(coordinates) {
  if (coordinates.length === 0) return { middle: -96, scale: 0.78 };
  const sorted = coordinates.map((each) => each[1]).sort((a, b) => a - b);
  let gap = sorted[0] + 360 - sorted[sorted.length - 1];
  let west = sorted[0];
  for (let i = 1; i < sorted.length; i++) {
    if (sorted[i] - sorted[i - 1] > gap) {
      gap = sorted[i] - sorted[i - 1];
      west = sorted[i];
    }
  }
  let lowest = 90;
  let highest = -90;
  for (const [latitude] of coordinates) {
    lowest = Math.min(lowest, latitude);
    highest = Math.max(highest, latitude);
  }
  const scale = Math.max(0.1, Math.cos((((lowest + highest) / 2) * Math.PI) / 180));
  return { middle: west + (360 - gap) / 2, scale };
}

const around = (degrees) => ((((degrees + 180) % 360) + 360) % 360) - 180;

export class Problem {
  /** `optimum` and `example` hold only while the cities are as they came. `plane` is the server's drawing. */
  constructor({ name, rule = "EUCLIDEAN", coordinates, ids = null, optimum = null, example = null, ...drawing }) {
    Object.assign(this, { name, rule, coordinates, ids, optimum, example });
    this.n = coordinates.length;
    this.isDegrees = rule === DEGREES;
    this.isEditable = !NOT_EDITABLE.has(rule);
    this.unit = this.isDegrees ? "km" : "";
    this.chart = drawing.chart ?? (this.isDegrees ? chartFor(coordinates) : null);
    this.plane = this.isEditable ? null : (drawing.plane ?? coordinates);
    this.x = new Float64Array(this.n);
    this.y = new Float64Array(this.n);
    for (let i = 0; i < this.n; i++) [this.x[i], this.y[i]] = this.plane ? this.plane[i] : this.drawn(coordinates[i]);
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
    let [left, right, bottom, top] = [Infinity, -Infinity, Infinity, -Infinity];
    for (let i = 0; i < this.n; i++) {
      left = Math.min(left, this.x[i]);
      right = Math.max(right, this.x[i]);
      bottom = Math.min(bottom, this.y[i]);
      top = Math.max(top, this.y[i]);
    }
    const least = Math.max(right - left, top - bottom) * 0.05 || Math.abs(left) * 0.1 || 1;
    const width = Math.max(right - left, least);
    const height = Math.max(top - bottom, least);
    return { x: (left + right - width) / 2, y: (bottom + top - height) / 2, width, height };
  }

  edited(coordinates, ids) {
    const { name, rule, chart, box } = this;
    return new Problem({ name, rule, chart, box, coordinates, ids });
  }

  /** With a city at each of some places of the drawing. */
  withCities(places) {
    const ids = this.ids && [...this.ids];
    for (let number = this.n + 1; ids && ids.length < this.n + places.length; number++) {
      if (!ids.includes(`new ${number}`)) ids.push(`new ${number}`);
    }
    return this.edited([...this.coordinates, ...places.map(([x, y]) => this.coordinatesAt(x, y))], ids);
  }

  withCityAt(city, x, y) {
    const coordinates = this.coordinates.slice();
    coordinates[city] = this.coordinatesAt(x, y);
    return this.edited(coordinates, this.ids);
  }

  without(city) {
    const rest = (values) => values.filter((_, i) => i !== city);
    return this.edited(rest(this.coordinates), this.ids && rest(this.ids));
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

  /** What requests call the instance. */
  get body() {
    const { name, rule, coordinates, ids } = this;
    return ids ? { name, rule, coordinates, ids } : { name, rule, coordinates };
  }
}

/** The tour with a new last city where it lengthens the drawing least. */
export function insertLast(tour, problem) {
  const city = problem.n - 1;
  const { x, y } = problem;
  const distance = (i, j) => Math.hypot(x[i] - x[j], y[i] - y[j]);
  let best = 0;
  let least = Infinity;
  for (let k = 0; k < tour.length; k++) {
    const [i, j] = [tour[k], tour[(k + 1) % tour.length]];
    const longer = distance(i, city) + distance(city, j) - distance(i, j);
    if (longer < least) [best, least] = [k + 1, longer];
  }
  return Int32Array.of(...tour.slice(0, best), city, ...tour.slice(best));
}

export const takeOut = (tour, city) =>
  Int32Array.from([...tour].filter((each) => each !== city), (each) => (each > city ? each - 1 : each));
