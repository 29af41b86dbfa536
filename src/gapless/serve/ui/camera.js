// The camera: on, a frame, off. And film: the same question of frame after frame, one at a time, as fast as answers come;
// frames that come meanwhile are dropped. Whatever ends the film, the camera's light goes out.

import { dataUrl } from "./picture.js";

const LONGEST = 1280;
const WINDOW = 3000;

export class Camera {
  #video;
  #canvas = document.createElement("canvas");
  #stream = null;
  #turn = 0;

  constructor(video) {
    this.#video = video;
  }

  get on() {
    return this.#stream !== null;
  }

  /**
   * Ask for the camera and show it. `lost`: called when it is unplugged or taken away. Returns whether it is still wanted:
   * somebody may take long to allow it, and has chosen a picture meanwhile. Throws an `Error` with words.
   */
  async start(lost) {
    if (!navigator.mediaDevices?.getUserMedia) {
      throw new Error("Browsers lend a camera only to pages at https:// or localhost. Open this page there.");
    }
    const turn = ++this.#turn;
    let stream = null;
    try {
      const video = { facingMode: "environment", width: { ideal: LONGEST } };
      stream = await navigator.mediaDevices.getUserMedia({ video, audio: false });
      if (turn !== this.#turn) return false;
      this.#video.srcObject = stream;
      await this.#video.play();
      if (turn !== this.#turn) return false;
      this.#stream = stream;
    } catch (error) {
      if (turn !== this.#turn) return false;
      throw new Error(WHY[error.name] ?? `The camera cannot be used: ${error.message}`, { cause: error });
    } finally {
      if (stream !== this.#stream) giveBack(stream);
    }
    for (const track of stream.getTracks()) track.addEventListener("ended", lost);
    return true;
  }

  /** Give it back; one that was asked for and is not there yet, as soon as it comes. */
  stop() {
    this.#turn += 1;
    giveBack(this.#stream);
    this.#stream = null;
    this.#video.srcObject = null;
  }

  /** The frame that is shown now, as a JPEG; null: there is none. */
  async frame() {
    const { videoWidth: width, videoHeight: height } = this.#video;
    if (!this.on || !width || !height) return null;
    const scale = Math.min(1, LONGEST / Math.max(width, height));
    this.#canvas.width = Math.round(width * scale);
    this.#canvas.height = Math.round(height * scale);
    this.#canvas.getContext("2d").drawImage(this.#video, 0, 0, this.#canvas.width, this.#canvas.height);
    return new Promise((resolve) => this.#canvas.toBlob(resolve, "image/jpeg", 0.88));
  }

  /** Call for every frame that is shown, until the function returned is called. */
  each(frame) {
    let over = false;
    const next = () => {
      if (over) return;
      frame();
      if (this.#video.requestVideoFrameCallback) this.#video.requestVideoFrameCallback(next);
      else setTimeout(next, 33);
    };
    next();
    return () => { over = true; };
  }
}

function giveBack(stream) {
  for (const track of stream?.getTracks() ?? []) track.stop();
}

const WHY = {
  NotAllowedError: "This page may not use the camera. Allow it in the browser's settings for this site, then try again.",
  NotFoundError: "There is no camera. Connect one, or choose a picture.",
  NotReadableError: "The camera is in use by another program. Close that, then try again.",
};

export class Film {
  frames = 0;
  answered = 0;
  /** The frame of the last answer, and whether it is to be kept. */
  last = null;
  kept = false;
  #times = [];
  #over = false;
  #fresh = null;
  #asked = 0;

  /** `ask`: a picture as a data URL, to a promise of its answer. */
  constructor(camera, ask) {
    this.camera = camera;
    this.ask = ask;
  }

  get over() {
    return this.#over;
  }

  /** Frames shown that no question was asked about. */
  get dropped() {
    return Math.max(0, this.frames - this.answered - 1);
  }

  /** Answers a second, of the last few. */
  get rate() {
    const [first, last] = [this.#times[0], this.#times.at(-1)];
    return last > first ? (1000 * (this.#times.length - 1)) / (last - first) : 0;
  }

  /** Go on until `stop`, or until asking fails; `answered` is called with each answer and its milliseconds. */
  async run(answered) {
    const unseen = this.camera.each(() => {
      this.frames += 1;
      this.#fresh?.();
    });
    try {
      while (!this.#over) {
        this.#asked = this.frames;
        const frame = await this.camera.frame();
        if (this.#over) return;
        if (frame !== null) await this.#answer(frame, answered);
        await this.#nextFrame();
      }
    } finally {
      this.#over = true;
      unseen();
    }
  }

  async #answer(frame, answered) {
    const image = await dataUrl(frame);
    if (this.#over) return;
    const began = performance.now();
    const answer = await this.ask(image);
    if (this.#over) return;
    this.answered += 1;
    this.last = frame;
    this.#note(performance.now());
    answered(answer, performance.now() - began);
  }

  /** End it. `kept`: the last frame that was answered is wanted. */
  stop(kept = false) {
    this.kept = kept;
    this.#over = true;
    this.#fresh?.();
  }

  #note(now) {
    this.#times.push(now);
    while (now - this.#times[0] > WINDOW && this.#times.length > 2) this.#times.shift();
  }

  /** A frame that was not asked about; a camera that shows none any more is not waited for too long. */
  #nextFrame() {
    if (this.frames > this.#asked) return Promise.resolve();
    return new Promise((resolve) => {
      const late = setTimeout(resolve, 500);
      this.#fresh = () => { clearTimeout(late); this.#fresh = null; resolve(); };
    });
  }
}
