// Random cities by shape and seed.

/** Uniform numbers in [0, 1): a 32-bit counter, mixed. */
export function generator(seed) {
	let state = seed >>> 0;
	return () => {
		state = (state + 0x9e3779b9) >>> 0;
		let mixed = Math.imul(state ^ (state >>> 16), 0x85ebca6b);
		mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35);
		return ((mixed ^ (mixed >>> 16)) >>> 0) / 2 ** 32;
	};
}

function gaussian(random) {
	const radius = Math.sqrt(-2 * Math.log(1 - random()));
	const angle = 2 * Math.PI * random();
	return [radius * Math.cos(angle), radius * Math.sin(angle)];
}

const SHAPES = {
	uniform: (n, random) => Array.from({ length: n }, () => [random(), random()]),

	clustered(n, random) {
		const centers = Array.from({ length: 3 + Math.floor(6 * random()) }, () => [0.1 + 0.8 * random(), 0.1 + 0.8 * random()]);
		return Array.from({ length: n }, () => {
			const [x, y] = centers[Math.floor(centers.length * random())];
			const [dx, dy] = gaussian(random);
			return [x + 0.06 * dx, y + 0.06 * dy];
		});
	},

	grid(n, random) {
		const side = Math.ceil(Math.sqrt(2 * n));
		const crossings = Array.from({ length: side * side }, (_, k) => k);
		for (let k = 0; k < n; k++) {
			const other = k + Math.floor((crossings.length - k) * random());
			[crossings[k], crossings[other]] = [crossings[other], crossings[k]];
		}
		return crossings.slice(0, n).map((k) => [(Math.floor(k / side) + 0.5) / side, ((k % side) + 0.5) / side]);
	},

	ring(n, random) {
		const radius = 0.25 + 0.15 * random();
		return Array.from({ length: n }, () => {
			const angle = 2 * Math.PI * random();
			const distance = radius + 0.05 * gaussian(random)[0];
			return [0.5 + distance * Math.cos(angle), 0.5 + distance * Math.sin(angle)];
		});
	},

	spiral(n, random) {
		return Array.from({ length: n }, () => {
			const along = Math.sqrt(random());
			const [dx, dy] = gaussian(random);
			const angle = 6 * Math.PI * along;
			return [0.5 + 0.45 * along * Math.cos(angle) + 0.008 * dx, 0.5 + 0.45 * along * Math.sin(angle) + 0.008 * dy];
		});
	},
};

export const SHAPE_NAMES = Object.keys(SHAPES);

/** What leaves the unit square is folded back; four decimals keep links short. */
export function randomCities(shape, n, seed) {
	const fold = (value) => Number((1 - Math.abs(1 - (((value % 2) + 2) % 2))).toFixed(4));
	return SHAPES[shape](n, generator(seed)).map(([x, y]) => [fold(x), fold(y)]);
}
