// The server's answers, its streams of events, and its errors as readable text.

/** What a request came to, when not to an answer: `message` is for the reader. */
export class ServerError extends Error {
	constructor(message, status) {
		super(message);
		this.status = status;
	}
}

async function request(path, options) {
	const response = await fetch(`api/${path}`, options).catch((error) => {
		if (error.name === "AbortError") throw error;
		throw new ServerError("The server cannot be reached. Is `georoutenet serve` still running?", 0);
	});
	if (response.ok) return response;
	// A proxy in between may answer with a page of its own.
	const { detail, title } = await response.json().catch(() => ({}));
	throw new ServerError(detail ?? title ?? `The server answered ${response.status}.`, response.status);
}

function post(path, content, signal) {
	const headers = { "Content-Type": "application/json" };
	return request(path, { method: "POST", headers, body: JSON.stringify(content), signal });
}

const json = async (response) => (await response).json();

export const get = (path) => json(request(path));
export const readInstance = (body, format) => json(request(`instance?format=${format}`, { method: "POST", body }));
export const scores = (problem, weights) => json(post("scores", { ...problem.body, weights }));
export const exported = async (problem, tour, format) =>
	(await post(`export?format=${format}`, { ...problem.body, tour: Array.from(tour) })).blob();

/** Solve, and hand each event on as it comes: `onEvent(name, content)`. Aborting the signal stops the search. */
export async function stream(problem, options, signal, onEvent) {
	const response = await post("solve/stream", { ...problem.body, ...options }, signal);
	const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
	let rest = "";
	for (;;) {
		const { value, done } = await reader.read();
		if (done) return;
		const blocks = (rest + value).replaceAll("\r", "").split("\n\n");
		rest = blocks.pop();
		for (const block of blocks) {
			const field = (key) => block.match(`(?:^|\n)${key}: (.*)`)?.[1];
			const name = field("event");
			if (!name) continue; // a comment that keeps the connection open
			const content = JSON.parse(field("data"));
			if (name === "problem") throw new ServerError(content.detail || content.title, content.status);
			onEvent(name, content);
		}
	}
}
