// What can be asked: of each skill its route, its body, how its answer is read, and what is drawn of it.

import { short } from "./dom.js";

/** Skills that take places which the words mean. */
export const PLACED = ["query", "point", "segment"];

export const SKILLS = {
  query: { label: "Query", prompt: "Question", streams: true, example: "What is in this picture?", key: "answer" },
  caption: { label: "Caption", picture: true, streams: true, key: "caption" },
  point: { label: "Point", prompt: "What to point at", picture: true, example: "cross" },
  detect: { label: "Detect", prompt: "What to put boxes around", picture: true, example: "star" },
  segment: { label: "Segment", prompt: "What to outline", picture: true, streams: true, example: "star" },
  chat: { label: "Chat", prompt: "Message", streams: true, example: "Say something about this picture" },
};

const NAME = 200; // letters of what was asked for that stand at each mark
const CHAT = "v1/chat/completions";

/** The request for a form's values. `image`: the picture as a data URL or null; `before`: the conversation so far. */
export function requestOf(asked, image, before, stream) {
  const { skill, text, settings } = asked;
  if (skill === "chat") return { path: CHAT, body: chatBody(asked, image, before, stream) };
  const body = {};
  if (image !== null) body.image_url = image;
  if (skill === "query") body.question = text;
  else if (skill === "caption") body.length = asked.length;
  else body.object = text;
  if (skill === "query" && asked.reasoning) body.reasoning = true;
  if (asked.places.length && image !== null) body.spatial_refs = asked.places;
  if (Object.keys(settings).length) body.settings = settings;
  if (stream && SKILLS[skill].streams) body.stream = true;
  return { path: `v1/${skill}`, body };
}

function chatBody({ text, settings, model }, image, before, stream) {
  const words = [...before, { role: "user", content: text }];
  const messages = words.map((message) => ({ ...message }));
  if (image !== null) {
    const first = messages[0];
    first.content = [{ type: "image_url", image_url: { url: image } }, { type: "text", text: first.content }];
  }
  const { adapter, ...sampling } = settings;
  delete sampling.max_objects;
  const body = { model: adapter ?? model, messages, ...sampling };
  if (stream) Object.assign(body, { stream: true, stream_options: { include_usage: true } });
  return body;
}

/** Put one event of a stream into the answer so far. Returns whether it is more of the answer. */
export function gather(skill, answer, event) {
  if (skill === "chat") return gatherChat(answer, event);
  const { chunk, completed, type, ...others } = event;
  delete others.request_id;
  if (completed) Object.assign(answer, others);
  else if (type === "reasoning") answer.reasoning = event.reasoning;
  else if (type === "bbox") answer.bbox = event.bbox;
  else if (type === "path_delta") answer.path = (answer.path ?? "") + chunk;
  else answer[SKILLS[skill].key] = (answer[SKILLS[skill].key] ?? "") + chunk;
  return !completed;
}

function gatherChat(answer, event) {
  const [choice] = event.choices ?? [];
  const more = choice?.delta?.content ?? "";
  if (more) answer.answer = (answer.answer ?? "") + more;
  if (choice?.finish_reason) answer.finish_reason = choice.finish_reason;
  if (event.usage) answer.metrics = metricsOf(event.usage);
  return more !== "";
}

function metricsOf(usage) {
  return {
    input_tokens: usage.prompt_tokens,
    output_tokens: usage.completion_tokens,
    cached_tokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
  };
}

/** A whole answer that did not stream. */
export function whole(skill, told) {
  const { request_id: _, ...answer } = told;
  if (skill !== "chat") return answer;
  const [choice] = told.choices;
  const metrics = told.metrics ?? metricsOf(told.usage);
  return { answer: choice.message.content ?? "", finish_reason: choice.finish_reason, metrics };
}

/** The words of an answer, or null for one that has none. */
export function wordsOf(skill, answer) {
  if (skill === "chat") return answer.answer ?? "";
  return SKILLS[skill].key ? answer[SKILLS[skill].key] ?? "" : null;
}

/** What is drawn of an answer: marks with a kind, the API's numbers and a label. */
export function marksOf(skill, answer, name) {
  const named = (kind) => (place) => ({ kind, label: short(name, NAME), ...place });
  if (skill === "point") return (answer.points ?? []).map(named("point"));
  if (skill === "detect") return (answer.objects ?? []).map(named("box"));
  if (skill === "segment") return answer.bbox ? [{ ...named("outline")(answer.bbox), path: answer.path ?? "" }] : [];
  const grounding = answer.reasoning?.grounding ?? [];
  return grounding.flatMap(({ points, start_idx: from, end_idx: to }) => {
    const label = [...answer.reasoning.text].slice(from, to).join("");
    return points.map(([x, y]) => ({ kind: "point", label, x, y }));
  });
}

/** What was found, in a sentence for those who do not see it. */
export function summary(skill, answer, name) {
  const words = wordsOf(skill, answer);
  if (words !== null) return words || "The answer is empty.";
  const count = marksOf(skill, answer, name).length;
  const called = short(name, NAME);
  if (skill === "segment") return count ? `${called}: outlined.` : `${called}: not found.`;
  const what = { point: "point", detect: "box" }[skill];
  return `${called}: ${count} ${count === 1 ? what : { point: "points", box: "boxes" }[what]}.`;
}
