// The server as the page sees it: is it there, does it take requests, what does it say.
//
// Out: events "state" (what the page shows of the server) and "steps" (what the engine did), and `ask`. The key lives in
// this tab's session storage and in the header of requests, never in an address.

const KEY = "gapless-key";
const SOONEST = 500;
const LATEST = 8000;
const LOOK = 10000;

/** What the server said instead of an answer. */
export class Refused extends Error {
  constructor(status, body, retryAfter) {
    const told = body?.error ?? {};
    super(typeof told.message === "string" ? told.message : `the server said ${status}`);
    this.status = status;
    this.type = told.type ?? "";
    this.param = told.param ?? "";
    this.retryAfter = retryAfter;
  }
}

/** Nobody answered, or the answer broke off. */
export class Gone extends Error {}

const pause = (time) => new Promise((resolve) => setTimeout(resolve, time));

export class Server extends EventTarget {
  state = { name: "connecting" };
  about = null;
  #key = sessionStorage.getItem(KEY) ?? "";
  #awake = null;
  #feed = null;
  #watching = true;

  get locked() {
    return this.#key !== "";
  }

  /** Keep this key for the session; "" forgets it. */
  set key(key) {
    this.#key = key;
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
    this.again();
  }

  /** Whether the engine's steps are looked at. */
  set watching(on) {
    this.#watching = on;
    this.again();
  }

  /** Look now, whatever was waited for. */
  again() {
    this.#feed?.abort();
    this.#awake?.();
  }

  /** Look after the server for as long as the page is open. */
  async run() {
    let patience = SOONEST;
    for (;;) {
      try {
        const health = await this.#health();
        patience = SOONEST;
        if (health.status !== "ready") this.#set({ name: health.status, ...health });
        else if (await this.#open()) continue;
        await this.#sleep(health.status === "loading" ? 700 : 2000);
      } catch (error) {
        if (!(error instanceof Gone)) throw error;
        this.#set({ name: "gone", seconds: patience / 1000 });
        await this.#sleep(patience);
        patience = Math.min(2 * patience, LATEST);
      }
    }
  }

  /** The server is ready: learn what it has, and look at its steps until that ends. Returns whether it went well. */
  async #open() {
    try {
      this.about = await (await this.#get("ui/about")).json();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (error.status === 401) this.#set({ name: "locked", wrong: this.locked, text: error.message });
      else this.#set({ name: "loading" });
      if (error.status === 401) await this.#sleep(LOOK * 60);
      return error.status === 401;
    }
    if (this.state.name !== "ready" && this.state.name !== "full") this.#set({ name: "ready" });
    if (!this.#watching || document.hidden) {
      await this.#sleep(LOOK);
      return true;
    }
    await this.#follow();
    return true;
  }

  async #follow() {
    this.#feed = new AbortController();
    try {
      const response = await this.#get("ui/steps", this.#feed.signal);
      for await (const event of events(response)) {
        this.dispatchEvent(new CustomEvent("steps", { detail: event }));
      }
    } catch (error) {
      if (error instanceof Refused) await this.#sleep(LOOK);
      else if (!(error instanceof Gone) && error.name !== "AbortError") throw error;
    } finally {
      this.#feed = null;
    }
  }

  async #health() {
    const response = await reach("health", { cache: "no-store" });
    try {
      return await response.json();
    } catch {
      throw new Gone("this is not the server that was here");
    }
  }

  async #get(path, signal) {
    const response = await reach(path, { headers: this.#headers(), signal, cache: "no-store" });
    if (!response.ok) throw await refusal(response);
    return response;
  }

  /** Ask; the response of a request that was taken. Throws `Refused`, `Gone`, or what the signal says. */
  async ask(path, body, signal) {
    const headers = { "Content-Type": "application/json", ...this.#headers() };
    let response;
    try {
      response = await reach(path, { method: "POST", headers, body: JSON.stringify(body), signal });
    } catch (error) {
      if (error instanceof Gone) this.again();
      throw error;
    }
    if (response.ok) {
      if (this.state.name === "full") this.#set({ name: "ready" });
      return response;
    }
    const refused = await refusal(response);
    if (refused.status === 429) this.#set({ name: "full", text: refused.message });
    else if ([401, 503].includes(refused.status)) this.again();
    throw refused;
  }

  #headers() {
    if (!this.#key) return {};
    // a header has bytes, and a key may have any letters
    const sent = String.fromCharCode(...new TextEncoder().encode(this.#key));
    return { "X-Moondream-Auth": sent };
  }

  #set(state) {
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: state }));
  }

  async #sleep(time) {
    const awake = new Promise((resolve) => { this.#awake = resolve; });
    await Promise.race([pause(time), awake]);
    this.#awake = null;
  }
}

async function reach(path, options) {
  try {
    return await fetch(path, { ...options, credentials: "omit", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Gone("the connection to the server was lost");
  }
}

async function refusal(response) {
  const body = await response.json().catch(() => null);
  return new Refused(response.status, body, Number(response.headers.get("Retry-After")) || 0);
}

/** The events of a stream, parsed. Throws `Refused` for one that says that it failed, `Gone` for one that breaks off. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      const parts = text.split("\n\n");
      text = parts.pop();
      for (const part of parts) {
        const data = part.replace(/^data: /, "");
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new Refused(500, event, 0);
        yield event;
      }
    }
  } catch (error) {
    if (error instanceof Refused || error.name === "AbortError") throw error;
    throw new Gone("the answer broke off");
  } finally {
    reader.cancel().catch(() => {});
  }
}
