// Icons on a field of 24 by 24, each one path: drawn, or filled where their name is in FILLED.

const PATHS = {
	undo: "M9 4 4 9l5 5M4 9h10a5 5 0 0 1 0 10h-2",
	redo: "m15 4 5 5-5 5m5-5H10a5 5 0 0 0 0 10h2",
	theme: "M12 3a9 9 0 1 0 0 18a9 9 0 0 0 0-18zm0 3a6 6 0 0 1 0 12z",
	help: "M12 3a9 9 0 1 0 0 18a9 9 0 0 0 0-18zM9.5 9.5a2.5 2.5 0 1 1 3.6 2.3c-.8.4-1.1.9-1.1 1.9M12 16.8v.1",
	add: "M12 5v14M5 12h14",
	spray: "M6 8h2v2H6zm6-4h2v2h-2zm-1 8h2v2h-2zm7-3h2v2h-2zM7 17h2v2H7zm9 0h2v2h-2z",
	erase: "m8 19-4-4 9-10 7 6-7 8zm0 0h11M9 10l6 6",
	fit: "M4 9V4h5M15 4h5v5M20 15v5h-5M9 20H4v-5",
	bin: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10.5 11v5M13.5 11v5",
	play: "M7 4.5v15l12-7.5z",
	pause: "M7 5h3v14H7zm7 0h3v14h-3z",
	back: "M18 5v14L9 12zM6 5v14",
	forward: "M6 5v14l9-7zM18 5v14",
	take: "M12 4v11m-5-5 5 5 5-5M5 20h14",
	dice: "M7 4h10q3 0 3 3v10q0 3-3 3H7q-3 0-3-3V7q0-3 3-3zM8 8h1v1H8zm3.5 3.5h1v1h-1zM15 15h1v1h-1z",
};
const FILLED = ["theme", "spray", "play", "pause", "back", "forward"];

export function setIcon(button, name) {
	const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
	const path = document.createElementNS(svg.namespaceURI, "path");
	svg.setAttribute("viewBox", "0 0 24 24");
	path.setAttribute("d", PATHS[name]);
	path.setAttribute("fill", FILLED.includes(name) ? "currentColor" : "none");
	path.setAttribute("fill-rule", "evenodd");
	svg.append(path);
	button.querySelector("svg")?.remove();
	button.prepend(svg);
}

for (const button of document.querySelectorAll("[data-icon]")) {
	setIcon(button, button.dataset.icon);
	if (!button.title) button.title = button.ariaLabel;
}
