// The board: the picture or the camera's view, with what was found drawn on it. In: files, however they come. Out: events
// "picture" (another one, or none) and "camera" (on or off).

import { Camera } from "./camera.js";
import { byId, bytes, draw, make, say, short } from "./dom.js";
import { Overlay } from "./overlay.js";
import { open, pictureIn } from "./picture.js";

const SAMPLES = [
  ["shapes_wide.png", "Shapes on a wide ground"],
  ["shapes_square.png", "Four shapes and a number"],
  ["shapes_tall.png", "Shapes on a tall ground"],
];

const SLOW = 400;

const brings = (event) => event.dataTransfer?.types.includes("Files") ?? false;
const writes = (target) => target.matches?.("textarea, input") ?? false;

export class Board extends EventTarget {
  picture = null;
  overlay = new Overlay(byId("shapes"), byId("badges"));
  camera = new Camera(byId("video"));
  #about;
  #turn = 0;

  /** `about`: what is known of the server, or null. */
  constructor(about) {
    super();
    this.#about = about;
    this.#listen();
    byId("samples").append(...SAMPLES.map(([file, title]) => {
      const image = make("img", { src: `ui/samples/${file}`, alt: title, loading: "lazy" });
      const button = make("button", { type: "button" }, image);
      button.addEventListener("click", async () => {
        const response = await fetch(image.src).catch(() => null);
        if (response?.ok) this.take(await response.blob(), file);
        else this.tell("The picture could not be fetched; is the server still there?");
      });
      return make("li", {}, button);
    }));
  }

  /** The pixels that numbers from 0 to 1 are parts of. */
  get size() {
    if (this.camera.on) return { width: byId("video").videoWidth, height: byId("video").videoHeight };
    return this.picture ?? { width: 1, height: 1 };
  }

  #listen() {
    const board = byId("board");
    byId("choose").addEventListener("click", () => byId("file").click());
    byId("file").addEventListener("change", ({ target }) => {
      if (target.files[0]) this.take(target.files[0], target.files[0].name);
      target.value = "";
    });
    byId("camera").addEventListener("click", () => this.light());
    byId("camera-off").addEventListener("click", () => {
      this.dark();
      byId("camera").focus();
    });
    byId("snap").addEventListener("click", () => this.snap());
    byId("remove").addEventListener("click", () => {
      this.#turn += 1;
      this.#show(null);
    });
    document.addEventListener("paste", (event) => {
      const file = pictureIn(event.clipboardData);
      if (!file || (writes(event.target) && event.clipboardData.types.includes("text/plain"))) return;
      event.preventDefault();
      this.take(file, file.name || "pasted.png");
    });
    this.#point();
    let depth = 0;
    for (const [name, by] of [["dragenter", 1], ["dragleave", -1]]) {
      window.addEventListener(name, (event) => {
        if (!brings(event)) return;
        depth = Math.max(0, depth + by);
        board.classList.toggle("dropping", depth > 0);
      });
    }
    const asWords = (event) => writes(event.target) && !brings(event);
    window.addEventListener("dragover", (event) => { if (!asWords(event)) event.preventDefault(); });
    window.addEventListener("drop", (event) => {
      if (asWords(event)) return;
      event.preventDefault();
      depth = 0;
      board.classList.remove("dropping");
      const file = pictureIn(event.dataTransfer);
      const { length } = event.dataTransfer.files;
      const more = length > 1 ? `One picture at a time: of the ${length} files this is the first picture.` : "";
      if (file) this.take(file, file.name || "dropped.png", true, more);
      else this.tell("That was no file. Drop a picture, or choose one.");
    });
  }

  /** A click on the picture is a point, a drag a box: event "place". */
  #point() {
    const image = byId("picture");
    let from = null;
    const at = ({ clientX, clientY }) => {
      const { left, top, width, height } = image.getBoundingClientRect();
      return [(clientX - left) / width, (clientY - top) / height].map((part) => Math.min(1, Math.max(0, part)));
    };
    image.addEventListener("pointerdown", (event) => { if (event.button === 0) from = event; });
    window.addEventListener("pointercancel", () => { from = null; });
    window.addEventListener("pointerup", (event) => {
      if (from === null) return;
      const [[x, y], [to_x, to_y]] = [at(from), at(event)];
      const far = Math.hypot(event.clientX - from.clientX, event.clientY - from.clientY) > 6;
      from = null;
      const box = [Math.min(x, to_x), Math.min(y, to_y), Math.max(x, to_x), Math.max(y, to_y)];
      this.dispatchEvent(new CustomEvent("place", { detail: far ? box : [x, y] }));
    });
  }

  /** Draw places that are asked about. */
  pin(places) {
    byId("pins").replaceChildren(...places.map(([x, y, to_x, to_y]) => {
      if (to_x === undefined) return draw("path", { class: "pin", d: `M ${x} ${y} h 0` });
      return draw("rect", { class: "pin", x, y, width: Math.max(0, to_x - x), height: Math.max(0, to_y - y) });
    }));
  }

  /** A line under the picture. */
  tell(words) {
    byId("picture-note").textContent = words;
  }

  /** Take a file up as the picture. `kept`: whoever asks has it as a file. `more`: what else there is to say. */
  async take(file, name, kept = true, more = "") {
    const turn = ++this.#turn;
    this.tell("");
    const slow = setTimeout(() => { if (turn === this.#turn) this.tell("The picture is being read …"); }, SLOW);
    try {
      const picture = await open(file, name, this.#about());
      if (turn !== this.#turn) return; // another one came meanwhile
      picture.kept = kept && picture.blob === file;
      picture.note = `${more} ${picture.note}`.trim();
      this.#show(picture);
    } catch (error) {
      if (turn === this.#turn) this.tell(error.message);
    } finally {
      clearTimeout(slow);
    }
  }

  #show(picture) {
    const pressed = [byId("empty"), byId("snap")].some((one) => one.contains(document.activeElement));
    this.dark();
    this.picture?.close();
    this.picture = picture;
    const image = byId("picture");
    byId("empty").hidden = picture !== null;
    byId("frame").hidden = picture === null;
    byId("remove").hidden = picture === null;
    image.hidden = picture === null;
    this.overlay.clear();
    if (picture) {
      this.#fit(picture);
      image.src = picture.url;
      image.alt = `The picture: ${picture.name}`;
      byId("about-picture").textContent = `${short(picture.name)} · ${picture.width} × ${picture.height} · ${bytes(picture.blob.size)}`;
      this.tell(picture.note);
      if (pressed) byId("prompt-area").focus({ preventScroll: true }); // what was pressed is gone
    } else {
      image.removeAttribute("src");
      byId("about-picture").textContent = "";
      byId("choose").focus();
    }
    this.dispatchEvent(new Event("picture"));
    say(picture ? `Picture ${short(picture.name)}, ${picture.width} by ${picture.height}.` : "No picture.");
  }

  #fit({ width, height }) {
    byId("frame").style.setProperty("--wide", width);
    byId("frame").style.setProperty("--high", height);
  }

  /** Answers a second, on the camera's picture; null: nothing. */
  rate(frames) {
    byId("rate").hidden = frames === null;
    byId("rate").textContent = frames === null ? "" : `${frames.toFixed(1)} frames/s`;
  }

  /** Put the camera on. */
  async light() {
    this.#turn += 1;
    this.#show(null);
    try {
      if (!(await this.camera.start(() => this.dark()))) return;
    } catch (error) {
      this.camera.stop();
      this.tell(error.message);
      return;
    }
    this.#fit(this.size);
    this.#lit(true);
    byId("about-picture").textContent = `camera · ${byId("video").videoWidth} × ${byId("video").videoHeight}`;
    byId("snap").focus();
    say("The camera is on.");
  }

  /** Put the camera off. */
  dark() {
    const { on } = this.camera;
    this.camera.stop();
    if (!on) return;
    this.overlay.clear();
    this.#lit(false);
    byId("about-picture").textContent = "";
    say("The camera is off.");
  }

  #lit(on) {
    byId("empty").hidden = on;
    byId("frame").hidden = !on;
    byId("video").hidden = !on;
    byId("picture").hidden = on;
    byId("camera").hidden = on;
    byId("camera-off").hidden = !on;
    byId("snap").hidden = !on;
    this.dispatchEvent(new Event("camera"));
  }

  /** Keep the frame that is shown as the picture. */
  async snap() {
    if (!this.camera.on) return;
    const blob = await this.camera.frame();
    if (!blob) this.tell("The camera shows nothing yet. Try again in a moment.");
    else await this.take(blob, "camera.jpg", false);
  }
}
