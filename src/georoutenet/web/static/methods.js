// How a tour is found: the choices on the page, as options of `solve`, as words, and as code to copy.

export const FIRST_TOURS = {
  "network-beam": { words: "network, beam", options: { first: "network", decoder: "beam", views: 1 } },
  "network-views": { words: "network, beam in 8 views", options: { first: "network", decoder: "beam", views: 8 } },
  "network-greedy": { words: "network, greedy", options: { first: "network", decoder: "greedy", views: 1 } },
  "greedy-edge": { words: "greedy edge", options: { first: "greedy-edge" } },
  curve: { words: "space-filling curve", options: { first: "curve" } },
};

export const isNetwork = (method) => FIRST_TOURS[method.first].options.first === "network";

/** A method is {first, weights, improve}; with the seconds that it may take it becomes options of `solve`. */
export function options(method, seconds) {
  const chosen = { ...FIRST_TOURS[method.first].options };
  if (isNetwork(method)) chosen.weights = method.weights;
  if (!method.improve) chosen.improve = false;
  return { ...chosen, max_seconds: seconds, seed: 0 };
}

export function describe(method, several) {
  const first = FIRST_TOURS[method.first].words;
  const weights = several && isNetwork(method) ? ` (${method.weights})` : "";
  return `${first}${weights}${method.improve ? " + search" : ""}`;
}

/** What is compared with the first method, by the name of the comparison. */
export const COMPARISONS = {
  off: null,
  edge: (a) => ({ ...a, first: isNetwork(a) ? "greedy-edge" : "network-beam" }),
  weights: (a, weights) => ({
    ...a,
    first: isNetwork(a) ? a.first : "network-beam",
    weights: weights.find((name) => name !== a.weights) ?? a.weights,
  }),
  search: (a) => ({ ...a, improve: !a.improve }),
};

const INLINE = 60;

/** The file of cities that the code below reads, where they are too many to be written out. */
export const citiesFile = (problem) =>
  problem.rule === "EUCLIDEAN" || problem.isDegrees ? "cities.csv" : "cities.tsp";

const python = (value) =>
  typeof value === "boolean" ? (value ? "True" : "False") : JSON.stringify(value);

/** The same in Python. */
export function pythonCode(problem, chosen) {
  const given = Object.entries(chosen).map(([name, value]) => `${name}=${python(value)}`);
  const lines = ["import georoutenet as grn", ""];
  if (problem.n <= INLINE && !problem.ids && problem.isEditable) {
    const rows = problem.coordinates.map((pair) => `[${pair.join(", ")}]`);
    lines.push("cities = grn.Instance(", "    [");
    for (let k = 0; k < rows.length; k += 4) lines.push(`        ${rows.slice(k, k + 4).join(", ")},`);
    lines.push("    ],", `    rule="${problem.rule}",`, ")");
  } else {
    lines.push(`cities = grn.read_instance("${citiesFile(problem)}")`);
  }
  lines.push(`result = grn.solve(cities, ${given.join(", ")})`);
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
    "NODE_COORD_SECTION",
    ...problem.coordinates.map(([x, y], i) => `${i + 1} ${x} ${y}`),
    "EOF",
    "",
  ].join("\n");
}
