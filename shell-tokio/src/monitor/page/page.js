// Shows /status.json every few seconds. What comes from outside is only ever set as text, never as markup.
"use strict";

const EVERY = 5000;
const BARS = 96;
const at = (id) => document.getElementById(id);
let last = null;

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
  rows("letters", shown);
  at("letters-text").textContent = known
    ? `${known.open} open, ${known.redriven} redriven, ${known.settled} settled; ${shown.length} of the newest open ones are shown`
    : "not known yet";
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

at("session").addEventListener("submit", async (event) => {
  event.preventDefault();
  const wanted = new URLSearchParams({ conversation: at("conversation").value, session: at("session-id").value });
  try {
    const answer = await ask(`/session.json?${wanted}`);
    const text = answer.ok ? describe(await answer.json()) : await answer.text();
    at("session-found").textContent = harmless(text.trim());
  } catch (error) {
    at("session-found").textContent = harmless(`No answer: ${error.message}`);
  }
});

function describe(found) {
  const complete = found.complete ? "complete" : "incomplete";
  return `${found._id}: ${complete}, ${found.segments} of ${found.publishedSegments} segments`;
}

refresh();
