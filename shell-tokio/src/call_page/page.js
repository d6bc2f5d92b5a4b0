// A call in the browser. What is said here goes to the transcriber by a WebSocket. What everybody says, the summary and what is
// wrong come from this page's server, as a stream of events.

import { Client } from "./client.js";
import { MAX_TEXT, connection, element, fault, faultsOfServers, segment, show, summary, textProblem, unsaved } from "./view.js";
import { Memory, now } from "./memory.js";

const LISTEN_AGAIN_MS = 5000;
const MAX_ID_BYTES = 256;

const address = new URL(location.href);
const conversation = address.searchParams.get("conversation") ?? "try-out";
const session = address.searchParams.get("session");
const path = `${encodeURIComponent(conversation)}/${encodeURIComponent(session)}`;
const memory = await Memory.open(path);

let client;
let typingSince;

start();

function start() {
  if ([conversation, session].some((id) => id === "" || new TextEncoder().encode(id).length > MAX_ID_BYTES)) {
    fault("address", `This address names no call: its ids must have 1 to ${MAX_ID_BYTES} bytes each.`);
    show("join", false);
    return;
  }
  if (memory.state.name !== undefined) {
    // The page was loaded again in the middle of a call.
    join(memory.state.name);
  }
}

element("join").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = element("name").value.trim();
  if (name === "") {
    element("name").focus();
  } else {
    join(name);
  }
});

async function join(name) {
  memory.state.name = name;
  memory.keep();
  // So that the windows of one call can be told apart.
  document.title = `${name} in a call`;
  show("join", false);
  show("call", true);
  element("address").href = address;
  element("address").textContent = address;
  unsaved(memory.state.unsaved);
  if (memory.state.hungUp) {
    showThatHungUp();
  } else {
    element("text").focus();
  }
  const settings = await load("settings.json");
  listen(settings);
  if (memory.state.hungUp && memory.toSend.length === 0) {
    told.left();
  } else {
    connection("wait", "Connecting…");
    client = new Client(transcriberAddress(settings.transcriber, name), memory, told);
  }
}

function transcriberAddress(transcriber, name) {
  const query = new URLSearchParams({ client: memory.state.client, epoch: "window", speaker: name });
  const call = `conversations/${encodeURIComponent(conversation)}/sessions/${encodeURIComponent(session)}`;
  return `${transcriber}/v1/${call}?${query}`;
}

// Asks until there is an answer.
async function load(name) {
  for (;;) {
    try {
      const settings = await (await fetch(name)).json();
      fault("page");
      return settings;
    } catch {
      fault("page", "This page's server cannot be reached. It is asked again.");
      await new Promise((resolve) => setTimeout(resolve, LISTEN_AGAIN_MS));
    }
  }
}

// What the client of the transcriber tells.
const told = {
  connected() {
    connection("open", "Connected");
    fault("transcriber");
    fault("refused");
  },
  away(reason, wasConnected) {
    connection("away", "Not connected");
    const why = reason === "" ? "The transcriber cannot be reached" : `The transcriber says: ${reason}`;
    // The browser does not tell a page why a connection was never opened.
    const remedy = wasConnected ? "" : ` Does it run, and does it allow this page (--allow-origin ${location.origin}) without a token?`;
    fault("transcriber", `${why}. What you say is kept in this window, and sent when it answers again.${remedy}`);
  },
  left() {
    connection("idle", "You have hung up");
    fault("transcriber");
  },
  stored({ text }, index) {
    segment({ index, speaker: memory.state.name, text }, memory.state.name);
  },
  refused(reason) {
    fault("refused", `The transcriber says: ${reason}.`);
  },
  changed() {
    unsaved(memory.state.unsaved);
  },
};

// The browser connects this again by itself, unless the server refused it.
function listen(settings) {
  const events = new EventSource(`calls/${path}/events`);
  const on = (name, then) => events.addEventListener(name, (event) => then(JSON.parse(event.data)));
  on("segment", (said) => segment(said, memory.state.name));
  on("summary", (stored) => summary(stored, settings.timelines ? `calls/${path}/timeline` : undefined));
  on("faults", (faults) => {
    fault("page");
    faultsOfServers(faults);
  });
  events.addEventListener("error", () => {
    faultsOfServers([]);
    fault("page", "This page's server cannot be reached. What others say, and the summary, come when it is back.");
    if (events.readyState === EventSource.CLOSED) {
      setTimeout(() => listen(settings), LISTEN_AGAIN_MS);
    }
  });
}

function say(text, from) {
  const segment = memory.say(text, from);
  told.changed();
  client?.say(segment);
}

element("text").addEventListener("input", () => {
  typingSince ??= now();
  textProblem("");
});

element("speak").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = element("text").value.trim();
  if (text.length > MAX_TEXT) {
    textProblem(`This is ${text.length - MAX_TEXT} characters too long. Say it in parts of at most ${MAX_TEXT}.`);
  } else if (text !== "") {
    say(text, typingSince ?? now());
    element("text").value = "";
  }
  typingSince = undefined;
  element("text").focus();
});

element("hang-up").addEventListener("click", () => {
  speech?.stop();
  memory.hangUp();
  client?.hangUp();
  showThatHungUp();
  element("summary-title").focus();
});

function showThatHungUp() {
  show("speak", false);
  show("invitation", false);
  show("after", true);
}

// What is said and not stored would be lost with the window.
window.addEventListener("beforeunload", (event) => {
  if (memory.toSend.length > 0) {
    event.preventDefault();
  }
});

// Some browsers understand speech. What they heard is sent as if it were typed.
const speech = listenToSpeech(window.SpeechRecognition ?? window.webkitSpeechRecognition);

function listenToSpeech(Recognition) {
  if (Recognition === undefined) {
    return undefined;
  }
  const recognition = new Recognition();
  const button = element("microphone");
  let isWanted = false;
  let startedAt;
  const want = (wanted) => {
    isWanted = wanted;
    button.setAttribute("aria-pressed", String(wanted));
  };
  recognition.continuous = true;
  recognition.lang = navigator.language;
  recognition.addEventListener("speechstart", () => (startedAt = now()));
  // It ends by itself after a while, also while somebody still wants to speak.
  recognition.addEventListener("end", () => isWanted && recognition.start());
  recognition.addEventListener("error", ({ error }) => {
    if (error !== "no-speech" && error !== "aborted") {
      want(false);
      fault("microphone", `The browser cannot listen (${error}). You can type.`);
    }
  });
  recognition.addEventListener("result", ({ results, resultIndex }) => {
    for (const result of [...results].slice(resultIndex)) {
      const text = result[0].transcript.trim();
      if (result.isFinal && text !== "") {
        say(text, startedAt ?? now());
        startedAt = undefined;
      }
    }
  });
  button.addEventListener("click", () => {
    want(!isWanted);
    fault("microphone");
    if (isWanted) {
      recognition.start();
    } else {
      recognition.stop();
    }
  });
  show("microphone", true);
  const stop = () => {
    want(false);
    recognition.stop();
  };
  return { stop };
}
