// A picture as it is shown and as it is sent. In: a file, a paste, a drop, a frame of the camera. Out: `Picture`.
//
// A picture is sent byte for byte as it came, unless the server would refuse it, or would see other pixels than whoever
// looks at this page: then, and only then, it is drawn anew, and what is sent is what is shown.

import { short } from "./dom.js";
import { fickle } from "./fickle.js";

const READ = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"];
const PHOTOGRAPHS = ["image/jpeg", "image/heic", "image/heif", "image/avif"];
const LARGE = 4e6; // pixels; as a PNG those would take long to send
const SIDES = 65535;
const WHY = {
  "": "The picture is of a kind that the server does not read, so it",
  moves: "The picture moves, and only its first frame is asked about: it",
  turned: "Not every program reads the note of how this picture is turned: what is seen here",
};
const ROOM = 16384; // bytes of a body beside its picture
const LIMITS = { max_body_bytes: 32 * 2 ** 20, max_pixels: 100_000_000 };

export class Picture {
  /** Milliseconds to the first token of the first question about it. */
  firstToken = null;
  /** Whether whoever asks has this very file already. */
  kept = true;
  #data = null;

  constructor(blob, name, width, height, note = "") {
    this.blob = blob;
    this.name = name;
    this.width = width;
    this.height = height;
    this.note = note;
    this.url = URL.createObjectURL(blob);
  }

  /** As a data URL. */
  data() {
    this.#data ??= dataUrl(this.blob);
    return this.#data;
  }

  /** Give it to whoever has it nowhere yet, as a file. */
  save() {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(this.blob); // the other one ends with the picture's time on the board
    link.download = this.name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  }

  /** It is shown no more; it can still be asked about. */
  close() {
    this.#data = null;
    URL.revokeObjectURL(this.url);
  }
}

/** A file as a picture that this server takes. Throws an `Error` that says what to do. */
export async function open(file, name, about) {
  const limits = about ?? LIMITS;
  const { width, height } = await measured(file, name);
  const odd = await fickle(file);
  const tooLarge = base64Length(file.size) + ROOM > limits.max_body_bytes || width * height > limits.max_pixels;
  if (!tooLarge && !odd && READ.includes(file.type)) return new Picture(file, name, width, height);
  const sent = await redrawn(file, width, height, limits, tooLarge || PHOTOGRAPHS.includes(file.type) || width * height > LARGE);
  const why = tooLarge ? "The picture is larger than this server takes, so it" : WHY[odd];
  const note = `${why} is sent as ${sent.width} × ${sent.height} ${sent.kind}.`;
  return new Picture(sent.blob, renamed(name, sent.kind), sent.width, sent.height, note);
}

/** Another name than the file's, whose bytes it has not: both may come to lie in one folder. */
const renamed = (name, kind) => `${name.replace(/\.[^.]*$/, "")}-sent.${{ JPEG: "jpg", PNG: "png" }[kind]}`;

const base64Length = (size) => 4 * Math.ceil(size / 3);

async function measured(file, name) {
  const url = URL.createObjectURL(file);
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    return { width: image.naturalWidth || 1024, height: image.naturalHeight || 1024 };
  } catch {
    throw new Error(`This browser cannot show ${short(name)}; use a PNG, JPEG or WebP picture.`);
  } finally {
    URL.revokeObjectURL(url);
  }
}

async function redrawn(file, width, height, limits, lossy) {
  const kind = lossy ? "JPEG" : "PNG";
  let scale = Math.min(1, Math.sqrt(Math.min(limits.max_pixels, 40e6) / (width * height)), SIDES / Math.max(width, height));
  for (let tries = 0; tries < 8; tries += 1, scale *= 0.7) {
    const sides = [Math.max(1, Math.floor(width * scale)), Math.max(1, Math.floor(height * scale))];
    const blob = await onCanvas(file, ...sides, `image/${kind.toLowerCase()}`);
    if (blob && base64Length(blob.size) + ROOM <= limits.max_body_bytes) {
      return { blob, width: sides[0], height: sides[1], kind };
    }
  }
  throw new Error("The picture cannot be made small enough for this server; use a smaller one.");
}

async function onCanvas(file, width, height, type) {
  const url = URL.createObjectURL(file);
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d");
    context.fillStyle = "#ffffff"; // what the server lays a transparent picture on
    context.fillRect(0, 0, width, height);
    context.imageSmoothingQuality = "high";
    context.drawImage(image, 0, 0, width, height);
    return await new Promise((resolve) => canvas.toBlob(resolve, type, 0.92));
  } finally {
    URL.revokeObjectURL(url);
  }
}

/** A blob as a data URL. */
export function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error("The picture could not be read again; choose it once more."));
    reader.readAsDataURL(blob);
  });
}

/** The first picture of a drop or a paste, or null. */
export function pictureIn(transfer) {
  for (const file of transfer?.files ?? []) if (file.type.startsWith("image/")) return file;
  return transfer?.files?.[0] ?? null;
}
