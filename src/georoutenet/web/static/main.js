// The page: holds the parts together.

import { get, readInstance } from "./api.js";
import { Dock } from "./dock.js";
import { Editor } from "./edit.js";
import { options } from "./methods.js";
import { Opinions, Pane } from "./pane.js";
import { Panel, byId } from "./panel.js";
import { Problem, UNIT_SQUARE, insertLast, takeOut } from "./problem.js";
import { randomCities } from "./random.js";
import { Player, Run } from "./runs.js";
import { decode } from "./share.js";
import { Store } from "./store.js";
import { TakeAway } from "./takeaway.js";
import { View } from "./view.js";
import { formatCount } from "./words.js";

const LIVE_CITIES = 200; // up to so many, page and network keep up with a dragged city
const LIVE_SECONDS = 0.25;
const FORMATS = ["tsp", "csv", "tsv", "txt", "json", "geojson"];

const empty = () => new Problem({ name: "my cities", coordinates: [], box: UNIT_SQUARE });
const store = new Store(empty());
const view = new View();
const player = new Player();
const panes = [new Pane(byId("pane-a"), "accent"), new Pane(byId("pane-b"), "tour-b")];
const systemDark = matchMedia("(prefers-color-scheme: dark)");
let colors = {};
let limits = { cities: 5000, seconds: 10, searches: 1, body_bytes: Infinity };
let examples = [];
let runs = [];

// What is seen.

let [isScheduled, isDockStale, fitted] = [false, true, null];

function changed() {
	if (!isScheduled) requestAnimationFrame(render);
	isScheduled = true;
}

function moved() {
	isDockStale = true;
	changed();
}

const shownPanes = () => panes.filter((pane) => !pane.figure.hidden);

function scene(pane) {
	const { problem } = store;
	const { scores, color } = pane;
	const { threshold, shows } = panel;
	const { tour, before } = pane.tourAt(player.seconds, !player.isPlaying);
	return { problem, view, colors, scores, threshold, shows, tour, before, color: colors[color], without: editor.dragged?.city ?? null };
}

function fit() {
	const { clientWidth: width, clientHeight: height } = panes[0].canvas;
	const { box } = store.problem;
	if (width !== view.width || height !== view.height || fitted !== box) view.fit((fitted = box), width, height);
}

function render() {
	isScheduled = false;
	fit();
	const { problem } = store;
	for (const pane of shownPanes()) pane.draw(scene(pane), editor);
	byId("delete").hidden = editor.selected === null;
	if (!isDockStale) return;
	isDockStale = false;
	byId("hint").hidden = problem.n > 0;
	byId("undo").disabled = store.past.length === 0;
	byId("redo").disabled = store.future.length === 0;
	byId("solve").textContent = runs.some((run) => run.isRunning && !run.isLive) ? "Stop" : "Solve";
	document.body.classList.toggle("thinks", shownPanes().some((pane) => pane.wanted));
	dock.draw({ problem, panes: shownPanes(), colors, shows: panel.shows });
}

const isDark = () => (document.documentElement.dataset.theme ?? (systemDark.matches ? "dark" : "light")) === "dark";

/** The style sheet's own colors, for the canvas. */
function readColors() {
	colors = {};
	for (const name of document.styleSheets[0].cssRules[0].style) {
		if (!name.startsWith("--")) continue;
		byId("hint").style.color = `var(${name})`;
		colors[name.slice(2)] = getComputedStyle(byId("hint")).color;
	}
	byId("hint").style.color = "";
	byId("theme").setAttribute("aria-pressed", isDark());
	moved();
}

function showAlert(error) {
	byId("alert").hidden = false;
	byId("alert").firstElementChild.textContent = error.message ?? error;
}

const hideAlert = () => (byId("alert").hidden = true);

// What is solved.

const stop = () => runs.forEach((run) => run.stop());

/** Run each method on the page, side by side where the server can. */
async function solve(problem = store.problem, isLive = false) {
	if (problem.n < 2) return;
	stop();
	if (problem.n > limits.cities) {
		const [n, most] = [problem.n, limits.cities].map(formatCount);
		return showAlert(`There are ${n} cities; this server solves up to ${most}. \`georoutenet solve\` has no such limit.`);
	}
	if (!isLive) hideAlert();
	const seconds = isLive ? Math.min(LIVE_SECONDS, panel.seconds) : panel.seconds;
	const started = panel.methods.map((method) => new Run(problem, method, options(method, seconds)));
	panes.forEach((pane, k) => {
		pane.carried = pane.tourAt(player.seconds).tour;
		pane.run = started[k] ?? null;
	});
	runs = started;
	for (const run of runs) {
		run.isLive = isLive;
		run.addEventListener("bound", moved);
		run.addEventListener("end", moved);
	}
	player.isPlaying = true;
	player.show(runs);
	if (limits.searches > 1) await Promise.all(started.map((run) => run.start()));
	else for (const run of started) if (!run.controller.signal.aborted) await run.start();
	const { error } = started.find((run) => run.error && !(isLive && run.error.status === 429)) ?? {};
	if (error) showAlert(error);
	moved();
}

let [isLiveBusy, next] = [false, null];

/** While cities are drawn: always the latest problem, one at a time. */
async function solveLive(problem) {
	next = byId("live").checked && problem.n <= LIVE_CITIES ? problem : null;
	if (isLiveBusy) return;
	isLiveBusy = true;
	while (next) {
		const latest = next;
		next = null;
		await solve(latest, true);
	}
	isLiveBusy = false;
}

function think(problem = store.problem, isDragging = false) {
	const isShown = (panel.shows.edges || panel.shows.start) && problem.n <= limits.cities;
	panes.forEach((pane, k) => {
		const method = panel.methods[k];
		opinions.want(pane, method && isShown ? { problem, weights: method.weights } : null, isDragging);
	});
}

store.addEventListener("change", ({ detail: { kind, city } }) => {
	const { problem } = store;
	fit();
	stop();
	for (const pane of panes) {
		let { tour } = pane.tourAt(player.seconds);
		if (tour && kind === "add") tour = insertLast(tour, problem);
		else if (tour && kind === "remove") tour = takeOut(tour, city);
		pane.carried = tour?.length === problem.n && kind !== "new" ? tour : null;
		pane.run = null;
	}
	player.show([]);
	editor.reset(kind === "new");
	if (location.hash && !problem.isShared) history.replaceState(null, "", location.pathname + location.search);
	byId("example").value = problem.example ?? "";
	think();
	solveLive(problem);
	moved();
});

// Where cities come from.

function takeRandom() {
	const [shape, n, seed] = [byId("shape").value, panel.size, Math.floor(Math.random() * 1e6)];
	store.commit(new Problem({ name: `${shape} ${n}, seed ${seed}`, coordinates: randomCities(shape, n, seed), box: UNIT_SQUARE }));
}

async function takeExample(name) {
	const fields = await get(`examples/${encodeURIComponent(name)}`);
	const about = examples.find((each) => each.name === name);
	store.commit(new Problem({ ...fields, optimum: about?.optimum ?? null, example: name }));
}

async function takeFile(file) {
	const [, stem, ending] = /^(.*?)\.?([^.]*)$/.exec(file.name);
	const format = ending.toLowerCase();
	try {
		if (!FORMATS.includes(format)) throw new Error(`files of cities end in ${FORMATS.map((each) => `.${each}`).join(", ")}`);
		if (file.size > limits.body_bytes) throw new Error(`${formatCount(file.size)} bytes; this server reads up to ${formatCount(limits.body_bytes)}`);
		const fields = await readInstance(file, format);
		if (!fields.coordinates) throw new Error("distances without coordinates cannot be drawn; `georoutenet solve` takes them");
		store.commit(new Problem({ ...fields, name: format === "tsp" ? fields.name : stem }));
		hideAlert();
	} catch (error) {
		showAlert(`${file.name}: ${error.message}`);
	}
}

/** What the address holds, if it holds something. */
async function takeLink() {
	try {
		const shared = decode(location.hash);
		if (!shared) return false;
		panel.apply(shared.settings);
		if (shared.example) await takeExample(shared.example);
		else store.commit(Object.assign(new Problem(shared.fields), { isShared: true }));
		return true;
	} catch (error) {
		showAlert(`This link cannot be read: ${error.message}`);
		return false;
	}
}

// The parts.

const opinions = new Opinions({ changed: moved, failed: showAlert });
const editor = new Editor(store, view, {
	changed,
	dragging({ city, x, y }) {
		if (store.problem.n > LIVE_CITIES) return;
		const problem = store.problem.withCityAt(city, x, y);
		think(problem, true);
		solveLive(problem);
	},
	say: (text) => (byId("status").textContent = text),
	refuse: showAlert,
});
const dock = new Dock(player);
const panel = new Panel(() => {
	panes[1].figure.hidden = !panel.compares;
	think();
	moved();
});
new TakeAway(() => {
	const scenes = shownPanes().map(scene);
	return { ...scenes[0], scenes, options: options(panel.method("a"), panel.seconds), settings: panel.settings };
}, showAlert);

for (const pane of panes) editor.attach(pane.canvas);
player.addEventListener("move", moved);
for (const id of ["panes", "chart"]) new ResizeObserver(moved).observe(byId(id));
systemDark.addEventListener("change", readColors);

const on = (id, handler, name = "click") => byId(id).addEventListener(name, handler);
on("undo", () => store.undo());
on("redo", () => store.redo());
on("theme", () => {
	document.documentElement.dataset.theme = isDark() ? "light" : "dark";
	readColors();
});
on("help", () => byId("help-dialog").showModal());
on("random", takeRandom);
on("size", takeRandom, "change");
on("shape", takeRandom, "change");
on("example", ({ target }) => target.value && takeExample(target.value).catch(showAlert), "change");
on("open", () => byId("file").click());
on("file", ({ target }) => takeFile(target.files[0]).then(() => (target.value = "")), "change");
on("clear", () => store.commit(empty()));
on("fit", () => {
	view.fit(store.problem.bounds(), view.width, view.height);
	changed();
});
on("delete", () => editor.remove(editor.selected));
on("solve", () => (byId("solve").textContent === "Stop" ? stop() : solve()));
on("live", () => solveLive(store.problem), "change");
byId("alert").lastElementChild.addEventListener("click", hideAlert);
const tools = [...document.querySelectorAll("[data-tool]")];
for (const tool of tools) {
	tool.addEventListener("click", () => {
		editor.tool = tool.dataset.tool;
		for (const each of tools) each.setAttribute("aria-pressed", each === tool);
	});
}

document.addEventListener("keydown", (event) => {
	const key = event.ctrlKey || event.metaKey ? `^${event.key.toLowerCase()}` : event.key;
	if (document.querySelector("dialog[open]")) return;
	if (key === "^y" || (key === "^z" && event.shiftKey)) store.redo();
	else if (key === "^z") store.undo();
	else if (key === "^enter") byId("solve").click();
	else if (key === " " && !event.target.closest("button, input, select")) byId("play").click();
	else return;
	event.preventDefault();
});
const setDropping = (event, isDropping) => {
	event.preventDefault();
	document.body.classList.toggle("drops", isDropping);
};
document.addEventListener("dragover", (event) => setDropping(event, true));
document.addEventListener("dragleave", (event) => setDropping(event, event.relatedTarget !== null));
document.addEventListener("drop", (event) => {
	setDropping(event, false);
	if (event.dataTransfer.files.length) takeFile(event.dataTransfer.files[0]);
});
addEventListener("hashchange", takeLink);

// For the curious, and for tests.
window.playground = { store, view, player, panes, editor, panel };

readColors();
panel.refresh();
// The first picture waits for none of these but the examples: the weights' description comes when the network is loaded.
get("limits").then((answer) => panel.setLimits((limits = answer)), showAlert);
get("weights").then((answer) => panel.setWeights(answer), showAlert);
await get("examples").then((answer) => panel.setExamples((examples = answer)), showAlert);
if (!(await takeLink()) && examples.length && store.problem.n === 0) await takeExample(examples[0].name).catch(showAlert);
store.past = [];
moved();
