// The server's answers, its streams of events, and its errors as readable text.

/** What a request came to, when not to an answer: `message` is for the reader. */
export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function failure(response) {
  let problem = {};
  try {
    problem = await response.json();
  } catch {
    // A proxy in between may answer with a page of its own.
  }
  const detail = typeof problem.detail === "string" ? problem.detail : problem.title;
  if (response.status === 429) {
    const wait = response.headers.get("Retry-After");
    return new ServerError(`The server is busy${wait ? `; try again in ${wait} s` : ", try again soon"}.`, 429);
  }
  return new ServerError(detail || `The server answered ${response.status} ${response.statusText}.`, response.status);
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached. Is `georoutenet serve` still running?", 0);
  }
  if (!response.ok) throw await failure(response);
  return response;
}

const post = (path, content, signal) =>
  request(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(content),
    signal,
  });

export const get = async (path) => (await request(`api/${path}`)).json();

export const readInstance = async (content, format) =>
  (
    await request(`api/instance?format=${encodeURIComponent(format)}`, {
      method: "POST",
      headers: { "Content-Type": "application/octet-stream" },
      body: content,
    })
  ).json();

export const scores = async (problem, weights, signal) =>
  (await post("api/scores", { ...problem.body, weights }, signal)).json();

export const exported = async (problem, tour, format) =>
  (await post(`api/export?format=${format}`, { ...problem.body, tour: Array.from(tour) })).blob();

/** Solve, and hand each event on as it comes: `onEvent(name, content)`. Aborting the signal stops the search. */
export async function stream(problem, options, signal, onEvent) {
  const response = await post("api/solve/stream", { ...problem.body, ...options }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).replaceAll("\r", "").split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n");
      const field = (name) =>
        lines.filter((line) => line.startsWith(`${name}:`)).map((line) => line.slice(name.length + 1).trimStart());
      const name = field("event")[0];
      if (!name) continue; // a comment that keeps the connection open
      const content = JSON.parse(field("data").join("\n"));
      if (name === "problem") throw new ServerError(content.detail || content.title, content.status);
      onEvent(name, content);
    }
  }
}
