// Shows /status.json every few seconds. What comes from outside is only ever set as text, never as markup.
"use strict";

const EVERY = 5000;
const BARS = 96;
const at = (id) => document.getElementById(id);
let last = null;
let found = null;
let shownLetters = [];
const selected = new Set();

// Marks that would turn the direction of what follows, and control characters, are shown as a replacement.
const harmless = (text) => String(text).replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, "\ufffd");

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = harmless(text);
  if (kind) made.className = kind;
  return made;
}

function span(seconds) {
  if (seconds === null || seconds === undefined) return "not known";
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

function button(text, act, label) {
  const made = element("button", text);
  made.type = "button";
  if (label) made.setAttribute("aria-label", harmless(label));
  made.addEventListener("click", act);
  return made;
}

// A table's body, changed only where it says something new: a reader's place and the focus stay.
function fill(id, key, list) {
  const body = at(id);
  if (body.dataset.shown === key) return;
  const focused = body.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  body.replaceChildren(...list.map((cells) => {
    const row = document.createElement("tr");
    row.append(...cells.map((cell) => {
      if (!(cell instanceof Node)) return element("td", cell ?? "-");
      const made = element("td", undefined, "acts");
      made.append(cell);
      return made;
    }));
    return row;
  }));
  body.dataset.shown = key;
  if (focused) [...body.querySelectorAll("[aria-label]")].find((one) => one.getAttribute("aria-label") === focused)?.focus();
}

function rows(id, list) {
  at(id).replaceChildren(...list.map((cells) => {
    const row = document.createElement("tr");
    row.append(...cells.map((cell) => element("td", cell ?? "-")));
    return row;
  }));
}

function findings(list) {
  const verdict = at("verdict");
  const blocks = list.some((finding) => finding.blocks);
  verdict.className = blocks ? "bad" : list.length > 0 ? "warn" : "good";
  const text = blocks ? "Not ready: see the findings" : list.length > 0 ? "Ready, with warnings" : "Ready: nothing is wrong";
  // A screen reader reads it again only where it changes.
  if (verdict.textContent !== text) verdict.textContent = text;
  at("findings").replaceChildren(...list.map((finding) => {
    const item = element("li", undefined, finding.blocks ? "bad" : "warn");
    item.append(element("p", finding.cause, "cause"), element("p", finding.consequence));
    item.append(element("p", `What to do: ${finding.remedy}`), element("p", `Manual: ${finding.manual}`, "faint"));
    return item;
  }));
  if (list.length === 0) at("findings").append(element("li", "None", "good"));
}

function numbers(status) {
  const { consumer, deadLetters, process } = status;
  const since = process?.sinceStart;
  const shown = [
    ["Behind", span(status.secondsBehind)],
    ["Calls that wait", consumer?.waiting],
    ["In hand, all processors", consumer?.inHand],
    ["Dead letters, open", deadLetters?.open],
    ["Complete, since start", since?.complete],
    ["Incomplete, since start", since?.incomplete],
    ["End to notification", since ? span(since.notificationSeconds) : undefined],
    ["MongoDB ping", status.mongodbPingSeconds === null ? "no answer" : `${(status.mongodbPingSeconds * 1000).toFixed(1)} ms`],
    ["Steps tried again", since?.retried],
    ["Redelivered", since?.redelivered],
    ["Longest heartbeat gap", since ? span(since.longestHeartbeatGapSeconds) : undefined],
    ["Pull requests", consumer?.pullRequests],
  ];
  at("numbers").replaceChildren(...shown.map(([name, value]) => {
    const pair = document.createElement("div");
    pair.append(element("dt", name), element("dd", value ?? "not known"));
    return pair;
  }));
}

function recent(minutes) {
  const size = Math.max(1, Math.ceil(minutes.length / BARS));
  const bars = [];
  for (let start = 0; start < minutes.length; start += size) {
    const part = minutes.slice(start, start + size);
    const sum = (name) => part.reduce((total, minute) => total + minute[name], 0);
    bars.push({ calls: sum("complete") + sum("incomplete"), incomplete: sum("incomplete"), dead: sum("deadLettered") });
  }
  const most = Math.max(1, ...bars.map((bar) => bar.calls + bar.dead));
  at("recent").replaceChildren(...bars.map((bar) => {
    const drawn = element("span", undefined, bar.dead > 0 ? "bad" : bar.incomplete > 0 ? "warn" : "");
    drawn.style.height = `${(100 * (bar.calls + bar.dead)) / most}%`;
    return drawn;
  }));
  const all = (name) => minutes.reduce((total, minute) => total + minute[name], 0);
  const timed = minutes.filter((minute) => minute.seconds !== null).map((minute) => minute.seconds);
  const slowest = timed.length > 0 ? `; slowest minute on average ${span(Math.max(...timed))}` : "";
  at("recent-text").textContent = `${all("complete")} complete, ${all("incomplete")} incomplete, ` +
    `${all("deadLettered")} given up in ${minutes.length} minutes of this process${slowest}`;
}

function letters(status) {
  const known = status.deadLetters;
  const wanted = at("filter").value.toLowerCase();
  const call = (letter) => letter.conversationId === undefined ? "-" : `${letter.conversationId} : ${letter.sessionId}`;
  const shown = (known?.newest ?? []).map((letter) => [
    letter.sequence, new Date(letter.at).toISOString(), call(letter), letter.reason, letter.processor,
  ]).filter((cells) => cells.some((cell) => String(cell ?? "").toLowerCase().includes(wanted)));
  shownLetters = shown.map(([sequence]) => sequence);
  // Nothing is selected that nobody sees.
  [...selected].filter((sequence) => !shownLetters.includes(sequence)).forEach((sequence) => selected.delete(sequence));
  fill("letters", JSON.stringify(shown), shown.map((cells) => [choice(cells), ...cells]));
  tellSelected();
  at("letters-text").textContent = known
    ? `${known.open} open, ${known.redriven} redriven, ${known.settled} settled; ${shown.length} of the newest open ones are shown`
    : "not known yet";
}

function choice([sequence, , call]) {
  const box = document.createElement("input");
  box.type = "checkbox";
  box.checked = selected.has(sequence);
  box.dataset.sequence = sequence;
  box.setAttribute("aria-label", harmless(`Dead letter ${sequence}, ${call}`));
  box.addEventListener("change", () => {
    if (box.checked) selected.add(sequence); else selected.delete(sequence);
    tellSelected();
  });
  return box;
}

function tellSelected() {
  at("selected").textContent = `${selected.size} selected`;
  at("all-letters").checked = shownLetters.length > 0 && selected.size === shownLetters.length;
  at("redrive").disabled = at("discard").disabled = selected.size === 0;
}

function processes(list) {
  const stands = (process) => {
    if (process.silentSeconds !== undefined) return `NO ANSWER for ${span(process.silentSeconds)}`;
    return process.draining ? "comes to its end" : process.quiet ? "QUIET" : "works";
  };
  const act = (process) => {
    if (process.kind !== "processor" || process.silentSeconds !== undefined || process.draining) return element("span", "");
    const [text, action] = process.quiet ? ["Go on", "unquiet"] : ["Quiet", "quiet"];
    return button(text, () => perform({ action, name: process.name }), `${text}: ${process.name}`);
  };
  const cells = list.map((process) => [
    process.name, stands(process), act(process), process.inHand, process.kind, span(process.uptimeSeconds), process.version,
  ]);
  fill("processes", JSON.stringify(list), cells);
}

// Who may act is known by the token alone; the process decides.
function acting() {
  const mayAct = Boolean(sessionStorage.getItem("token"));
  document.body.classList.toggle("may-act", mayAct);
  at("pause").hidden = at("letters-act").hidden = !mayAct;
  at("acting").textContent = mayAct ? "" : "Read only: what can be done here needs the token of --http-token-file.";
}

async function perform(action) {
  at("acted").textContent = "Asked …";
  try {
    const token = sessionStorage.getItem("token");
    const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };
    const answer = await fetch("/action", {
      method: "POST", headers, body: JSON.stringify(action), cache: "no-store", signal: AbortSignal.timeout(55000),
    });
    const json = answer.headers.get("Content-Type")?.startsWith("application/json");
    const lines = json ? (await answer.json()).lines : [await answer.text()];
    at("acted").className = answer.ok ? "good" : "bad";
    at("acted").textContent = harmless(lines.join("; ").trim());
    return answer.ok;
  } catch (error) {
    at("acted").className = "bad";
    at("acted").textContent = harmless(`No answer: ${error.message}. Look whether it was done before you repeat it.`);
    return false;
  }
}

function show(status) {
  last = status;
  const { process } = status;
  at("process").textContent = process ? harmless(`${process.name}, version ${process.version}, up ${span(process.uptimeSeconds)}`) : "";
  findings(status.findings);
  numbers(status);
  const phases = Object.entries(process?.phases ?? {}).map(([phase, jobs]) => `${jobs} ${phase}`);
  at("phases").textContent = phases.length > 0 ? phases.join(", ") : "nothing";
  rows("jobs", (process?.jobs ?? []).map((job) => [span(job.ageSeconds), job.phase, job.attempt, job.failures, job.key]));
  processes(status.processes);
  recent(process?.minutes ?? []);
  letters(status);
}

async function ask(path) {
  const token = sessionStorage.getItem("token");
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  return fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(8000) });
}

async function refresh() {
  try {
    const answer = await ask("/status.json");
    at("login").hidden = answer.status !== 401;
    acting();
    if (answer.status === 401) throw new Error("a token is needed");
    if (!answer.ok) throw new Error(`the process answers with ${answer.status}`);
    show(await answer.json());
  } catch (error) {
    at("verdict").className = "bad";
    at("verdict").textContent = `No answer: ${harmless(error.message)}. What is shown is old.`;
  } finally {
    setTimeout(refresh, EVERY);
  }
}

at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", at("token").value);
});

at("filter").addEventListener("input", () => { if (last) letters(last); });

at("all-letters").addEventListener("change", (event) => {
  for (const box of at("letters").querySelectorAll("input")) {
    box.checked = event.target.checked;
    const sequence = Number(box.dataset.sequence);
    if (box.checked) selected.add(sequence); else selected.delete(sequence);
  }
  tellSelected();
});

async function performOnSelected(action) {
  if (await perform({ action, sequences: [...selected] })) selected.clear();
  for (const box of at("letters").querySelectorAll("input")) box.checked = selected.has(Number(box.dataset.sequence));
  tellSelected();
}

at("redrive").addEventListener("click", () => performOnSelected("redrive"));
at("discard").addEventListener("click", () => {
  if (confirm(`Discard ${selected.size} dead letter(s) for good?`)) performOnSelected("discard");
});
at("pause").addEventListener("submit", (event) => {
  event.preventDefault();
  perform({ action: "pause", seconds: Number(at("minutes").value) * 60 });
});
at("resume").addEventListener("click", () => perform({ action: "resume" }));
at("reprocess").addEventListener("click", () => {
  if (found) perform({ action: "reprocess", conversationId: found.conversationId, sessionId: found.sessionId });
});

at("session").addEventListener("submit", async (event) => {
  event.preventDefault();
  found = null;
  try {
    const answer = await ask(`/session.json?${new URLSearchParams({ key: at("key").value })}`);
    if (answer.ok) found = await answer.json();
    at("session-found").textContent = harmless(found ? describe(found) : (await answer.text()).trim());
  } catch (error) {
    at("session-found").textContent = harmless(`No answer: ${error.message}`);
  }
  at("reprocess").hidden = !found;
  at("content").hidden = !found?.transcript;
  // Line ends are wanted here, and nothing else that steers.
  at("summary").textContent = (found?.summary ?? "").split("\n").map(harmless).join("\n");
  at("transcript").replaceChildren(...(found?.transcript ?? []).map((line) =>
    element("li", `${line.speaker ?? "(nobody named)"}: ${line.text}`)));
});

function describe(call) {
  const complete = call.complete ? "complete" : "incomplete";
  const announced = call.notified ? `announced as message ${call.notified.streamSequence}` : "not announced";
  const revision = call.revision > 1 ? `, revision ${call.revision}` : "";
  const now = call.segmentsNow === call.segments ? "" : `, ${call.segmentsNow} are stored now`;
  return `${call.key}: ${complete}, ${call.segments} of ${call.publishedSegments} segments${now}; ${announced}${revision}`;
}

refresh();
