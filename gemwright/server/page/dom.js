// Makes elements. Text goes in by textContent alone, so that HTML in an answer stays text.

/** Return an element with attributes and children; children that are strings become text. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Cut text into prose and fenced code; a fence that is still open reaches to the end. */
export function blocksOf(text) {
  const blocks = [];
  let lines = [];
  let fence = null;
  const close = (isCode) => {
    const content = lines.join("\n");
    if (isCode || content.trim()) blocks.push({ isCode, text: isCode ? content : content.replace(/^\n+|\n+$/g, "") });
    lines = [];
  };
  for (const line of text.split("\n")) {
    const mark = /^ {0,3}(`{3,}|~{3,})(.*)$/.exec(line);
    if (fence === null && mark && !(mark[1][0] === "`" && mark[2].includes("`"))) {
      close(false);
      fence = mark[1];
    } else if (fence !== null && mark && mark[1].startsWith(fence) && !mark[2].trim()) {
      close(true);
      fence = null;
    } else {
      lines.push(line);
    }
  }
  close(fence !== null);
  return blocks;
}

/** Show text as prose and code in an element, touching only the blocks that changed. */
export function showText(element, text) {
  const blocks = blocksOf(text);
  blocks.forEach((block, place) => {
    const tag = block.isCode ? "PRE" : "P";
    let shown = element.children[place];
    if (!shown || shown.tagName !== tag) {
      const fresh = block.isCode ? make("pre", { tabindex: "0" }) : make("p");
      if (shown) shown.replaceWith(fresh);
      else element.append(fresh);
      shown = fresh;
    }
    if (shown.textContent !== block.text) shown.textContent = block.text;
  });
  while (element.children.length > blocks.length) element.lastElementChild.remove();
}

/** Show a problem and its remedy in a box, or with null hide the box. */
export function showProblem(box, error) {
  box.hidden = error === null;
  box.replaceChildren();
  if (error === null) return;
  box.append(make("p", {}, error.message));
  if (error.remedy) box.append(make("p", {}, `What helps: ${error.remedy}`));
}
