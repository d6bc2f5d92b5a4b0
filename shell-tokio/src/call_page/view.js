// What is seen. Every text is set as text: markup in a name or in what is said stays what it is.

export const element = (id) => document.getElementById(id);

export const MAX_TEXT = 2000;

function part(kind, name, text) {
  const made = document.createElement(kind);
  if (name !== "") {
    made.className = name;
  }
  made.textContent = text;
  return made;
}

export function show(id, isShown) {
  element(id).hidden = !isShown;
}

export function connection(state, text) {
  const place = element("connection");
  // The same state again, as while it is tried again and again, is not read out again.
  if (place.dataset.state !== state || place.textContent !== text) {
    place.dataset.state = state;
    place.textContent = text;
  }
}

const faults = new Map();

// What is wrong, by who is away. No text: it is over.
export function fault(name, text) {
  if (faults.get(name) === text) {
    return;
  }
  if (text === undefined) {
    faults.delete(name);
  } else {
    faults.set(name, text);
  }
  element("faults").replaceChildren(...[...faults.values()].map((why) => part("p", "fault", why)));
}

// All that this page's server says is wrong.
export function faultsOfServers(told) {
  const names = new Set(told.map(({ name }) => `server:${name}`));
  [...faults.keys()].filter((name) => name.startsWith("server:") && !names.has(name)).forEach((name) => fault(name));
  told.forEach(({ name, text }) => fault(`server:${name}`, text));
}

// The place of a segment is its index, however often and in whichever order it is told.
export function segment({ index, speaker, text }, ownName) {
  const said = element("said");
  const id = `segment-${index}`;
  const who = speaker ?? "Somebody";
  let item = element(id);
  if (item === null) {
    item = document.createElement("li");
    item.id = id;
    item.dataset.index = index;
    item.classList.toggle("own", speaker === ownName);
    const next = [...said.children].find((other) => Number(other.dataset.index) > index);
    said.insertBefore(item, next ?? null);
  }
  const line = `${who}: ${text}`;
  if (item.textContent !== line) {
    item.replaceChildren(part("span", "who", who), ": ", part("span", "text", text));
    scrollToEnd();
  }
  show("silence", false);
}

// What is not stored yet stands below what is, outside of what a screen reader reads out by itself.
export function unsaved(segments) {
  const lines = segments.map(({ text, refused }) => {
    const state = refused === undefined ? "(not stored yet)" : `(not stored: ${refused})`;
    const item = part("li", refused === undefined ? "" : "refused", "");
    item.append(part("span", "text", text), " ", part("span", "state", state));
    return item;
  });
  element("unsaved").replaceChildren(...lines);
  show("unsaved", lines.length > 0);
  if (lines.length > 0) {
    show("silence", false);
    scrollToEnd();
  }
}

function scrollToEnd() {
  const log = element("log");
  log.scrollTop = log.scrollHeight;
}

export function textProblem(problem) {
  element("text").setAttribute("aria-invalid", String(problem !== ""));
  element("text-problem").textContent = problem;
  show("text-problem", problem !== "");
}

export function summary(stored, timeline) {
  const number = (count, one, many) => `${count} ${count === 1 ? one : many}`;
  const page = element("summary");
  page.replaceChildren();
  const counted = number(stored.segments, "segment", "segments");
  const complete = stored.complete ? "complete" : `not complete: ${stored.publishedSegments} were announced`;
  page.append(part("p", "", `${counted}, ${number(stored.words, "word", "words")}; ${complete}.`));
  if (stored.speakers.length > 0) {
    page.append(speakers(stored.speakers));
  }
  quotes(page, "Longest turns", stored.longestTurns);
  quotes(page, "Questions", stored.questions);
  page.hidden = false;
  element("progress").textContent = "The summary is here.";
  if (timeline !== undefined) {
    element("timeline").href = timeline;
    show("timeline", true);
  }
  show("another", true);
}

function speakers(list) {
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  for (const [name, kind] of [["Speaker", ""], ["Words", "number"], ["Turns", "number"], ["Questions", "number"]]) {
    const cell = part("th", kind, name);
    cell.scope = "col";
    head.append(cell);
  }
  const body = table.createTBody();
  for (const speaker of list) {
    const row = body.insertRow();
    const name = part("th", "", speaker.speaker ?? "Somebody");
    name.scope = "row";
    row.append(name);
    for (const count of [speaker.words, speaker.turns, speaker.questions]) {
      row.append(part("td", "number", count));
    }
  }
  return table;
}

function quotes(page, title, list) {
  if (list.length === 0) {
    return;
  }
  page.append(part("h3", "", title));
  for (const quote of list) {
    const block = document.createElement("blockquote");
    block.append(part("strong", "", quote.speaker ?? "Somebody"), `: ${quote.text}`);
    page.append(block);
  }
}
