// The answers: one card a question, the newest first. In: what was asked, and its answer as it grows. Out: cards, and
// events "over" and "pick" with a card and the number of a result, so that the picture can show which is meant.

import { make, ms } from "./dom.js";
import { COLOURS } from "./overlay.js";
import { marksOf, SKILLS, summary, wordsOf } from "./skills.js";

const number = (value) => value.toFixed(4).replace(/0+$/, "").replace(/\.$/, "");

/** Scroll the list of answers, and nothing else, so that a result is seen. */
function inView(one) {
  const list = one?.closest(".answers");
  if (!list || list.scrollHeight <= list.clientHeight) return;
  const [seen, { top, bottom }] = [list.getBoundingClientRect(), one.getBoundingClientRect()];
  if (top < seen.top + HEAD) list.scrollTop -= seen.top + HEAD - top;
  else if (bottom > seen.bottom) list.scrollTop += bottom - seen.bottom;
}

function placed(mark) {
  if (mark.kind === "point") return `${number(mark.x)}, ${number(mark.y)}`;
  return `${number(mark.x_min)}, ${number(mark.y_min)} – ${number(mark.x_max)}, ${number(mark.y_max)}`;
}

const HEAD = 60; // pixels of the list's head, which stays
const LATE = 250; // milliseconds; what the way to the server may take untold

export class Turn extends EventTarget {
  answer = {};
  marks = [];
  #parts;

  constructor(asked, picture) {
    super();
    this.asked = asked;
    this.picture = picture;
    const words = asked.skill === "caption" ? `${asked.length} caption` : asked.text;
    this.#parts = {
      words: make("p", { className: "words growing" }),
      thoughts: make("details", { className: "thoughts", hidden: true, open: true }),
      results: make("ol", { className: "results" }),
      meta: make("p", { className: "meta" }),
      times: make("dl", { className: "times", hidden: true }),
      tools: make("div", { className: "tools" }),
    };
    const head = make("h3", {}, make("span", { className: "skill" }, SKILLS[asked.skill].label), " ", words);
    const { thoughts, words: said, results, times, meta, tools } = this.#parts;
    this.element = make("li", { className: "turn", tabIndex: -1, dataset: { skill: asked.skill } });
    this.element.append(head, thoughts, said, results, times, meta, tools);
    this.#parts.words.hidden = wordsOf(asked.skill, {}) === null;
    this.#parts.meta.textContent = "waiting for the first token …";
  }

  /** Where the page is a column, a card may lie below what is seen. */
  reveal() {
    this.element.scrollIntoView({ block: "nearest" });
  }

  /** The answer has grown. */
  grow() {
    const { skill } = this.asked;
    const { words, thoughts } = this.#parts;
    words.textContent = wordsOf(skill, this.answer) ?? "";
    if (this.answer.reasoning && thoughts.hidden) {
      thoughts.hidden = false;
      thoughts.append(make("summary", {}, "Thoughts"), make("p", {}, this.answer.reasoning.text));
    }
    const marks = marksOf(skill, this.answer, this.asked.text);
    if (marks.length !== this.marks.length || !marks.length) this.#list(marks);
    else this.#update(marks);
    this.marks = marks;
  }

  /** As many as before: a film goes on, or an outline grows. */
  #update(marks) {
    for (const [at, mark] of marks.entries()) {
      const result = this.#parts.results.children[at];
      result.querySelector(".name").textContent = mark.label;
      result.querySelector(".place").textContent = placed(mark);
    }
  }

  #list(marks) {
    this.#parts.results.replaceChildren(...marks.map((mark, at) => {
      const button = make(
        "button",
        { type: "button", className: `result colour-${at % COLOURS}`, dataset: { mark: at } },
        make("span", { className: "count" }, String(at + 1)),
        make("span", { className: "name" }, mark.label),
        make("span", { className: "place" }, placed(mark)),
      );
      for (const name of ["pointerenter", "focus"]) button.addEventListener(name, () => this.#tell("over", at));
      for (const name of ["pointerleave", "blur"]) button.addEventListener(name, () => this.#tell("over", null));
      button.addEventListener("click", () => this.#tell("pick", at));
      return make("li", {}, button);
    }));
  }

  /** The answer is complete. `seen`: milliseconds until its first piece was here. */
  done(seen, tools) {
    this.grow();
    const { words, results, meta } = this.#parts;
    words.classList.remove("growing");
    const found = summary(this.asked.skill, this.answer, this.asked.text);
    if (!this.marks.length && !wordsOf(this.asked.skill, this.answer)) {
      results.append(make("li", { className: "none" }, found));
    }
    const { metrics = {}, finish_reason: reason } = this.answer;
    const first = metrics.ttft_ms ?? seen;
    const told = [];
    if (metrics.output_tokens) told.push(`${metrics.output_tokens} tokens`);
    if (metrics.decode_time_ms > 0 && metrics.output_tokens > 1) {
      told.push(`${Math.round((1000 * (metrics.output_tokens - 1)) / metrics.decode_time_ms)} a second`);
    }
    if (metrics.idle_ms !== undefined) told.push(`device idle ${ms(metrics.idle_ms)}`);
    const atOnce = wordsOf(this.asked.skill, {}) !== null && !this.asked.reasoning; // its first piece is its first token
    if (atOnce && seen > 2 * first + LATE) told.push(`here after ${ms(seen)}`);
    if (reason === "length") told.push("cut off at its limit");
    meta.textContent = told.join(" · ");
    this.#tellTimes(first, metrics);
    this.offer(tools);
    return `${found} First token after ${ms(first)}.`;
  }

  #tellTimes(first, { cached_tokens: cached, input_tokens: tokens }) {
    const { times } = this.#parts;
    const { picture } = this;
    times.hidden = false;
    const before = picture?.firstToken ?? null;
    if (picture && before === null) picture.firstToken = first;
    const most = Math.max(first, before ?? 0);
    const bar = (title, value, kind) => {
      const fill = make("span", { className: `fill ${kind}` });
      fill.style.width = `${Math.max(1.5, (100 * value) / most)}%`;
      times.append(make("div", {}, make("dt", {}, title), make("dd", {}, fill, make("span", {}, ms(value)))));
    };
    if (before !== null) bar("first question", before, "was");
    bar(before === null ? "first token" : "this one", first, "is");
    if (cached && tokens) {
      const what = `${cached} of ${tokens} tokens were there already`;
      times.append(make("div", { className: "wide" }, make("dt", {}, "cache"), make("dd", {}, what)));
    }
  }

  /** What can be done with the answer: labels, and what a click does. */
  offer(tools) {
    this.#parts.tools.replaceChildren(...Object.entries(tools).map(([label, act]) => {
      const button = make("button", { type: "button", className: "quiet" }, label);
      button.addEventListener("click", () => act(button));
      return button;
    }));
  }

  /** There is no answer, or no more of it. `title`, `text`: what went wrong and what to do. */
  failed(title, text, tools) {
    const { words, meta } = this.#parts;
    words.classList.remove("growing");
    this.element.classList.add("failed");
    meta.replaceChildren(make("strong", {}, title), " ", text);
    this.offer(tools);
  }

  /** A line about an answer that goes on, or was stopped. */
  note(text) {
    this.#parts.words.classList.remove("growing");
    this.#parts.meta.textContent = text;
  }

  /** Show which result is meant. */
  light(at) {
    for (const [place, one] of [...this.#parts.results.children].entries()) one.classList.toggle("lit", place === at);
    if (at !== null) inView(this.#parts.results.children[at]);
  }

  /** Go to a result. */
  visit(at) {
    this.#parts.results.children[at]?.querySelector("button")?.focus();
  }

  #tell(what, at) {
    this.dispatchEvent(new CustomEvent(what, { detail: at }));
  }
}
