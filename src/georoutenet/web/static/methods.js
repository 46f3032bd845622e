// How a tour is found: the choices on the page, as options of `solve`, as words, and as code to copy.

export const FIRST_TOURS = {
	"network-greedy": { words: "network, greedy", options: { first: "network", decoder: "greedy", views: 1 } },
	"network-beam": { words: "network, beam", options: { first: "network", decoder: "beam", views: 1 } },
	"network-views": { words: "network, beam in 8 views", options: { first: "network", decoder: "beam", views: 8 } },
	"greedy-edge": { words: "greedy edge", options: { first: "greedy-edge" } },
	curve: { words: "space-filling curve", options: { first: "curve" } },
};

export const isNetwork = (method) => FIRST_TOURS[method.first].options.first === "network";

/** A method is {first, weights, improve}; with the seconds that it may take it becomes options of `solve`. */
export function options({ first, weights, improve }, seconds) {
	const chosen = { ...FIRST_TOURS[first].options };
	if (chosen.first === "network" && weights !== "georoutenet") chosen.weights = weights;
	if (!improve) chosen.improve = false;
	return { ...chosen, max_seconds: seconds };
}

const asNetwork = (method) => (isNetwork(method) ? method : { ...method, first: "network-greedy" });

/** Both methods of a comparison, by its name. */
export const COMPARISONS = {
	off: (a) => [a, a],
	edge: (a) => [asNetwork(a), { ...a, first: "greedy-edge" }],
	weights: (a, weights) => [asNetwork(a), { ...asNetwork(a), weights: weights.find((name) => name !== a.weights) }],
	search: (a) => [{ ...a, improve: true }, { ...a, improve: false }],
};

const INLINE = 60;

/** The file of cities that the code below reads, where they are too many to be written out. */
export const citiesFile = (problem) =>
	problem.rule === "EUCLIDEAN" || problem.isDegrees ? "cities.csv" : "cities.tsp";

const python = (value) =>
	typeof value === "boolean" ? (value ? "True" : "False") : JSON.stringify(value);

/** The same in Python. */
export function pythonCode(problem, chosen) {
	const given = Object.entries(chosen).map(([name, value]) => `    ${name}=${python(value)},`);
	const lines = ["import georoutenet as grn", ""];
	if (problem.n <= INLINE && !problem.ids && problem.isEditable) {
		const rows = problem.coordinates.map((pair) => `[${pair.join(", ")}]`);
		lines.push("cities = grn.Instance(", "    [");
		for (let k = 0; k < rows.length; k += 4) lines.push(`        ${rows.slice(k, k + 4).join(", ")},`);
		lines.push("    ],", `    rule="${problem.rule}",`, ")");
	} else {
		lines.push(`cities = grn.read_instance("${citiesFile(problem)}")`);
	}
	lines.push("result = grn.solve(", "    cities,", ...given, ")");
	lines.push("print(result.length, result.lower_bound)", 'result.save("cities.tour")', "");
	return lines.join("\n");
}

/** The same on the command line. */
export function commandLine(problem, chosen) {
	const words = Object.entries(chosen).map(([name, value]) => {
		const option = name.replaceAll("_", "-");
		return typeof value === "boolean" ? `--${value ? "" : "no-"}${option}` : `--${option} ${value}`;
	});
	return `georoutenet solve ${citiesFile(problem)} ${words.join(" ")} --output cities.tour\n`;
}

const cell = (value) => (/[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);

/** The cities as a file that `read_instance` reads: a table, or under TSPLIB's rules a .tsp file. */
export function citiesText(problem) {
	if (citiesFile(problem) === "cities.csv") {
		const header = problem.isDegrees ? "lat,lon" : "x,y";
		const rows = problem.coordinates.map((pair, i) => (problem.ids ? `${cell(String(problem.ids[i]))},${pair}` : `${pair}`));
		return [problem.ids ? `name,${header}` : header, ...rows, ""].join("\n");
	}
	return [
		`NAME : ${problem.name.replace(/[^\w. -]/g, "_")}`,
		"TYPE : TSP",
		`DIMENSION : ${problem.n}`,
		`EDGE_WEIGHT_TYPE : ${problem.rule}`,
		...(problem.matrix ? ["EDGE_WEIGHT_FORMAT : FULL_MATRIX", "DISPLAY_DATA_TYPE : TWOD_DISPLAY"] : []),
		...(problem.matrix ? ["EDGE_WEIGHT_SECTION", ...problem.matrix.map((row) => row.join(" "))] : []),
		problem.matrix ? "DISPLAY_DATA_SECTION" : "NODE_COORD_SECTION",
		...problem.coordinates.map(([x, y], i) => `${i + 1} ${x} ${y}`),
		"EOF",
		"",
	].join("\n");
}
