// The form: which skill, what is asked, how it is sampled. Out: `read()`, what is asked, or null with the field marked.

import { byId, make } from "./dom.js";
import { PLACED, SKILLS } from "./skills.js";

const SETTINGS = {
  temperature: { label: "Temperature", min: 0, max: 10, step: 0.1 },
  top_p: { label: "Top p", min: 0.01, max: 1, step: 0.01 },
  max_tokens: { label: "Most tokens", min: 1, step: 1 },
  max_objects: { label: "Most objects", min: 1, max: 10000, step: 1 },
  seed: { label: "Seed", min: 0, step: 1, placeholder: "any" },
};

/** Whether a place is one: a point, or a box. */
export const right = (place) => [2, 4].includes(place.length) && place.every((value) => value >= 0 && value <= 1);

/** Whether a setting can be sent. The steps of the arrows are no limit to what may be written. */
function sound({ step, validity }) {
  const faults = ["badInput", "rangeUnderflow", "rangeOverflow", ...(step === "1" ? ["stepMismatch"] : [])];
  return !faults.some((name) => validity[name]);
}

export class Form extends EventTarget {
  skill = "query";
  pictured = false;
  #words = {};
  #model = "";
  #told = "";

  constructor() {
    super();
    this.offer({ skills: Object.keys(SKILLS), adapters: [], defaults: {}, model: "" });
    byId("prompt").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      byId("ask").requestSubmit();
    });
    byId("places").addEventListener("input", () => this.#placed());
    for (const id of ["prompt", "shape", "places"]) byId(id).addEventListener("input", () => this.#complain(id, ""));
  }

  /** Show what this server has. */
  offer(about) {
    const { skills, adapters, defaults, model } = about;
    const told = JSON.stringify([skills, adapters, defaults, model]);
    if (told === this.#told) return; // whoever writes in a field keeps it
    this.#told = told;
    this.#model = model;
    const offered = Object.keys(SKILLS).filter((name) => skills.includes(name));
    const choices = offered.map((name) => {
      const input = make("input", { type: "radio", name: "skill", value: name, checked: name === this.skill });
      input.addEventListener("change", () => this.choose(name));
      return make("label", {}, input, make("span", {}, SKILLS[name].label));
    });
    const focused = document.activeElement?.name === "skill";
    byId("skills").replaceChildren(byId("skills").querySelector("legend"), ...choices);
    this.#offerSettings(adapters, defaults);
    this.reasons = skills.includes("reasoning");
    this.choose(offered.includes(this.skill) ? this.skill : offered[0]);
    if (focused) byId("skills").querySelector(":checked")?.focus();
  }

  #offerSettings(adapters, defaults) {
    const before = this.#settings();
    const fields = Object.entries(SETTINGS).map(([name, { label, ...limits }]) => {
      const placeholder = String(defaults[name] ?? limits.placeholder ?? "");
      const input = make("input", { type: "number", id: `set-${name}`, inputMode: "decimal", ...limits, placeholder });
      input.value = before[name] ?? "";
      input.addEventListener("input", () => this.#tellSettings());
      return make("div", { className: "field" }, make("label", { htmlFor: input.id }, label), input);
    });
    if (adapters.length) {
      const options = ["", ...adapters].map((name) => make("option", { value: name }, name || "none"));
      const select = make("select", { id: "set-adapter" }, ...options);
      select.value = before.adapter ?? "";
      select.addEventListener("change", () => this.#tellSettings());
      fields.push(make("div", { className: "field" }, make("label", { htmlFor: select.id }, "Adapter"), select));
    }
    byId("settings-grid").replaceChildren(...fields);
    this.#tellSettings();
  }

  /** Take this skill up. Each keeps its own words. */
  choose(name) {
    const prompt = byId("prompt");
    if (name !== this.skill) {
      this.#words[this.skill] = prompt.value;
      prompt.value = this.#words[name] ?? "";
    }
    this.skill = name;
    const radio = byId("skills").querySelector(`input[value="${name}"]`);
    if (radio) radio.checked = true;
    const skill = SKILLS[name];
    byId("prompt-label").textContent = skill.prompt ?? "";
    for (const id of ["prompt", "prompt-label"]) byId(id).hidden = !skill.prompt;
    prompt.placeholder = skill.example ? `for example: ${skill.example}` : "";
    byId("lengths").hidden = name !== "caption";
    byId("reasoning-row").hidden = !(name === "query" && this.reasons);
    byId("shape-row").hidden = name !== "query";
    byId("places-row").hidden = !this.takesPlaces;
    this.#complain("prompt", "");
    this.#placed();
  }

  /** What is asked, or null if something is missing: it is marked and told. */
  read() {
    const { skill } = this;
    this.#complain("prompt", "");
    const text = byId("prompt").value.trim();
    if (SKILLS[skill].prompt && !text) return this.#complain("prompt", "Write here what is asked.");
    if (SKILLS[skill].picture && !this.pictured) return this.#complain("prompt", `${SKILLS[skill].label} needs a picture.`);
    for (const input of byId("settings-grid").querySelectorAll("input")) {
      if (!sound(input)) return this.mark(input.id.slice(4), input.validationMessage);
    }
    const length = document.querySelector("input[name=length]:checked").value;
    const reasoning = byId("reasoning").checked && !byId("reasoning-row").hidden;
    const shape = skill === "query" ? this.#shape() : {};
    const places = this.places();
    if (places.some((place) => !right(place))) {
      byId("places-row").open = true;
      return this.#complain("places", "A place is two or four numbers from 0 to 1.");
    }
    if (shape === null) return null;
    return { skill, text, length, reasoning, places, settings: { ...this.#settings(), ...shape }, model: this.#model };
  }

  get takesPlaces() {
    return PLACED.includes(this.skill);
  }

  /** The places that are written, wrong ones too: parts of the picture's sides. */
  places() {
    const lines = this.takesPlaces ? byId("places").value.split("\n").filter((line) => line.trim()) : [];
    return lines.map((line) => line.trim().split(/[\s,]+/).map(Number));
  }

  /** One more place, or none at all. */
  place(values) {
    const before = byId("places").value.trimEnd();
    const line = values?.map((value) => value.toFixed(4)).join(", ");
    byId("places").value = values ? `${before}${before && "\n"}${line}` : "";
    if (values) byId("places-row").open = true;
    this.#placed();
  }

  #placed() {
    const count = this.places().length;
    byId("places-told").textContent = count ? `that the words mean: ${count}` : "";
    this.dispatchEvent(new Event("places"));
  }

  /** What the answer may be, as a setting: a JSON schema, or choices one a line. None, if it cannot be read. */
  #shape() {
    const text = byId("shape").value.trim();
    if (!text) return {};
    if (!text.startsWith("{")) return { choice: text.split("\n").map((line) => line.trim()).filter(Boolean) };
    try {
      return { json_schema: JSON.parse(text) };
    } catch (error) {
      byId("shape-row").open = true;
      return this.#complain("shape", `The schema is not JSON: ${error.message}`);
    }
  }

  /** Fault was found with a field; not with one that is not on the form. Returns null. */
  mark(name, words) {
    const own = { choice: "shape", json_schema: "shape", spatial_refs: "places" };
    const asked = ["question", "object", "messages"].includes(name) ? "prompt" : `set-${name}`;
    const field = byId(own[name] ?? asked);
    field?.closest("details")?.setAttribute("open", "");
    return field ? this.#complain(field.id, words) : null;
  }

  #complain(id, words) {
    const field = byId(id);
    for (const other of document.querySelectorAll("#ask [aria-invalid]")) {
      other.removeAttribute("aria-invalid");
      other.removeAttribute("aria-describedby");
    }
    byId("hint").textContent = words;
    if (!words) return null;
    field.setAttribute("aria-invalid", "true");
    field.setAttribute("aria-describedby", "hint");
    (field.hidden ? byId("skills").querySelector(":checked") : field).focus();
    return null;
  }

  #settings() {
    const found = {};
    for (const input of byId("settings-grid").querySelectorAll("input, select")) {
      if (input.value !== "") found[input.id.slice(4)] = input.type === "number" ? Number(input.value) : input.value;
    }
    return found;
  }

  #tellSettings() {
    const told = Object.entries(this.#settings()).map(([name, value]) => `${name} ${value}`);
    byId("settings-told").textContent = told.length ? told.join(" · ") : "as the model has it";
  }
}
