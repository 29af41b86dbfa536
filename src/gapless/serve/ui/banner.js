// What there is to say of the server: a word in the head, and a banner where somebody has to wait or to do something.

import { byId, say } from "./dom.js";

const WORDS = {
  connecting: ["connecting", "", ""],
  loading: ["loading", "The server is loading its model.", "Choose a picture meanwhile; questions are taken as soon as it is ready."],
  ready: ["ready", "", ""],
  full: ["full", "The server is full.", ""],
  stopping: ["stopping", "The server is stopping.", "It takes no more questions. The page goes on when it is back."],
  dead: ["dead", "The engine has died.", "Its log says why. The page goes on when the server was started again."],
  gone: ["gone", "The connection is lost.", ""],
  locked: ["locked", "This server asks for a key.", "It stays in this tab, and is forgotten when that is closed."],
};

export class Banner {
  #server;

  constructor(server) {
    this.#server = server;
    server.addEventListener("state", ({ detail }) => this.show(detail));
    byId("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      server.key = byId("key").value.trim();
      byId("key").value = "";
    });
    byId("forget-key").addEventListener("click", () => { server.key = ""; });
  }

  show(state) {
    const [word, title, text] = WORDS[state.name] ?? WORDS.gone;
    byId("status").dataset.state = state.name;
    const model = state.name === "ready" ? this.#server.about?.model : "";
    byId("status-text").textContent = model ? `${model} is ready` : word;
    const held = byId("key-form").contains(document.activeElement) || document.activeElement === byId("forget-key");
    byId("forget-key").hidden = !this.#server.locked;
    byId("key-form").hidden = state.name !== "locked";
    if (held && state.name === "ready") byId("prompt").focus();
    this.#progress(state);
    this.#words(title, this.#more(state) ?? text);
    byId("banner").hidden = !title;
    byId("banner").dataset.state = state.name;
    if (state.name === "locked" && document.activeElement === document.body) byId("key").focus();
  }

  #more(state) {
    if (state.name === "gone") {
      return `Nobody answers at ${location.host}. Trying again in ${state.seconds.toFixed(1).replace(/\.0$/, "")} s.`;
    }
    if (state.name === "full") return state.text.charAt(0).toUpperCase() + state.text.slice(1);
    if (state.name === "locked" && state.wrong) return state.text.charAt(0).toUpperCase() + state.text.slice(1);
    return null;
  }

  #progress({ name, doing, done, total }) {
    const bar = byId("banner-progress");
    bar.hidden = name !== "loading";
    if (name !== "loading" || !(total > 1)) bar.removeAttribute("value");
    else [bar.max, bar.value] = [total, done];
    if (doing) bar.setAttribute("aria-label", `${doing}: ${done} of ${total}`);
    byId("status-text").textContent += name === "loading" && total > 1 ? ` ${Math.floor((100 * done) / total)} %` : "";
  }

  /** A screen reader says them: once, and not each time that the page has tried again. */
  #words(title, text) {
    const [before, told] = [byId("banner-title").textContent, byId("banner-text").textContent];
    if (title && (title !== before || (text !== told && !byId("key-form").hidden))) say(`${title} ${text}`);
    byId("banner-title").textContent = title;
    byId("banner-text").textContent = text;
  }
}
