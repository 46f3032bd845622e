// What leaves the page: files of the tour, pictures, links, and code to copy.

import { exported } from "./api.js";
import { citiesFile, citiesText, commandLine, pythonCode } from "./methods.js";
import { paint } from "./paint.js";
import { byId } from "./panel.js";
import { encode } from "./share.js";
import { SvgContext } from "./svg.js";

const PNG_SCALE = 2;

function save(blob, name) {
	const link = document.createElement("a");
	link.href = URL.createObjectURL(blob);
	link.download = name;
	link.click();
	setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** Scenes side by side, as they are on the page. */
function picture(scenes, context, background) {
	let left = 0;
	for (const scene of scenes) {
		const { view } = scene;
		const shifted = Object.create(view, { screenX: { value: (x) => view.screenX(x) + left } });
		if (background) {
			context.fillStyle = background;
			context.fillRect(left, 0, view.width, view.height);
		}
		paint(context, { ...scene, view: shifted });
		left += view.width;
	}
}

export class TakeAway {
	/** `now()` gives {problem, tour, scenes, options, settings, colors} of what is on the page. */
	constructor(now, failed) {
		Object.assign(this, { now, failed });
		byId("take").addEventListener("click", () => this.open());
		byId("tour-files").addEventListener("click", (event) => {
			const { format } = event.target.dataset;
			if (format) this.download(format).catch(failed);
		});
		byId("cities-file").addEventListener("click", () => {
			const { problem } = this.now();
			save(new Blob([citiesText(problem)], { type: "text/plain" }), citiesFile(problem));
		});
		for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => this.copy(button));
	}

	open() {
		const { problem, tour, options, settings } = this.now();
		const isMap = problem.isDegrees || problem.rule === "GEO";
		for (const button of byId("tour-files").children) {
			const { format, needs } = button.dataset;
			button.disabled = needs === "degrees" ? !(tour && isMap) : !tour && format !== "png" && format !== "svg";
		}
		const why = isMap ? "" : "GeoJSON and GPX need latitudes and longitudes.";
		byId("files-note").textContent = tour ? why : "Solve first; then the tour can be taken away.";
		const coded = encode(problem, settings);
		byId("link").value = coded ? `${location.href.split("#")[0]}#${coded.fragment}` : "";
		byId("link-note").textContent = coded?.note ?? "A link holds up to 1,000 cities, on a plane or in degrees. Download them instead.";
		byId("python").textContent = pythonCode(problem, options);
		byId("command").textContent = commandLine(problem, options);
		byId("cities-file").textContent = `Download ${citiesFile(problem)}`;
		byId("take-dialog").showModal();
	}

	async download(format) {
		const { problem, tour, scenes, colors } = this.now();
		const name = `${problem.name.replace(/[^\w.-]+/g, "-").replace(/^[-.]+/, "") || "cities"}.${format}`;
		const width = scenes.reduce((sum, scene) => sum + scene.view.width, 0);
		const { height } = scenes[0].view;
		if (format === "svg") {
			const context = new SvgContext(width, height, colors.paper);
			picture(scenes, context, null);
			save(new Blob([context.toString()], { type: "image/svg+xml" }), name);
		} else if (format === "png") {
			const canvas = document.createElement("canvas");
			Object.assign(canvas, { width: width * PNG_SCALE, height: height * PNG_SCALE });
			const context = canvas.getContext("2d");
			context.scale(PNG_SCALE, PNG_SCALE);
			picture(scenes, context, colors.paper);
			save(await new Promise((done) => canvas.toBlob(done)), name);
		} else save(await exported(problem, tour, format), name);
	}

	async copy(button) {
		const source = byId(button.dataset.copy);
		getSelection().selectAllChildren(source);
		source.select?.();
		// Without a secure connection there is no clipboard; what is selected can be copied by hand.
		await navigator.clipboard?.writeText(source.value ?? source.textContent);
		button.textContent = "Copied";
		setTimeout(() => (button.textContent = "Copy"), 1500);
	}
}
