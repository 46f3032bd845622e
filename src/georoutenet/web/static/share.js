// An instance in a link's fragment, which browsers never send to a server.
//
// Coordinates are whole numbers of 10^-d, each as the step from the city before, in groups of seven bits, base64url.

const MOST_CITIES = 1000;
const MOST_DIGITS = 9;
const MOST_IDS = 4000;
const RULES = ["EUCLIDEAN", "GREAT_CIRCLE", "EUC_2D", "CEIL_2D", "ATT", "MAN_2D", "MAX_2D"];

/** The fewest decimals that write all numbers exactly, or null. */
function decimals(values) {
	for (let d = 0; d <= MOST_DIGITS; d++) if (values.every((value) => Number(value.toFixed(d)) === value)) return d;
	return null;
}

export function encode(problem, settings) {
	const parts = new URLSearchParams(settings);
	if (problem.example) {
		parts.set("example", problem.example);
		return { fragment: parts.toString(), note: "The link names the example." };
	}
	if (problem.n > MOST_CITIES || !problem.isEditable) return null;
	const values = problem.coordinates.flat();
	const exact = decimals(values);
	const span = Math.max(problem.box.width, problem.box.height);
	const d = exact ?? Math.max(0, Math.min(MOST_DIGITS, 6 - Math.floor(Math.log10(span))));
	const bytes = [];
	let before = [0, 0];
	for (const pair of problem.coordinates) {
		const now = pair.map((value) => Math.round(value * 10 ** d));
		now.forEach((value, k) => {
			const step = value - before[k];
			let rest = step < 0 ? -2 * step - 1 : 2 * step;
			for (; rest >= 128; rest = Math.floor(rest / 128)) bytes.push(128 + (rest % 128));
			bytes.push(rest);
		});
		before = now;
	}
	parts.set("name", problem.name);
	parts.set("rule", problem.rule);
	parts.set("d", d);
	parts.set("c", btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, ""));
	const ids = problem.ids && JSON.stringify(problem.ids);
	if (ids && ids.length <= MOST_IDS) parts.set("ids", ids);
	const note = exact === null ? "Coordinates are rounded to about a millionth of the map." : "The link holds all cities as they are.";
	return { fragment: parts.toString(), note };
}

/** What a fragment holds: {settings, example} or {settings, fields} of a Problem; null where it is none of ours. */
export function decode(fragment) {
	const parts = new URLSearchParams(fragment.replace(/^#/, ""));
	const settings = Object.fromEntries(parts);
	if (parts.has("example")) return { settings, example: parts.get("example") };
	if (!parts.has("c")) return null;
	const d = Number(parts.get("d"));
	const rule = parts.get("rule");
	if (!Number.isInteger(d) || d < 0 || d > MOST_DIGITS) throw new Error(`${parts.get("d")} decimals`);
	if (!RULES.includes(rule)) throw new Error(`the rule ${rule}`);
	const text = atob(parts.get("c").replaceAll("-", "+").replaceAll("_", "/"));
	const numbers = [];
	for (let k = 0; k < text.length; ) {
		let rest = 0;
		let scale = 1;
		let byte;
		do {
			if (k >= text.length) throw new Error("an end in the middle of a number");
			byte = text.charCodeAt(k++);
			rest += (byte % 128) * scale;
			scale *= 128;
		} while (byte >= 128);
		numbers.push(rest % 2 ? -(rest + 1) / 2 : rest / 2);
	}
	if (numbers.length % 2 || numbers.length > 2 * MOST_CITIES) throw new Error(`${numbers.length} numbers`);
	const coordinates = [];
	let [x, y] = [0, 0];
	for (let k = 0; k < numbers.length; k += 2) {
		x += numbers[k];
		y += numbers[k + 1];
		coordinates.push([Number((x / 10 ** d).toFixed(d)), Number((y / 10 ** d).toFixed(d))]);
	}
	let ids = parts.has("ids") ? JSON.parse(parts.get("ids")) : null;
	if (!Array.isArray(ids) || ids.length !== coordinates.length) ids = null;
	const name = (parts.get("name") ?? "shared cities").slice(0, 100);
	const named = ids && { columns: { name: ids.map(String) }, id_column: "name" };
	return { settings, fields: { name, rule, coordinates, ...named } };
}
