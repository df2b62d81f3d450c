// The ledger: what was planned beside what the live process holds, asked for every two seconds while it is looked at.

import { byId, make, showProblem } from "./dom.js";
import { call } from "./server.js";

const PERIOD_MS = 2000;
const NUM_COLORS = 8;

let timer = null;
let watch = 0;

/** Begin or end to ask. */
export function watchLedger(isWatched) {
  clearTimeout(timer);
  // What was asked for before shows nothing any more and asks for no more.
  watch += 1;
  if (isWatched) refresh(watch);
}

async function refresh(mine) {
  let problem = null;
  let found = null;
  try {
    if (!document.hidden) found = await (await call("v1/ledger")).json();
  } catch (error) {
    problem = error;
  }
  if (mine !== watch) return;
  if (found) show(found);
  showProblem(byId("ledger-error"), problem);
  timer = setTimeout(() => refresh(mine), PERIOD_MS);
}

export function showBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let power = 0;
  while (power < units.length - 1 && Math.abs(bytes) >= 1024 ** (power + 1)) power += 1;
  return `${(bytes / 1024 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
}

const count = (number) => number.toLocaleString("en");
const color = (place) => `part-${place % NUM_COLORS}`;

function show(ledger) {
  byId("ledger-view").replaceChildren(
    factsOf(ledger),
    make("h2", {}, `The engine's memory (${ledger.lines[0]?.place === "gpu" ? "GPU" : "RAM"})`),
    engineBars(ledger),
    linesTable(ledger),
    make("h2", {}, "The process"),
    processBars(ledger),
    make("h2", {}, "K/V blocks"),
    blocksTable(ledger),
    make("h2", {}, "Requests"),
    requestsTable(ledger),
  );
}

function factsOf(ledger) {
  const facts = [
    ["running", count(ledger.requests.num_running)],
    ["waiting", count(ledger.requests.num_waiting)],
    ["more of full context that fit", count(ledger.num_more_users)],
    ["tokens of context at most", count(ledger.max_context_tokens)],
    ["K/V blocks held", `${(100 * ledger.kv.share_held).toFixed(1)} %`],
    ["state", ledger.state],
  ];
  return make("dl", { class: "facts" }, ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

/** Return rows of a label, a bar of parts and a sum; all of one scale. */
function bars(rows) {
  const sums = rows.map(({ parts }) => parts.reduce((sum, part) => sum + part.bytes, 0));
  const most = Math.max(1, ...sums);
  const shown = rows.flatMap(({ name, parts }, row) => [
    make("span", {}, name),
    make(
      "div",
      { class: "bar", role: "img", "aria-label": `${name}: ${showBytes(sums[row])}` },
      ...parts.map((part) => {
        const element = make("span", { class: `part ${part.color}`, title: `${part.name}: ${showBytes(part.bytes)}` });
        element.style.width = `${(100 * part.bytes) / most}%`;
        return element;
      }),
    ),
    make("span", {}, showBytes(sums[row])),
  ]);
  return make("div", { class: "bars" }, ...shown);
}

function engineBars({ lines }) {
  const row = (name, field) => ({
    name,
    parts: lines.map((line, place) => ({ name: line.name, bytes: line[field], color: color(place) })),
  });
  return bars([row("planned", "bytes"), row("allocated", "measured_bytes"), row("in use", "touched_bytes")]);
}

function processBars({ lines, total, process }) {
  const isOwn = lines[0]?.place === "ram";
  const planned = [
    { name: "the engine's memory in use", bytes: isOwn ? total.touched_bytes : 0, color: color(0) },
    { name: "tokenizer and the books of the K/V pool", bytes: process.beside_bytes, color: color(3) },
    { name: "Python and its libraries", bytes: process.planned_runtime_bytes, color: color(7) },
  ];
  const live = [{ name: "resident", bytes: process.measured_bytes, color: color(1) }];
  const peak = [{ name: "the most so far", bytes: process.peak_bytes, color: color(2) }];
  return bars([
    { name: "planned", parts: planned },
    { name: "resident", parts: live },
    { name: "its peak", parts: peak },
  ]);
}

/** Return a table. The first cell of a row is its heading; a column whose name begins with * holds words. */
function table(caption, columns, rows) {
  const words = (place) => (columns[place].startsWith("*") ? "words" : null);
  const head = columns.map((name, place) => make("th", { scope: "col", class: words(place) }, name.replace("*", "")));
  const body = rows.map((cells) => {
    const [first, ...rest] = cells;
    const heading = make("th", { scope: "row" }, ...[first].flat());
    return make("tr", {}, heading, ...rest.map((cell, place) => make("td", { class: words(place + 1) }, cell)));
  });
  const shown = make(
    "table",
    {},
    make("caption", { class: "hidden" }, caption),
    make("thead", {}, make("tr", {}, ...head)),
    make("tbody", {}, ...body),
  );
  return make("div", { class: "scroll" }, shown);
}

function linesTable({ lines, total }) {
  const rows = lines.map((line, place) => [
    [make("span", { class: `swatch ${color(place)}`, "aria-hidden": "true" }), line.name],
    showBytes(line.bytes),
    showBytes(line.measured_bytes),
    showBytes(line.touched_bytes),
    line.formula,
  ]);
  rows.push(["in all", showBytes(total.planned_bytes), showBytes(total.measured_bytes), showBytes(total.touched_bytes), ""]);
  return table("Planned, allocated and used memory by line", ["line", "planned", "allocated", "in use", "*how it comes about"], rows);
}

function blocksTable({ kv }) {
  const rows = kv.groups.map((group) => [
    `${group.num_layers} ${group.kind} layers${group.window ? `, window ${count(group.window)}` : ""}`,
    `${count(group.num_held_blocks)} of ${count(group.num_blocks)}`,
    count(group.block_size),
    `${showBytes(group.held_bytes)} of ${showBytes(group.total_bytes)}`,
  ]);
  return table("K/V blocks by group of layers", ["group", "blocks held", "tokens a block", "bytes held"], rows);
}

function requestsTable({ live }) {
  if (!live.length) return make("p", { class: "quiet" }, "None at the moment.");
  const rows = live.map((request, place) => [
    `${place + 1}, ${request.has_begun ? "answering" : "before its first token"}`,
    count(request.prompt_tokens),
    count(request.completion_tokens),
    `${request.seconds.toFixed(1)} s`,
  ]);
  return table("Requests being answered", ["request", "prompt tokens", "answer tokens", "since"], rows);
}
