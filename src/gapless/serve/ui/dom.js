// Elements. Text goes in as text: nothing here, or anywhere on this page, reads a string as HTML.

export const byId = (id) => document.getElementById(id);

/** An element with properties, `dataset` and `aria` among them, and children: elements or texts. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  const { dataset = {}, aria = {}, ...others } = properties;
  Object.assign(element, others);
  Object.assign(element.dataset, dataset);
  for (const [name, value] of Object.entries(aria)) element.setAttribute(`aria-${name}`, value);
  element.append(...children);
  return element;
}

/** An SVG element with attributes. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Said by a screen reader, seen by nobody. The same words twice are said twice. */
export function say(words) {
  const place = byId("spoken");
  place.textContent = place.textContent === words ? `${words} ` : words;
}

/** Wait, unless the signal ends it: then throw what it says. */
export function rest(time, signal) {
  return new Promise((resolve, reject) => {
    const end = () => { clearTimeout(late); reject(signal.reason); };
    const late = setTimeout(() => { signal.removeEventListener("abort", end); resolve(); }, time);
    if (signal.aborted) end();
    signal.addEventListener("abort", end, { once: true });
  });
}

/** Words with no more letters than there is room for. */
export function short(words, most = 200) {
  return words.length > most ? `${words.slice(0, most).replace(/[\ud800-\udbff]$/, "")}…` : words;
}

/** Milliseconds as a person reads them. */
export function ms(value) {
  if (!Number.isFinite(value)) return "–";
  if (value >= 1000) return `${(value / 1000).toFixed(value >= 10000 ? 1 : 2)} s`;
  if (value >= 100) return `${Math.round(value)} ms`;
  return value >= 10 ? `${value.toFixed(1)} ms` : `${value.toFixed(2)} ms`;
}

/** Bytes as a person reads them. */
export function bytes(value) {
  if (value < 1000) return `${value} B`;
  return value < 1e6 ? `${Math.round(value / 1000)} kB` : `${(value / 1e6).toFixed(1)} MB`;
}
