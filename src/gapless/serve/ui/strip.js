// The strip: the engine's last steps as blocks on a line, to scale: forward, sampling, and the device's idle time between.
//
// In: events of ui/steps. Taller blocks carry more rows. What is drawn is also told in numbers below.

import { draw, make, ms } from "./dom.js";

const SHOWN = 72;
const WIDTH = 1000;
const HEIGHT = 56;
const REST = 2000;

export class Strip {
  #lane;
  #numbers;
  #span;
  #steps = [];
  #told = -Infinity;
  #resting = null;

  constructor(lane, numbers, span) {
    this.#lane = lane;
    this.#numbers = numbers;
    this.#span = span;
    lane.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.#tell({});
  }

  /** The engine has told something. */
  take(event) {
    const steps = event.steps.map(([id, kind, rows, started, forward, sampling, idle]) => {
      return { id, kind, rows, started, forward, sampling: sampling ?? 0, idle: Math.max(0, idle) };
    });
    // a smaller number than before: another engine
    if (steps.length && steps[0].id < (this.#steps.at(-1)?.id ?? 0)) this.#steps = [];
    this.#steps = [...this.#steps, ...steps].slice(-SHOWN);
    if (steps.length) {
      this.#draw();
      clearTimeout(this.#resting);
      this.#lane.classList.remove("resting");
      this.#resting = setTimeout(() => this.#lane.classList.add("resting"), REST);
    }
    this.#tell(event);
  }

  #draw() {
    const steps = this.#steps;
    const span = steps.reduce((sum, step) => sum + step.idle + step.forward + step.sampling, 0) || 1;
    const most = Math.max(...steps.map((step) => step.rows), 1);
    const blocks = [];
    let at = 0;
    const block = (name, took, share) => {
      const width = (WIDTH * took) / span;
      const height = HEIGHT * share;
      if (width > 0) blocks.push(draw("rect", { class: name, x: at, y: HEIGHT - height, width, height }));
      at += width;
    };
    for (const step of steps) {
      const share = 0.45 + (0.55 * step.rows) / most;
      block("idle", step.idle, 1);
      block(step.kind === "prefill" ? "prefill" : "forward", step.forward, share);
      block("sampling", step.sampling, share);
    }
    this.#lane.replaceChildren(...blocks);
  }

  #tell({ running = 0, waiting = 0, in_flight: inFlight = 0, pages = 0, pages_used: used = 0 }) {
    const steps = this.#steps;
    const decode = steps.filter((step) => step.kind === "decode");
    const mean = (name, some = decode) => some.reduce((sum, step) => sum + step[name], 0) / (some.length || NaN);
    const sum = (name) => steps.reduce((total, step) => total + step[name], 0);
    const all = sum("idle") + sum("forward") + sum("sampling");
    const rows = steps.at(-1)?.rows ?? 0;
    const told = [
      ["forward", ms(mean("forward"))],
      ["sampling", ms(mean("sampling"))],
      ["idle", all ? `${((100 * sum("idle")) / all).toFixed(2)} %` : "–"],
      ["rows", steps.length ? String(rows) : "–"],
      ["running", String(running)],
      ["waiting", String(waiting)],
      ["in flight", String(inFlight)],
      ["KV cache", pages ? `${Math.round((100 * used) / pages)} %` : "–"],
    ];
    this.#numbers.replaceChildren(...told.map(([name, value]) =>
      make("div", { dataset: { name } }, make("dt", {}, name), make("dd", {}, value))));
    this.#span.textContent = steps.length ? `${steps.length} in ${ms(all)}` : "";
    const now = performance.now();
    if (steps.length && now - this.#told > 3000) {
      this.#told = now;
      const words = told.slice(0, 4).map(([name, value]) => `${name} ${value}`).join(", ");
      this.#lane.setAttribute("aria-label", `The last ${steps.length} steps, ${ms(all)} in all: ${words}`);
    }
  }
}
