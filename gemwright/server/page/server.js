// Asks the server: with the key, errors as the server words them, and answers as they stream.

const KEY = "gemwright-api-key";

/** What went wrong, and what helps. */
export class Problem extends Error {
  constructor(message, remedy = "", status = 0) {
    super(message);
    this.remedy = remedy;
    this.status = status;
  }
}

/** Return an error's message without its remedy, and the remedy. */
export function problemOf(message, status = 0) {
  const mark = "; remedy: ";
  const place = message.lastIndexOf(mark);
  if (place < 0) return new Problem(message, "", status);
  return new Problem(message.slice(0, place), message.slice(place + mark.length), status);
}

export function keepKey(key) {
  if (!/^[\x21-\x7e]+$/.test(key)) throw new Problem("the key holds characters that no header can carry");
  sessionStorage.setItem(KEY, key);
}

/** Fetch a route, given relative to the page. Throws Problem; a 401 asks for the key first. */
export async function call(path, options = {}) {
  const headers = { "content-type": "application/json" };
  const key = sessionStorage.getItem(KEY);
  if (key) headers.authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("the server cannot be reached", "see whether it still runs");
  }
  if (response.ok) return response;
  const problem = await refusal(response);
  if (response.status === 401) document.dispatchEvent(new CustomEvent("key-wanted", { detail: problem.message }));
  throw problem;
}

async function refusal(response) {
  try {
    const body = await response.json();
    if (typeof body.error?.message === "string") return problemOf(body.error.message, response.status);
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  return new Problem(`the server answered ${response.status} ${response.statusText}`, "", response.status);
}

/** Yield the events of a stream. Throws Problem for an error inside it, and where it breaks off before its end. */
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let read;
    try {
      read = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw brokenOff();
    }
    if (read.done) throw brokenOff();
    rest += read.value;
    const events = rest.split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event
        .split("\n")
        .filter((line) => line.startsWith("data:"))
        .map((line) => line.slice(5).trimStart())
        .join("\n");
      if (data === "[DONE]") return;
      if (!data) continue;
      const found = JSON.parse(data);
      if (found.error) throw problemOf(found.error.message);
      yield found;
    }
  }
}

function brokenOff() {
  return new Problem("the answer broke off", "see whether the server still runs, and send it again");
}
