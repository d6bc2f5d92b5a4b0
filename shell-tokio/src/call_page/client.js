// A client of the transcriber. It keeps each segment until it is acknowledged, and sends it again on the next connection: the
// transcriber knows a segment again by client, epoch and id, so that it is stored once.

import { now } from "./memory.js";

const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 5000;
const KEEP_ALIVE_MS = 10_000;
const SEND_AGAIN_MS = 2000;
// What the transcriber closes a connection with after CloseStream.
const NORMAL = 1000;

export class Client {
  #url;
  #memory;
  #told;
  #socket;
  #isReady = false;
  #wasReady = false;
  #pause = FIRST_PAUSE_MS;
  #retry;

  // `told` has the functions connected(), away(reason, wasConnected), left(), stored(segment, index), refused(why) and changed().
  constructor(address, memory, told) {
    this.#url = address;
    this.#memory = memory;
    this.#told = told;
    setInterval(() => this.#send({ type: "KeepAlive" }), KEEP_ALIVE_MS);
    // A telephone that was asleep, or without a network, does not wait for the pause to pass.
    window.addEventListener("online", () => this.#retryNow());
    document.addEventListener("visibilitychange", () => document.hidden || this.#retryNow());
    this.#connect();
  }

  // Sends a segment that the memory has, unless that must wait until the transcriber is ready.
  say(segment) {
    this.#sendSegment(segment);
  }

  // The memory knows that this window hung up: where the transcriber is not ready, it is told later.
  hangUp() {
    this.#send({ type: "CloseStream" });
  }

  #connect() {
    const socket = new WebSocket(this.#url);
    this.#socket = socket;
    socket.addEventListener("open", () => {
      this.#memory.state.clockStart ??= now();
      this.#memory.keep();
    });
    socket.addEventListener("message", (event) => this.#answered(JSON.parse(event.data)));
    socket.addEventListener("close", (event) => this.#closed(event));
  }

  #retryNow() {
    if (this.#retry !== undefined) {
      clearTimeout(this.#retry);
      this.#retry = undefined;
      this.#connect();
    }
  }

  #closed({ code, reason }) {
    this.#isReady = false;
    if (this.#memory.state.hungUp && (code === NORMAL || this.#memory.toSend.length === 0)) {
      this.#told.left();
      return;
    }
    this.#told.away(reason, this.#wasReady);
    // Windows that lost the same transcriber do not all come back in the same moment.
    const pause = this.#pause * (0.5 + Math.random() / 2);
    this.#retry = setTimeout(() => this.#retryNow(), pause);
    this.#pause = Math.min(this.#pause * 2, LONGEST_PAUSE_MS);
  }

  #answered(frame) {
    switch (frame.type) {
      case "ready":
        this.#ready();
        break;
      case "ack":
        this.#acknowledged(frame);
        break;
      case "error":
        this.#refused(frame);
        break;
    }
  }

  #ready() {
    this.#isReady = true;
    this.#wasReady = true;
    this.#pause = FIRST_PAUSE_MS;
    this.#told.connected();
    this.#memory.toSend.forEach((segment) => this.#sendSegment(segment));
    if (this.#memory.state.hungUp) {
      this.#send({ type: "CloseStream" });
    }
  }

  #acknowledged({ id, index }) {
    const { state } = this.#memory;
    const segment = state.unsaved.find((unsaved) => unsaved.id === id);
    if (segment !== undefined) {
      state.unsaved = state.unsaved.filter((unsaved) => unsaved !== segment);
      this.#told.stored(segment, index);
      this.#changed();
    }
  }

  #refused({ id, reason, retryable }) {
    const segment = this.#memory.state.unsaved.find((unsaved) => unsaved.id === id);
    if (segment === undefined) {
      this.#told.refused(reason);
    } else if (retryable) {
      setTimeout(() => this.#sendSegment(segment), SEND_AGAIN_MS);
    } else {
      segment.refused = reason;
      this.#changed();
    }
  }

  #sendSegment({ id, text, from, to }) {
    const { clockStart } = this.#memory.state;
    const onClock = (moment) => Math.max(0, Math.round(moment - clockStart));
    this.#send({ id, text, startMs: onClock(from), endMs: onClock(to) });
  }

  // What cannot be sent now is sent once the transcriber is ready.
  #send(frame) {
    if (this.#isReady && this.#socket.readyState === WebSocket.OPEN) {
      this.#socket.send(JSON.stringify(frame));
    }
  }

  #changed() {
    this.#memory.keep();
    this.#told.changed();
  }
}
