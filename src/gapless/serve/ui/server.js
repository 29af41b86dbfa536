// The server as the page sees it: is it there, does it take requests, what does it say.
//
// Out: events "state" (what the page shows of the server) and "steps" (what the engine did), and `ask`. The key lives in
// this tab's session storage and in the header of requests, never in an address.

const KEY = "gapless-key";
const SOONEST = 500;
const LATEST = 8000;
const LOOK = 10000;
const PATIENCE = 8000; // for what is answered at once by a server that lives
const SILENCE = 15000; // in the feed of steps, which says something every five seconds
const FULL = 3000; // so long at least, so that it can be read
const PROMPT = 1000; // a feed that ends sooner is not begun again at once
const STATUS = { request_timeout: 504, engine_dead: 503, engine_closed: 503 };

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

/** The tab's storage; where the browser gives none, a key lasts as long as the page. */
function kept(use) {
  try {
    return use(sessionStorage);
  } catch {
    return null;
  }
}

const pause = (time) => new Promise((resolve) => setTimeout(resolve, time));

export class Server extends EventTarget {
  state = { name: "connecting" };
  about = null;
  #key = kept((storage) => storage.getItem(KEY)) ?? "";
  #awake = null;
  #feed = null;
  #watching = true;
  #told = "";
  #later = null;

  get locked() {
    return this.#key !== "";
  }

  /** Keep this key for the session; "" forgets it. */
  set key(key) {
    this.#key = key;
    kept((storage) => (key ? storage.setItem(KEY, key) : storage.removeItem(KEY)));
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
      const told = await (await this.#get("ui/about", AbortSignal.timeout(PATIENCE))).text().catch(lost);
      if (told !== this.#told) this.#learn(told);
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

  /** It says something else than before: it was started anew, or this is the first time. */
  #learn(told) {
    try {
      this.about = JSON.parse(told);
    } catch {
      throw new Gone("this is not the server that was here");
    }
    this.#told = told;
    this.#set({ name: "ready" });
  }

  async #follow() {
    const feed = new AbortController();
    this.#feed = feed;
    const began = performance.now();
    let silent = setTimeout(() => feed.abort(), SILENCE);
    try {
      const response = await this.#get("ui/steps", feed.signal);
      for await (const event of events(response)) {
        clearTimeout(silent);
        silent = setTimeout(() => feed.abort(), SILENCE);
        this.dispatchEvent(new CustomEvent("steps", { detail: event }));
      }
    } catch (error) {
      if (error instanceof Refused) await this.#sleep(LOOK);
      else if (!(error instanceof Gone) && error.name !== "AbortError") throw error;
    } finally {
      clearTimeout(silent);
      this.#feed = null;
    }
    if (!feed.signal.aborted && performance.now() - began < PROMPT) await this.#sleep(PROMPT);
  }

  async #health() {
    const response = await reach("health", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
    const health = await response.json().catch(() => null);
    if (typeof health?.status !== "string") throw new Gone("this is not the server that was here");
    return health;
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
    if (refused.status === 429 && refused.type !== "rate_limited") this.#fill(refused);
    else if ([401, 503].includes(refused.status)) this.again();
    throw refused;
  }

  /** Full, for as long as it says; whether it is then, the next question tells. */
  #fill({ message, retryAfter }) {
    this.#set({ name: "full", text: message });
    clearTimeout(this.#later);
    const again = () => { if (this.state.name === "full") this.#set({ name: "ready" }); };
    this.#later = setTimeout(again, Math.max(FULL, 1000 * retryAfter));
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
    lost();
  }
}

function lost() {
  throw new Gone("the connection to the server was lost");
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
        if (event.error) throw new Refused(STATUS[event.error.code ?? event.error.type] ?? 500, event, 0);
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
