// A question as something to take along: a line for a shell, a program in Python. Whatever names, questions and pictures
// are called, they stay data: quoted for the shell, spelled as literals for Python. A key is never copied.

const HEADER = "X-Moondream-Auth";

/** A file's name without what would break a line, or turn round how it reads; never an option. */
export function fileName(name) {
  const plain = name.replace(/[\p{Cc}\p{Cs}\u202a-\u202e\u2066-\u2069/]/gu, "_") || "picture.png";
  return /^[.-]/.test(plain) ? `./${plain}` : plain;
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** A mark that stands where the picture goes; nothing else in the request has it. */
function split(body, image) {
  if (image === null) return [JSON.stringify(body)];
  let mark = "PICTURE";
  while (JSON.stringify(body).includes(mark)) mark += "_";
  const marked = JSON.stringify(body, (_, value) => (value === image ? mark : value));
  return marked.split(mark);
}

/** The request as a curl line. `image`: what stands in the body for the picture, best an object of its own, or null. */
export function asCurl({ url, body, image, type, name, locked }) {
  const [before, after] = split(body, image);
  const key = locked ? ` -H "${HEADER}: $GAPLESS_KEY"` : "";
  const send = `curl ${quoted(url)}${key} -H 'Content-Type: application/json'`;
  if (after === undefined) return `${send} -d ${quoted(before)}`;
  const head = `data:${type};base64,`;
  const picture = `base64 < ${quoted(fileName(name))} | tr -d '\\n'`;
  return `{ printf %s ${quoted(before + head)}; ${picture}; printf %s ${quoted(after)}; } \\\n  | ${send} -d @-`;
}

/** A name in the program, where a value would stand. */
class Code {
  constructor(text) {
    this.text = text;
  }
}

/** A value as Python spells it. */
export function literal(value, depth = 1) {
  if (value === null) return "None";
  if (value === true || value === false) return value ? "True" : "False";
  if (value instanceof Code) return value.text;
  if (typeof value !== "object") return JSON.stringify(value).replace(/[\u{7f}-\u{10ffff}]/gu, escaped);
  const pad = "    ".repeat(depth);
  const listed = Array.isArray(value);
  const parts = listed
    ? value.map((one) => literal(one, depth + 1))
    : Object.entries(value).map(([name, one]) => `${literal(name)}: ${literal(one, depth + 1)}`);
  const [open, close] = listed ? "[]" : "{}";
  if (!parts.length) return open + close;
  return `${open}\n${parts.map((part) => `${pad}${part},\n`).join("")}${"    ".repeat(depth - 1)}${close}`;
}

/** Python's escapes: four digits, or eight above U+FFFF. */
function escaped(letter) {
  const code = letter.codePointAt(0);
  return code > 0xffff ? `\\U${code.toString(16).padStart(8, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
}

/** The request as a program that needs nothing but Python. */
export function asPython({ url, body, image, type, name, locked }) {
  const stand = (value) => {
    if (value === image && image !== null) return new Code("image");
    if (Array.isArray(value)) return value.map(stand);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, stand(one)]));
  };
  const lines = [...(image === null ? [] : ["import base64"]), "import json", ...(locked ? ["import os"] : [])];
  lines.push("import urllib.request", "");
  if (image !== null) {
    lines.push(`with open(${literal(fileName(name))}, "rb") as file:`);
    lines.push(`    image = "data:${type};base64," + base64.b64encode(file.read()).decode()`);
  }
  const headers = ['"Content-Type": "application/json"', ...(locked ? [`"${HEADER}": os.environ["GAPLESS_KEY"]`] : [])];
  lines.push(`body = ${literal(stand(body))}`);
  lines.push("request = urllib.request.Request(", `    ${literal(url)},`, "    json.dumps(body).encode(),");
  lines.push(`    {${headers.join(", ")}},`, ")");
  lines.push("with urllib.request.urlopen(request) as response:", "    print(json.load(response))", "");
  return lines.join("\n");
}
