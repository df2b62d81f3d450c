// The chat: what was said, what is asked, and an answer as it comes.

import { byId, make, showProblem, showText } from "./dom.js";
import { Problem, call, eventsOf } from "./server.js";

let messages = [];
let running = null;

/** Make the chat's controls work. */
export function startChat() {
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("question").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  byId("settings-form").addEventListener("submit", (event) => event.preventDefault());
  byId("stop").addEventListener("click", stop);
  byId("new").addEventListener("click", startAnew);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") stop();
  });
}

function stop() {
  running?.abort();
}

function startAnew() {
  stop();
  running = null;
  messages = [];
  byId("log").replaceChildren();
  showProblem(byId("error"), null);
  setBusy(false, "");
  byId("question").focus();
}

function send() {
  const question = byId("question");
  const text = question.value;
  if (running || !text.trim()) return;
  const shown = addMessage("user", "You");
  shown.append(make("p", {}, text));
  question.value = "";
  // Calls that were left unanswered stay so: a result would come too late for its place.
  const forms = [...byId("log").querySelectorAll("form.results:not([hidden])")];
  forms.forEach((form) => (form.hidden = true));
  const undo = () => {
    shown.remove();
    forms.forEach((form) => (form.hidden = false));
    if (!question.value) question.value = text;
  };
  ask([{ role: "user", content: text }], undo);
}

/** Send the conversation with `added` at its end, and show the answer. Where none comes, `undo` puts back what was. */
async function ask(added, undo) {
  showProblem(byId("error"), null);
  const controller = new AbortController();
  const before = messages;
  running = controller;
  messages = [...messages, ...added];
  setBusy(true, "Answering...");
  const answer = new Answer();
  let status = "Done.";
  let problem = null;
  try {
    const body = JSON.stringify(bodyOf(messages));
    const response = await call("v1/chat/completions", { method: "POST", body, signal: controller.signal });
    for await (const event of eventsOf(response)) {
      if (running !== controller) return;
      answer.take(event);
    }
  } catch (error) {
    if (error.name === "AbortError") status = "Stopped.";
    else problem = error;
  }
  // A new chat has begun meanwhile, and nothing of this one belongs there.
  if (running !== controller) return;
  running = null;
  if (problem !== null) {
    showProblem(byId("error"), problem);
    status = "";
  }
  if (answer.isEmpty && problem !== null) {
    answer.remove();
    messages = before;
    undo();
  } else {
    const isWhole = problem === null && status === "Done.";
    messages = [...messages, answer.end(isWhole)];
  }
  setBusy(false, status);
}

/** Return the body of a request. Throws Problem for settings that cannot be sent. */
function bodyOf(conversation) {
  const form = byId("settings-form");
  if (!form.checkValidity()) {
    byId("settings").open = true;
    form.reportValidity();
    throw new Problem("a setting is out of its range", "change the field that is marked");
  }
  const system = byId("system").value;
  const body = {
    messages: system.trim() ? [{ role: "system", content: system }, ...conversation] : conversation,
    stream: true,
    stream_options: { include_usage: true },
  };
  const temperature = byId("temperature").value;
  if (temperature !== "") body.temperature = Number(temperature);
  const maxTokens = byId("max-tokens").value;
  if (maxTokens !== "") body.max_tokens = Number(maxTokens);
  const thinking = byId("thinking").value;
  if (thinking) body.chat_template_kwargs = { enable_thinking: thinking === "on" };
  const tools = toolsOf(byId("tools").value);
  if (tools) body.tools = tools;
  return body;
}

function toolsOf(text) {
  if (!text.trim()) return null;
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new Problem(`the tools are no JSON: ${error.message}`, "write a list of definitions as OpenAI's interface has them");
  }
  return Array.isArray(tools) ? tools : [tools];
}

function setBusy(isBusy, status) {
  byId("send").disabled = isBusy;
  byId("stop").disabled = !isBusy;
  // Read out when it is whole, not piece by piece.
  byId("log").setAttribute("aria-busy", String(isBusy));
  byId("status").textContent = status;
}

function addMessage(kind, title) {
  const shown = make("article", { class: `message ${kind}`, "aria-label": title }, make("h2", {}, title));
  byId("log").append(shown);
  scrollDown();
  return shown;
}

/** Show the end of the conversation. */
export function scrollDown() {
  const log = byId("log");
  log.scrollTop = log.scrollHeight;
}

/** One answer: what has come of it, and its place on the page. */
class Answer {
  constructor() {
    this.content = "";
    this.reasoning = "";
    this.calls = [];
    this.usage = null;
    this.finishReason = null;
    this.shown = addMessage("assistant", "Model");
    this.thought = null;
    this.body = make("div", { class: "content" });
    this.shown.append(this.body);
    this.isDrawn = true;
  }

  get isEmpty() {
    return !this.content && !this.reasoning && !this.calls.length;
  }

  remove() {
    this.shown.remove();
  }

  take(event) {
    if (event.usage) this.usage = event.usage;
    for (const { delta, finish_reason: reason } of event.choices) {
      this.reasoning += delta.reasoning_content ?? delta.reasoning ?? "";
      this.content += delta.content ?? "";
      for (const call of delta.tool_calls ?? []) this.takeCall(call);
      if (reason) this.finishReason = reason;
    }
    if (!this.isDrawn) return;
    this.isDrawn = false;
    requestAnimationFrame(() => this.draw());
  }

  takeCall({ index, id, function: part }) {
    this.calls[index] ??= { id, name: part.name, arguments: "", shown: null };
    this.calls[index].arguments += part.arguments ?? "";
  }

  draw() {
    if (this.isDrawn) return;
    this.isDrawn = true;
    const log = byId("log");
    const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    this.drawThought();
    showText(this.body, this.content);
    for (const call of this.calls) this.drawCall(call);
    if (isAtEnd) scrollDown();
  }

  drawThought() {
    if (!this.reasoning) return;
    if (!this.thought) {
      this.thought = make("details", { class: "thought", open: true }, make("summary", {}, "Thought"), make("p"));
      this.body.before(this.thought);
    }
    this.thought.lastElementChild.textContent = this.reasoning;
    // It folds itself once, when the answer proper begins; after that it is the reader's.
    if (!this.isFolded && (this.content || this.calls.length)) {
      this.isFolded = true;
      this.thought.open = false;
    }
  }

  drawCall(call) {
    if (!call.shown) {
      call.shown = make("details", { class: "call", open: true }, make("summary", {}, `Call: ${call.name}`), make("pre", { tabindex: "0" }));
      this.shown.append(call.shown);
    }
    call.shown.querySelector("pre").textContent = call.arguments;
  }

  /** Close the answer and return its message. One that was cut off keeps its text and loses its calls. */
  end(isWhole) {
    this.isDrawn = false;
    this.draw();
    const notes = [];
    if (!isWhole) notes.push("cut off here");
    else if (this.finishReason === "length") notes.push("cut off at the limit of tokens");
    if (this.usage) notes.push(`${this.usage.completion_tokens} tokens after ${this.usage.prompt_tokens} of the prompt`);
    if (notes.length) this.shown.append(make("p", { class: "quiet note" }, notes.join(", ")));
    const message = { role: "assistant", content: this.content };
    if (this.reasoning) message.reasoning_content = this.reasoning;
    if (isWhole && this.calls.length) {
      for (const call of this.calls) call.shown.querySelector("pre").textContent = indented(call.arguments);
      message.tool_calls = this.calls.map(({ id, name, arguments: text }) => ({
        id,
        type: "function",
        function: { name, arguments: text },
      }));
      this.shown.append(this.resultsForm());
    }
    return message;
  }

  /** Return the form in which a person answers the calls. */
  resultsForm() {
    const fields = this.calls.map((call) => make("textarea", { rows: "2", required: true, "aria-label": `Result of ${call.name}` }));
    const labels = this.calls.map((call, place) => make("label", {}, `Result of ${call.name}`, fields[place]));
    const button = make("button", { type: "submit" }, this.calls.length > 1 ? "Send results" : "Send result");
    const form = make("form", { class: "results call" }, ...labels, button);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (running) return;
      const results = this.calls.map(({ id }, place) => ({ role: "tool", tool_call_id: id, content: fields[place].value }));
      const shown = this.calls.map(({ name }, place) => {
        const message = addMessage("tool", `Result of ${name}`);
        message.append(make("p", {}, fields[place].value));
        return message;
      });
      form.hidden = true;
      byId("question").focus();
      ask(results, () => {
        shown.forEach((message) => message.remove());
        form.hidden = false;
      });
    });
    return form;
  }
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
