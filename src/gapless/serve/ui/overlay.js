// What was found, drawn on the picture. In: marks with the API's own numbers, parts of the picture's sides from 0 to 1.
//
// The drawing has the picture's pixels as its units and lies exactly on it, so marks are right at any size of the window.
// Each mark has a badge, a button that leads to its result; arrows lead from badge to badge, Tab past them.

import { draw, make } from "./dom.js";

export const COLOURS = 8;
const CROWD = 60;

export class Overlay extends EventTarget {
  #shapes;
  #badges;
  #marks = [];

  constructor(shapes, badges) {
    super();
    this.#shapes = shapes;
    this.#badges = badges;
    badges.addEventListener("keydown", (event) => this.#arrow(event));
  }

  /** Draw these and nothing else, on a picture of so many pixels. */
  show(marks, width, height) {
    const named = document.activeElement?.dataset?.mark;
    const held = this.#badges.contains(document.activeElement);
    this.#marks = marks;
    this.#crowd(marks.length);
    this.#shapes.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.#shapes.setAttribute("preserveAspectRatio", "none");
    this.#shapes.replaceChildren(...marks.map((mark, at) => this.#shape(mark, at, width, height)));
    this.#badges.replaceChildren(...marks.map((mark, at) => this.#badge(mark, at)));
    if (held) this.#badges.children[Math.min(named ?? 0, marks.length - 1)]?.focus();
  }

  clear() {
    this.#marks = [];
    this.#crowd(0);
    this.#shapes.replaceChildren();
    this.#badges.replaceChildren();
  }

  /** Go to a mark. */
  visit(at) {
    this.#badges.children[at]?.focus();
  }

  /** So many marks that their numbers would hide the picture: they show when they are meant. */
  #crowd(count) {
    for (const group of [this.#shapes, this.#badges]) group.classList.toggle("crowd", count > CROWD);
  }

  /** More of an outline whose box is drawn already. */
  grow(at, path) {
    for (const part of this.#shapes.children[at]?.querySelectorAll("path.outline") ?? []) part.setAttribute("d", path);
  }

  /** Show which mark is meant; null: none is. */
  light(at) {
    for (const group of [this.#shapes, this.#badges]) {
      group.classList.toggle("some-lit", at !== null);
      for (const [place, one] of [...group.children].entries()) one.classList.toggle("lit", place === at);
    }
  }

  #shape(mark, at, width, height) {
    const parts = [];
    if (mark.kind === "point") {
      const d = `M ${mark.x * width} ${mark.y * height} h 0`;
      parts.push(draw("path", { class: "dot case", d }), draw("path", { class: "dot", d }));
    } else {
      const [x, y] = [mark.x_min * width, mark.y_min * height];
      const [w, h] = [(mark.x_max - mark.x_min) * width, (mark.y_max - mark.y_min) * height];
      if (mark.kind === "outline") {
        const transform = `translate(${x} ${y}) scale(${w} ${h})`;
        const path = { transform, d: mark.path };
        parts.push(draw("rect", { class: "thin", x, y, width: w, height: h }));
        parts.push(draw("path", { class: "outline case", ...path }), draw("path", { class: "outline", ...path }));
      } else {
        for (const name of ["box case", "box"]) parts.push(draw("rect", { class: name, x, y, width: w, height: h }));
      }
    }
    const group = draw("g", { class: `mark colour-${at % COLOURS}`, "data-kind": mark.kind }, ...parts);
    group.addEventListener("pointerenter", () => this.#tell("over", at));
    group.addEventListener("pointerleave", () => this.#tell("over", null));
    group.addEventListener("click", () => this.#tell("pick", at));
    return group;
  }

  #badge(mark, at) {
    const badge = make("button", {
      type: "button",
      className: `badge colour-${at % COLOURS}`,
      textContent: String(at + 1),
      tabIndex: at === 0 ? 0 : -1,
      dataset: { mark: at, kind: mark.kind },
      aria: { label: `${at + 1}: ${mark.label}` },
    });
    const [x, y] = mark.kind === "point" ? [mark.x, mark.y] : [mark.x_min, mark.y_min];
    badge.style.left = `${100 * x}%`;
    badge.style.top = `${100 * y}%`;
    badge.classList.toggle("below", y < 0.06);
    badge.classList.toggle("left", mark.kind === "point" && x > 0.94);
    badge.addEventListener("pointerenter", () => this.#tell("over", at));
    badge.addEventListener("pointerleave", () => this.#tell("over", null));
    badge.addEventListener("focus", () => this.#tell("over", at));
    badge.addEventListener("blur", () => this.#tell("over", null));
    badge.addEventListener("click", () => this.#tell("pick", at));
    return badge;
  }

  #arrow(event) {
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    const badges = [...this.#badges.children];
    const now = badges.indexOf(document.activeElement);
    let next = event.key in steps ? (now + steps[event.key] + badges.length) % badges.length : now;
    if (event.key === "Home") next = 0;
    if (event.key === "End") next = badges.length - 1;
    if (next === now || now < 0) return;
    event.preventDefault();
    for (const [place, badge] of badges.entries()) badge.tabIndex = place === next ? 0 : -1;
    badges[next].focus();
  }

  #tell(what, at) {
    this.dispatchEvent(new CustomEvent(what, { detail: at }));
  }
}
