// The page: holds the parts together. Nothing here talks to the server but through api.js.

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

const LIVE_CITIES = 200;
const LIVE_SECONDS = 0.15;
const FORMATS = { tsp: "tsp", csv: "csv", txt: "csv", tsv: "tsv", json: "json", geojson: "geojson" };
const COLORS = ["paper", "city", "muted", "frame", "land", "coast", "accent", "probability", "start", "added", "removed", "bound", "tour-a", "tour-b"];

const empty = () => new Problem({ name: "my cities", coordinates: [], box: UNIT_SQUARE });
const store = new Store(empty());
const view = new View();
const player = new Player();
const panes = [new Pane(byId("pane-a"), "tour-a"), new Pane(byId("pane-b"), "tour-b")];
let colors = {};
let limits = { cities: 5000, seconds: 10, searches: 1, body_bytes: Infinity };
let examples = [];
let runs = [];
let lockedView = null;

// What is seen.

let isScheduled = false;
let isDockStale = true;

function changed() {
  if (isScheduled) return;
  isScheduled = true;
  requestAnimationFrame(render);
}

function moved() {
  isDockStale = true;
  changed();
}

function scene(pane) {
  const { tour, before } = pane.tourAt(player.seconds, !player.isPlaying);
  return {
    problem: store.problem, view, colors, scores: pane.scores, threshold: panel.threshold, shows: panel.shows,
    tour, before, color: colors[pane.color], without: editor.dragged?.city ?? null,
  };
}

function render() {
  isScheduled = false;
  const { clientWidth: width, clientHeight: height } = panes[0].canvas;
  if (width !== view.width || height !== view.height || lockedView !== store.problem.box) {
    view.fit(store.problem.box, width, height);
    lockedView = store.problem.box;
  }
  const shown = panes.filter((pane) => pane.isShown);
  for (const pane of shown) pane.draw(scene(pane), editor);
  byId("delete").hidden = editor.selected === null;
  if (!isDockStale) return;
  isDockStale = false;
  byId("hint").hidden = store.problem.n > 0;
  byId("undo").disabled = store.past.length === 0;
  byId("redo").disabled = store.future.length === 0;
  byId("solve").textContent = runs.some((run) => run.isRunning && !run.isLive) ? "Stop" : "Solve";
  byId("thinking").textContent = shown.some((pane) => opinions.isThinking(pane)) ? "asking the network…" : "";
  dock.draw({ problem: store.problem, panes: shown, colors, shows: panel.shows, several: panel.weights.length > 1 });
}

function readColors() {
  const probe = byId("hint");
  colors = {};
  for (const name of COLORS) {
    probe.style.color = `var(--${name === "city" ? "ink" : name})`;
    colors[name] = getComputedStyle(probe).color;
  }
  probe.style.color = "";
  byId("theme").setAttribute("aria-pressed", isDark());
  moved();
}

const systemDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (systemDark.matches ? "dark" : "light")) === "dark";

function alertReader(error) {
  console.warn(error);
  byId("alert").hidden = false;
  byId("alert").firstElementChild.textContent = error.message ?? error;
}

const hideAlert = () => (byId("alert").hidden = true);

// What is solved.

function stop() {
  for (const run of runs) run.stop();
}

/** Run each method on the page; searches side by side share the machine, so one after the other where it is small. */
async function solve(problem = store.problem, isLive = false) {
  if (problem.n < 2) return;
  stop();
  if (problem.n > limits.cities) {
    alertReader(`This server solves up to ${formatCount(limits.cities)} cities; there are ${formatCount(problem.n)}. On your own machine \`georoutenet solve\` has no such limit.`);
    return;
  }
  if (!isLive) hideAlert();
  const seconds = isLive ? Math.min(LIVE_SECONDS, panel.seconds) : panel.seconds;
  const started = panel.methods.map((method) => new Run(problem, method, options(method, seconds)));
  runs = started;
  panes.forEach((pane, k) => {
    pane.carried = pane.tourAt(player.seconds).tour;
    pane.run = started[k] ?? null;
  });
  player.isPlaying = true;
  player.show(started);
  for (const run of started) {
    run.isLive = isLive;
    run.addEventListener("bound", moved);
    run.addEventListener("end", moved);
  }
  if (limits.searches > 1) await Promise.all(started.map((run) => run.start()));
  else for (const run of started) if (!run.controller.signal.aborted) await run.start();
  const failed = started.find((run) => run.error && !(isLive && run.error.status === 429));
  if (failed) alertReader(failed.error);
  moved();
}

let isLiveBusy = false;
let next = null;

/** While cities are drawn: always the latest problem, one at a time. */
async function solveLive(problem) {
  if (!byId("live").checked || problem.n < 2 || problem.n > LIVE_CITIES) return;
  next = problem;
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
  const wants = (panel.shows.edges || panel.shows.start) && problem.n <= limits.cities;
  panes.forEach((pane, k) => {
    const method = panel.methods[k];
    if (!isDragging || wants) opinions.want(pane, method && wants ? { problem, weights: method.weights } : null, isDragging);
  });
}

store.addEventListener("change", ({ detail }) => {
  const { problem } = store;
  stop();
  for (const pane of panes) {
    let { tour } = pane.tourAt(player.seconds);
    if (tour && detail.kind === "add") tour = insertLast(tour, problem);
    else if (tour && detail.kind === "remove") tour = takeOut(tour, detail.city);
    pane.carried = tour && tour.length === problem.n && detail.kind !== "new" ? tour : null;
    pane.run = null;
  }
  player.show([]);
  editor.reset();
  if (detail.kind === "new") editor.select(null);
  if (detail.refit) lockedView = null;
  if (location.hash && problem.example === null) history.replaceState(null, "", location.pathname + location.search);
  if (!problem.example) byId("example").value = "";
  think();
  solveLive(problem);
  moved();
});

// Where cities come from.

function takeRandom() {
  const [shape, n] = [byId("shape").value, panel.size];
  byId("size").value = n;
  const seed = Math.floor(Math.random() * 1e6);
  store.commit(new Problem({ name: `${shape} ${n} (seed ${seed})`, coordinates: randomCities(shape, n, seed), box: UNIT_SQUARE }));
}

async function takeExample(name) {
  const fields = await get(`examples/${encodeURIComponent(name)}`);
  const about = examples.find((each) => each.name === name);
  store.commit(new Problem({ ...fields, name: fields.name ?? name, optimum: about?.optimum ?? fields.optimum ?? null, example: name }));
  byId("example").value = name;
}

async function takeFile(file) {
  const [, stem, ending] = /^(.*?)(?:\.([^.]*))?$/.exec(file.name);
  const format = FORMATS[ending?.toLowerCase()];
  if (!format) throw new Error(`${file.name}: files of cities end in ${Object.keys(FORMATS).map((each) => `.${each}`).join(", ")}.`);
  if (file.size > limits.body_bytes) throw new Error(`${file.name} has ${formatCount(file.size)} bytes; this server reads up to ${formatCount(limits.body_bytes)}.`);
  try {
    const fields = await readInstance(file, format);
    store.commit(new Problem({ ...fields, name: format === "tsp" ? (fields.name ?? stem) : stem }));
    hideAlert();
  } catch (error) {
    throw new Error(`${file.name}: ${error.message}`);
  }
}

async function takeLink() {
  const shared = decode(location.hash);
  if (!shared) return false;
  panel.apply(shared.settings);
  if (shared.example) await takeExample(shared.example);
  else {
    const { hash } = location;
    store.commit(new Problem(shared.fields));
    history.replaceState(null, "", hash);
  }
  return true;
}

// The parts.

const opinions = new Opinions({ changed: moved, failed: alertReader });
const editor = new Editor(store, view, {
  changed,
  dragging({ city, x, y }) {
    if (store.problem.n > LIVE_CITIES) return;
    const problem = store.problem.withCityAt(city, x, y);
    think(problem, true);
    solveLive(problem);
  },
  say: (text) => (byId("status").textContent = text),
  refuse: alertReader,
});
const dock = new Dock(player);
const panel = new Panel(() => {
  panes[1].figure.hidden = !panel.compares;
  think();
  moved();
});
new TakeAway(() => {
  const shown = panes.filter((pane) => pane.isShown);
  return {
    problem: store.problem, tour: panes[0].tourAt(player.seconds).tour, scenes: shown.map(scene), method: panel.method("a"),
    seconds: panel.seconds, settings: panel.settings, colors,
  };
}, alertReader);

for (const pane of panes) editor.attach(pane.canvas);
player.addEventListener("move", moved);
new ResizeObserver(moved).observe(byId("panes"));
new ResizeObserver(moved).observe(byId("chart"));
systemDark.addEventListener("change", readColors);

const onClick = (id, handler) => byId(id).addEventListener("click", handler);
onClick("undo", () => store.undo());
onClick("redo", () => store.redo());
onClick("theme", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  readColors();
});
onClick("help", () => byId("help-dialog").showModal());
onClick("random", takeRandom);
byId("size").addEventListener("change", takeRandom);
byId("size-slider").addEventListener("change", takeRandom);
byId("shape").addEventListener("change", takeRandom);
byId("example").addEventListener("change", (event) => event.target.value && takeExample(event.target.value).catch(alertReader));
onClick("open", () => byId("file").click());
byId("file").addEventListener("change", () => {
  for (const file of byId("file").files) takeFile(file).catch(alertReader);
  byId("file").value = "";
});
onClick("clear", () => store.commit(empty()));
onClick("zoom-in", () => editor.zoom(1.25));
onClick("zoom-out", () => editor.zoom(0.8));
onClick("fit", () => {
  view.fit(store.problem.bounds(), view.width, view.height);
  changed();
});
onClick("delete", () => editor.remove(editor.selected));
onClick("solve", () => (byId("solve").textContent === "Stop" ? stop() : solve()));
byId("alert").lastElementChild.addEventListener("click", hideAlert);
byId("live").addEventListener("change", () => solveLive(store.problem));
for (const button of document.querySelectorAll("[data-tool]")) {
  button.addEventListener("click", () => {
    editor.tool = button.dataset.tool;
    for (const each of document.querySelectorAll("[data-tool]")) each.setAttribute("aria-pressed", each === button);
  });
}
document.addEventListener("keydown", (event) => {
  const control = event.ctrlKey || event.metaKey;
  if (document.querySelector("dialog[open]")) return;
  if (control && event.key.toLowerCase() === "z") event.shiftKey ? store.redo() : store.undo();
  else if (control && event.key.toLowerCase() === "y") store.redo();
  else if (control && event.key === "Enter") byId("solve").click();
  else if (event.key === " " && !event.target.closest("button, input, select, pre")) byId("play").click();
  else return;
  event.preventDefault();
});
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("drops");
});
document.addEventListener("dragleave", (event) => event.relatedTarget ?? document.body.classList.remove("drops"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("drops");
  if (event.dataTransfer.files.length) takeFile(event.dataTransfer.files[0]).catch(alertReader);
});
addEventListener("hashchange", () => takeLink().catch((error) => alertReader(`This link cannot be read: ${error.message}.`)));

// For the curious, and for tests.
window.playground = { store, view, player, panes, editor, panel };

async function begin() {
  readColors();
  panel.refresh();
  const settled = (request, take) => request.then(take, alertReader);
  await Promise.all([
    settled(get("limits"), (answer) => panel.setLimits((limits = { ...limits, ...answer }))),
    settled(get("weights"), (answer) => panel.setWeights(answer)),
    settled(get("examples"), (answer) => panel.setExamples((examples = answer))),
  ]);
  try {
    if (await takeLink()) return;
  } catch (error) {
    alertReader(`This link cannot be read: ${error.message}.`);
  }
  if (examples.length && store.problem.n === 0) await takeExample(examples[0].name);
  store.past = [];
  moved();
}
begin().catch(alertReader);
