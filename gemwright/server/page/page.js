// The page: its tabs, its key, and the name of the model.

import { scrollDown, startChat } from "./chat.js";
import { byId, showProblem } from "./dom.js";
import { watchLedger } from "./ledger.js";
import { call, keepKey } from "./server.js";

const TABS = ["chat", "ledger"];
let chosen = "chat";

function choose(name) {
  chosen = name;
  for (const other of TABS) {
    const isChosen = other === name;
    const tab = byId(`${other}-tab`);
    tab.setAttribute("aria-selected", String(isChosen));
    tab.tabIndex = isChosen ? 0 : -1;
    byId(other).hidden = !isChosen;
  }
  watchLedger(name === "ledger");
  // What was hidden has lost its place.
  if (name === "chat") scrollDown();
}

function startTabs() {
  for (const name of TABS) {
    const tab = byId(`${name}-tab`);
    tab.addEventListener("click", () => choose(name));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const next = TABS[(TABS.indexOf(name) + step + TABS.length) % TABS.length];
      choose(next);
      byId(`${next}-tab`).focus();
    });
  }
}

function startKey() {
  document.addEventListener("key-wanted", (event) => {
    const form = byId("key-form");
    const isNew = form.hidden;
    form.hidden = false;
    byId("key-note").textContent = `${event.detail}. It is kept until this tab is closed.`;
    if (isNew) byId("key").focus();
  });
  byId("key-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      keepKey(byId("key").value.trim());
    } catch (problem) {
      byId("key-note").textContent = problem.message;
      return;
    }
    if (!(await showModel())) return;
    byId("key").value = "";
    byId("key-form").hidden = true;
    if (chosen === "ledger") watchLedger(true);
    else byId("question").focus();
  });
}

/** Show what is served here; returns whether the server told. */
async function showModel() {
  try {
    const { data } = await (await call("v1/models")).json();
    const length = data[0].max_model_len;
    const context = length === null ? "being loaded" : `${length.toLocaleString("en")} tokens of context`;
    byId("model").textContent = `${data[0].id}, ${context}`;
    showProblem(byId("error"), null);
    return true;
  } catch (problem) {
    if (problem.status !== 401) showProblem(byId("error"), problem);
    return false;
  }
}

startTabs();
startKey();
startChat();
showModel();
