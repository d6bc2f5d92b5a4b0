// A call in the browser: one WebSocket to the transcriber, by which segments go, and one stream of events from this page's
// server, by which everybody's segments and the summary come.

const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 5000;
const KEEP_ALIVE_MS = 10_000;

const element = (id) => document.getElementById(id);
const settings = await (await fetch("settings.json")).json();

// The address names the call: whoever opens it joins the same one.
const address = new URL(location.href);
const conversation = address.searchParams.get("conversation") ?? "try-out";
const session = address.searchParams.get("session") ?? crypto.randomUUID();
address.searchParams.set("conversation", conversation);
address.searchParams.set("session", session);
history.replaceState(null, "", address);
const path = `${encodeURIComponent(conversation)}/${encodeURIComponent(session)}`;

// The transcriber knows a segment of this window again by client, epoch and id, so that it can be sent twice.
const client = crypto.randomUUID();
const unsaved = new Map();
let socket;
let pause = FIRST_PAUSE_MS;
let hungUp = false;
let nextId = 0;
let typingSince;
let joinedAt;

element("join").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = element("name").value.trim();
  if (name === "") {
    element("name").focus();
    return;
  }
  joinedAt = performance.now();
  element("join").hidden = true;
  element("call").hidden = false;
  element("address").href = address;
  element("address").textContent = address;
  element("text").focus();
  connect(name);
  listen();
  keepAlive();
});

element("text").addEventListener("input", () => {
  typingSince ??= now();
});

element("speak").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = element("text").value.trim();
  if (text !== "") {
    say(text, typingSince ?? now());
    element("text").value = "";
  }
  typingSince = undefined;
  element("text").focus();
});

element("hang-up").addEventListener("click", () => {
  hungUp = true;
  recognition?.stop();
  element("hang-up").disabled = true;
  element("speak").hidden = true;
  element("invitation").hidden = true;
  element("after").hidden = false;
  element("summary-title").focus();
  if (socket.readyState === WebSocket.OPEN) {
    socket.send(JSON.stringify({ type: "CloseStream" }));
  }
});

// Milliseconds since this window joined: the clock of its segments.
function now() {
  return Math.round(performance.now() - joinedAt);
}

function say(text, startMs) {
  const segment = { id: String(nextId++), text, startMs, endMs: now() };
  unsaved.set(segment.id, segment);
  showUnsaved();
  if (socket.readyState === WebSocket.OPEN) {
    socket.send(JSON.stringify(segment));
  }
}

function connect(name) {
  connection("wait", "Connecting…");
  const query = new URLSearchParams({ client, epoch: "window", speaker: name });
  const call = `conversations/${encodeURIComponent(conversation)}/sessions/${encodeURIComponent(session)}`;
  const url = `${settings.transcriber}/v1/${call}?${query}`;
  socket = new WebSocket(url);
  socket.addEventListener("message", (event) => answered(JSON.parse(event.data)));
  socket.addEventListener("close", (event) => {
    if (hungUp && unsaved.size === 0) {
      connection("idle", "You have hung up");
      return;
    }
    const why = event.reason === "" ? "the transcriber cannot be reached" : event.reason;
    connection("away", `Not connected: ${why}. Trying again…`);
    setTimeout(() => connect(name), pause);
    pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
  });
}

function answered(frame) {
  switch (frame.type) {
    case "ready":
      pause = FIRST_PAUSE_MS;
      connection("open", "Connected");
      fault("");
      for (const segment of unsaved.values()) {
        socket.send(JSON.stringify(segment));
      }
      if (hungUp) {
        socket.send(JSON.stringify({ type: "CloseStream" }));
      }
      break;
    case "ack":
      unsaved.delete(frame.id);
      showUnsaved();
      break;
    case "error":
      fault(`The transcriber says: ${frame.reason}`);
      // It would be refused again.
      if (!frame.retryable && frame.id !== undefined) {
        unsaved.delete(frame.id);
        showUnsaved();
      }
      break;
  }
}

// A connection on which nothing comes counts as broken after a while.
function keepAlive() {
  setInterval(() => {
    if (socket.readyState === WebSocket.OPEN) {
      socket.send(JSON.stringify({ type: "KeepAlive" }));
    }
  }, KEEP_ALIVE_MS);
}

// The browser connects this again by itself.
function listen() {
  const events = new EventSource(`calls/${path}/events`);
  events.addEventListener("segment", (event) => showSegment(JSON.parse(event.data)));
  events.addEventListener("summary", (event) => showSummary(JSON.parse(event.data)));
  events.addEventListener("fault", (event) => fault(event.data));
  events.addEventListener("recovered", () => fault(""));
  events.addEventListener("open", () => fault(""));
  events.addEventListener("error", () => {
    fault("This page's server cannot be reached: what others say, and the summary, come when it is back.");
  });
}

function showSegment(segment) {
  const said = element("said");
  const id = `segment-${segment.index}`;
  let item = document.getElementById(id);
  if (item === null) {
    item = document.createElement("li");
    item.id = id;
    item.dataset.index = segment.index;
    const next = [...said.children].find((other) => Number(other.dataset.index ?? Infinity) > segment.index);
    said.insertBefore(item, next ?? null);
  }
  item.replaceChildren(part("span", "who", segment.speaker ?? "Somebody"), ": ", part("span", "text", segment.text));
  element("silence").hidden = true;
  said.scrollTop = said.scrollHeight;
}

// What was sent and is not stored yet stands behind what is.
function showUnsaved() {
  const said = element("said");
  said.querySelectorAll(".unsaved").forEach((item) => item.remove());
  for (const segment of unsaved.values()) {
    const item = part("li", "unsaved", "");
    item.append(part("span", "text", segment.text), " ", part("span", "state", "(not stored yet)"));
    said.append(item);
  }
}

function showSummary(summary) {
  const number = (count, one, many) => `${count} ${count === 1 ? one : many}`;
  const page = element("summary");
  page.replaceChildren();
  const counted = number(summary.segments, "segment", "segments");
  const complete = summary.complete ? "complete" : `not complete: ${summary.publishedSegments} were announced`;
  page.append(part("p", "", `${counted}, ${number(summary.words, "word", "words")}; ${complete}.`));
  if (summary.speakers.length > 0) {
    page.append(speakers(summary.speakers));
  }
  quotes(page, "Longest turns", summary.longestTurns);
  quotes(page, "Questions", summary.questions);
  page.hidden = false;
  element("progress").textContent = "The summary is here.";
  if (settings.timelines) {
    element("timeline").href = `calls/${path}/timeline`;
    element("timeline").hidden = false;
  }
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

function part(kind, name, text) {
  const made = document.createElement(kind);
  if (name !== "") {
    made.className = name;
  }
  made.textContent = text;
  return made;
}

function connection(state, text) {
  element("connection").dataset.state = state;
  element("connection").textContent = text;
}

function fault(text) {
  element("fault").textContent = text;
  element("fault").hidden = text === "";
}

// Some browsers listen; what they heard is sent as if it were typed.
const Recognition = window.SpeechRecognition ?? window.webkitSpeechRecognition;
const recognition = Recognition === undefined ? undefined : new Recognition();
if (recognition !== undefined) {
  const button = element("microphone");
  let startedAt;
  button.hidden = false;
  recognition.continuous = true;
  recognition.lang = navigator.language;
  recognition.addEventListener("speechstart", () => (startedAt = now()));
  recognition.addEventListener("start", () => button.setAttribute("aria-pressed", "true"));
  recognition.addEventListener("end", () => button.setAttribute("aria-pressed", "false"));
  recognition.addEventListener("error", (event) => {
    if (event.error !== "no-speech" && event.error !== "aborted") {
      fault(`The browser cannot listen (${event.error}). You can type.`);
    }
  });
  recognition.addEventListener("result", (event) => {
    for (const result of [...event.results].slice(event.resultIndex)) {
      const text = result[0].transcript.trim();
      if (result.isFinal && text !== "") {
        say(text, startedAt ?? now());
        startedAt = undefined;
      }
    }
  });
  button.addEventListener("click", () => {
    if (button.getAttribute("aria-pressed") === "true") {
      recognition.stop();
    } else {
      recognition.start();
    }
  });
}
