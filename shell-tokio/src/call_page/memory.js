// What this window knows of its call. It outlives a reload, because it lies in the tab's session storage.

// Milliseconds on a clock that no change of the computer's time moves.
export const now = () => performance.timeOrigin + performance.now();

// A browser copies the storage when a tab is duplicated. The copy is another window: it must not go on with the same ids.
const LOCK_WITHIN_MS = 1000;

const fresh = () => ({
  client: crypto.randomUUID(),
  name: undefined,
  // When the first connection opened: the transcriber's clock for this client starts then.
  clockStart: undefined,
  nextId: 0,
  // Segments that are not stored: those to be sent, and those that were refused, with the reason.
  unsaved: [],
  hungUp: false,
});

export class Memory {
  #key;
  state;

  static async open(call) {
    const memory = new Memory();
    memory.#key = `call:${call}`;
    memory.state = memory.#read() ?? fresh();
    if (!(await isOnlyWindow(memory.state.client))) {
      memory.state = fresh();
      await isOnlyWindow(memory.state.client);
    }
    return memory;
  }

  keep() {
    try {
      sessionStorage.setItem(this.#key, JSON.stringify(this.state));
    } catch {
      // Without storage, or with a full one, a reload starts anew.
    }
  }

  // A segment is in the memory before anybody is asked to send it.
  say(text, from) {
    const segment = { id: String(this.state.nextId++), text, from, to: now() };
    this.state.unsaved.push(segment);
    this.keep();
    return segment;
  }

  hangUp() {
    this.state.hungUp = true;
    this.keep();
  }

  get toSend() {
    return this.state.unsaved.filter((segment) => segment.refused === undefined);
  }

  #read() {
    try {
      return JSON.parse(sessionStorage.getItem(this.#key));
    } catch {
      return null;
    }
  }
}

// Holds a lock of this name until the window is closed. A page that is reloaded gives its lock free a moment later.
function isOnlyWindow(client) {
  if (navigator.locks === undefined) {
    return Promise.resolve(true);
  }
  return new Promise((resolve) => {
    const held = () => {
      resolve(true);
      return new Promise(() => {});
    };
    navigator.locks
      .request(`client:${client}`, { signal: AbortSignal.timeout(LOCK_WITHIN_MS) }, held)
      .catch(() => resolve(false));
  });
}
