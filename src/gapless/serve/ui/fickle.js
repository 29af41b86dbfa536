// Pictures of which a browser and a server may see different pixels though they have the same bytes: those that move, and
// those with a note of how they are turned that only some readers heed. In: a file. Out: which of the two it is, or "".

const TURN = 0x0112; // the EXIF tag: 1 is upright, up to 8
const XMP = /tiff:Orientation(?:="|>)([2-8])/;

const text = (bytes, at, size) => String.fromCharCode(...bytes.subarray(at, at + size));

/** "moves", "turned", or "". What cannot be read is neither: then the server says what is wrong with it. */
export async function fickle(file) {
  const read = { "image/gif": gif, "image/png": png, "image/webp": webp, "image/jpeg": jpeg }[file.type];
  if (!read) return "";
  const bytes = new Uint8Array(await file.arrayBuffer());
  try {
    return read(bytes, new DataView(bytes.buffer));
  } catch (error) {
    if (error instanceof RangeError) return ""; // cut off
    throw error;
  }
}

/** More than one image in the file. */
function gif(bytes, view) {
  const table = (flags) => (flags & 0x80 ? 3 << ((flags & 7) + 1) : 0);
  let at = 13 + table(view.getUint8(10));
  for (let images = 0; ;) {
    const kind = view.getUint8(at);
    if (kind === 0x2c) {
      if (++images > 1) return "moves";
      at += 11 + table(view.getUint8(at + 9));
    } else if (kind === 0x21) at += 2;
    else return "";
    while (view.getUint8(at)) at += 1 + view.getUint8(at);
    at += 1;
  }
}

/** A note in EXIF, which not every browser reads; text chunks in which older programs keep it are read by few. */
function png(bytes, view) {
  for (let at = 8; at + 8 <= bytes.length; at += 12 + view.getUint32(at)) {
    const [kind, size] = [text(bytes, at + 4, 4), view.getUint32(at)];
    if (kind === "acTL") return "moves";
    if (kind === "eXIf" && turn(new DataView(bytes.buffer, at + 8, size)) > 1) return "turned";
    if (/^[tzi]TXt$/.test(kind)) {
      if (text(bytes, at + 8, 21) === "Raw profile type exif") return "turned";
      if (noted(bytes.subarray(at + 8, at + 8 + size))) return "turned";
    }
  }
  return "";
}

function webp(bytes, view) {
  for (let at = 12; at + 8 <= bytes.length;) {
    const [kind, size] = [text(bytes, at, 4), view.getUint32(at + 4, true)];
    const start = at + 8 + (text(bytes, at + 8, 4) === "Exif" ? 6 : 0);
    if (kind === "ANIM") return "moves";
    if (kind === "EXIF" && turn(new DataView(bytes.buffer, start, at + 8 + size - start)) > 1) return "turned";
    if (kind === "XMP " && noted(bytes.subarray(at + 8, at + 8 + size))) return "turned";
    at += 8 + size + (size & 1);
  }
  return "";
}

/** EXIF is heeded everywhere; XMP alone is not. */
function jpeg(bytes, view) {
  let [exif, xmp] = [0, false];
  for (let at = 2; view.getUint16(at) >> 8 === 0xff && view.getUint8(at + 1) !== 0xda; at += 2 + view.getUint16(at + 2)) {
    if (view.getUint8(at + 1) !== 0xe1) continue;
    const [start, size] = [at + 4, view.getUint16(at + 2) - 2];
    if (text(bytes, start, 4) === "Exif") exif = turn(new DataView(bytes.buffer, start + 6, size - 6));
    else xmp ||= noted(bytes.subarray(start, start + size));
  }
  return xmp && !exif ? "turned" : "";
}

const noted = (bytes) => XMP.test(new TextDecoder("latin1").decode(bytes));

/** The orientation that EXIF has, 0 for none. */
function turn(view) {
  const little = view.getUint16(0) === 0x4949;
  const table = view.getUint32(4, little);
  for (let entry = 0; entry < view.getUint16(table, little); entry += 1) {
    const at = table + 2 + 12 * entry;
    if (view.getUint16(at, little) === TURN) return view.getUint16(at + 8, little);
  }
  return 0;
}
