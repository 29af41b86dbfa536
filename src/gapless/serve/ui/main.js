// The page put together: the server, the picture, the form, the answers.

import { Banner } from "./banner.js";
import { Board } from "./board.js";
import { asCurl, asPython } from "./copying.js";
import { Film } from "./camera.js";
import { byId, ms, rest, say } from "./dom.js";
import { Form, right } from "./form.js";
import { events, Gone, Refused, Server } from "./server.js";
import { gather, requestOf, SKILLS, whole, wordsOf } from "./skills.js";
import { Strip } from "./strip.js";
import { Turn } from "./turns.js";

const server = new Server();
const form = new Form();
const board = new Board(() => server.about);
const strip = new Strip(byId("lane"), byId("numbers"), byId("span"));
new Banner(server);

const PATIENCE = "One question at a time. Wait for the answer, or stop it.";

let shown = null; // the turn whose marks are on the picture
let asking = null; // what ends the question that is being answered
let taking = false; // a frame of the camera becomes the picture that is asked about
let film = null;
let talk = []; // the conversation about this picture

// -- answers ---------------------------------------------------------------------------------------------------------

function add(turn) {
  byId("nothing").hidden = true;
  byId("clear").hidden = false;
  byId("turns").prepend(turn.element);
  turn.addEventListener("over", ({ detail }) => light(turn, detail));
  turn.addEventListener("pick", ({ detail }) => {
    show(turn);
    light(turn, detail);
    if (turn === shown) board.overlay.visit(detail);
  });
  shown = turn;
  board.overlay.clear();
}

/** Put a turn's marks on the picture, if it is still the picture they belong to. */
function show(turn) {
  if (turn.picture !== board.picture || (film && turn !== shown)) return;
  shown = turn;
  const { width, height } = board.size;
  board.overlay.show(turn.marks, width, height);
}

function light(turn, at) {
  turn.light(at);
  if (at !== null && turn !== shown) show(turn);
  if (turn === shown) board.overlay.light(at);
}

board.overlay.addEventListener("over", ({ detail }) => {
  shown?.light(detail);
  board.overlay.light(detail);
});
board.overlay.addEventListener("pick", ({ detail }) => shown?.visit(detail));

// -- asking ----------------------------------------------------------------------------------------------------------

async function ask(asked, picture) {
  if (asking) return say(PATIENCE);
  asking = new AbortController();
  const { signal } = asking;
  const turn = new Turn(asked, picture);
  add(turn);
  turn.reveal();
  say("Asked.");
  busy(true);
  const began = performance.now();
  const before = asked.skill === "chat" && picture === board.picture ? talk : [];
  let seen = null;
  let taken = null;
  try {
    const image = picture ? await picture.data() : null;
    signal.throwIfAborted();
    const request = requestOf(asked, image, before, true);
    taken = tools(turn, requestOf(asked, image && {}, before, false)); // cards do not keep what the picture takes
    const response = await server.ask(request.path, request.body, signal);
    if (response.headers.get("Content-Type").startsWith("text/event-stream")) {
      for await (const event of events(response)) {
        if (gather(asked.skill, turn.answer, event)) seen ??= performance.now() - began;
        grown(turn);
      }
      if (!turn.answer.finish_reason) throw new Gone("the answer broke off");
    } else {
      turn.answer = whole(asked.skill, await response.json());
      seen = performance.now() - began;
    }
    say(turn.done(seen ?? performance.now() - began, taken));
    show(turn);
    if (asked.skill === "chat" && picture === board.picture) {
      talk = [...before, { role: "user", content: asked.text }, { role: "assistant", content: turn.answer.answer ?? "" }];
    }
  } catch (error) {
    const again = { "Ask again": () => ask({ ...asked, model: server.about?.model ?? asked.model }, picture) };
    fail(turn, error, turn.answer.finish_reason ? { ...again, ...taken } : again);
  } finally {
    asking = null;
    busy(false);
  }
}

function grown(turn) {
  const before = turn.marks;
  turn.grow();
  if (turn !== shown) return;
  const same = before.length === turn.marks.length && before.length > 0;
  if (same && turn.asked.skill === "segment") board.overlay.grow(0, turn.marks[0].path);
  else if (!same) show(turn);
}

function fail(turn, error, offered) {
  if (error.name === "AbortError") {
    turn.note("stopped");
    say("Stopped.");
    return;
  }
  const [title, text] = inWords(error);
  turn.failed(title, text, offered);
  say(`${title} ${text}`);
  const here = turn.asked.skill === form.skill;
  if (error instanceof Refused && error.status === 400 && error.param && here) form.mark(error.param, error.message);
  else if (!(error instanceof Refused) && !(error instanceof Gone)) console.error(error);
}

function inWords(error) {
  if (error instanceof Gone) return ["The connection was lost.", "The page goes on trying; then ask again."];
  if (!(error instanceof Refused)) return ["Something went wrong on this page.", error.message];
  const wait = error.retryAfter ? ` It says: again in ${error.retryAfter} s.` : "";
  const titles = {
    401: "The server wants a key.",
    413: "That is too much for this server.",
    429: "The server is full.",
    501: "This model cannot do that.",
    503: "The server takes no questions now.",
    504: "The answer took too long.",
  };
  if (error.type === "rate_limited") titles[429] = "You ask more often than your key may.";
  const title = titles[error.status] ?? (error.status < 500 ? "That cannot be asked." : "The server failed.");
  return [title, `${sentence(error.message)}${wait}`];
}

function sentence(text) {
  const words = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(words) ? words : `${words}.`;
}

/** What a card offers. `path`, `body`: the request; where the picture goes, an object stands in it. */
function tools(turn, { path, body }) {
  const { picture } = turn;
  const image = body.image_url ?? body.messages?.[0].content[0]?.image_url?.url ?? null;
  const url = new URL(path, document.baseURI).href;
  const told = { url, body, image, type: picture?.blob.type ?? "", name: picture?.name ?? "", locked: server.locked };
  const copy = (text) => (button) => copied(button, text());
  const found = {
    "Copy JSON": copy(() => JSON.stringify(turn.answer, null, 2)),
    "Copy curl": copy(() => asCurl(told)),
    "Copy Python": copy(() => asPython(told)),
  };
  if (picture && !picture.kept) found["Save picture"] = () => picture.save();
  return found;
}

async function copied(button, text) {
  const label = (button.dataset.label ??= button.textContent); // it may be pressed again before it says this again
  try {
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else if (!copiedByHand(text, button)) throw new Error("not allowed");
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  say(button.textContent);
  setTimeout(() => { button.textContent = label; }, 1500);
}

/** At an address that is neither https:// nor localhost a page has no clipboard, but may still copy what is selected. */
function copiedByHand(text, button) {
  const place = document.createElement("textarea");
  place.value = text;
  place.className = "unseen";
  document.body.append(place);
  place.select();
  const done = document.execCommand("copy");
  place.remove();
  button.focus();
  return done;
}

// -- film ------------------------------------------------------------------------------------------------------------

async function roll(asked) {
  const turn = new Turn(asked, null);
  add(turn);
  busy(true);
  asking = new AbortController();
  const { signal } = asking;
  const reel = new Film(board.camera, async (image) => {
    const { path, body } = requestOf(asked, image, [], false);
    for (;;) {
      try {
        return whole(asked.skill, await (await server.ask(path, body, signal)).json());
      } catch (error) {
        if (!(error instanceof Refused) || ![429, 503].includes(error.status)) throw error;
        turn.note(`${inWords(error)[0]} Waiting for a place …`);
        await rest(1000 * Math.max(1, error.retryAfter), signal);
      }
    }
  });
  film = reel;
  let lost = false;
  say("Filming. Stop ends it.");
  try {
    await reel.run((answer, took) => {
      turn.answer = answer;
      turn.grow();
      show(turn);
      board.rate(reel.rate);
      turn.note(`${reel.rate.toFixed(1)} frames a second · ${ms(took)} each · ${reel.answered} asked, ${reel.dropped} dropped`);
    });
  } catch (error) {
    lost = error.name !== "AbortError";
    if (lost) fail(turn, error, {});
  }
  film = null;
  asking = null;
  board.rate(null);
  board.dark();
  busy(false);
  if (reel.kept && reel.last) await keep(turn, reel.last);
  const last = wordsOf(asked.skill, turn.answer) ?? `${turn.marks.length} found`;
  if (!lost) say(`Filmed ${reel.answered} frames.${reel.answered ? ` The last answer: ${last}.` : ""}`);
}

/** The last frame of a film stays, as the picture that its last answer is about. */
async function keep(turn, frame) {
  const before = board.picture;
  await board.take(frame, "camera.jpg", false);
  if (board.picture === before || asking) return;
  turn.picture = board.picture;
  turn.offer(tools(turn, requestOf(turn.asked, {}, [], false)));
  shown = turn;
  show(turn);
}

/** `kept`: what is filmed is not left, only ended. */
function halt(kept = false) {
  film?.stop(kept);
  asking?.abort();
}

// -- the form's buttons ----------------------------------------------------------------------------------------------

function busy(on) {
  byId("stop").hidden = !on;
  byId("send").hidden = on;
  byId("send").setAttribute("aria-disabled", String(on));
  byId("film").hidden = on || !board.camera.on;
  byId("ask").classList.toggle("busy", on);
}

byId("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (asking || taking) return say(PATIENCE);
  form.pictured = board.picture !== null || board.camera.on;
  const asked = form.read();
  if (!asked) return;
  taking = board.camera.on;
  if (taking) await board.snap();
  const none = taking && !board.picture;
  taking = false;
  if (none) return;
  const held = document.activeElement === byId("send");
  const answered = ask(asked, board.picture);
  if (held) byId("stop").focus();
  await answered;
  if (document.activeElement === document.body || document.activeElement === byId("stop")) byId("send").focus();
  if (SKILLS[asked.skill].prompt && document.activeElement === byId("prompt")) byId("prompt").select();
});
byId("film").addEventListener("click", () => {
  if (asking || taking || !board.camera.on) return;
  form.pictured = true;
  const asked = form.read();
  if (!asked) return;
  roll(asked);
  byId("stop").focus({ preventScroll: true });
  byId("stage").scrollIntoView({ block: "nearest" }); // on a phone the button is far below what is filmed
});
byId("stop").addEventListener("click", () => {
  halt(true);
  byId("send").hidden = false;
  byId("send").focus();
});
byId("clear").addEventListener("click", () => {
  halt();
  byId("turns").replaceChildren();
  byId("nothing").hidden = false;
  byId("clear").hidden = true;
  board.overlay.clear();
  shown = null;
  talk = [];
  byId("prompt").focus();
});
byId("strip-pause").addEventListener("click", ({ currentTarget: button }) => {
  const paused = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(paused));
  server.watching = !paused;
});

board.addEventListener("place", ({ detail }) => { if (form.takesPlaces) form.place(detail); });
form.addEventListener("places", () => {
  byId("frame").classList.toggle("aims", form.takesPlaces);
  board.pin(form.places().filter(right));
});

board.addEventListener("picture", () => {
  talk = [];
  form.place(null);
  shown = null;
  halt();
  busy(false);
});
board.addEventListener("camera", () => {
  if (film && !board.camera.on) halt();
  busy(asking !== null);
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden && film) board.tell("The film was stopped, since the page was not to be seen.");
  if (document.hidden) board.dark();
  server.again();
});
window.addEventListener("pagehide", () => board.dark());
server.addEventListener("steps", ({ detail }) => strip.take(detail));
server.addEventListener("state", ({ detail }) => {
  if (detail.name === "ready" && server.about) form.offer(server.about);
});
server.run();
