"""The examples that `--help` shows, kept as data so that the tests run each of them.

`photo.png`, `a.png` and `b.png` stand for any pictures of the user's, `moon.png` for the one in `assets/samples`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Example:
    """A command line and what it is good for."""

    line: str
    meaning: str


EXAMPLES: dict[str, tuple[Example, ...]] = {
    "": (
        Example('gapless query photo.png "How many stars are there?"', "a question about a picture"),
        Example("gapless detect photo.png star --draw boxes.png", "boxes, drawn on a copy"),
        Example("gapless demo", "see every skill at work on three bundled pictures"),
        Example("gapless serve", "HTTP routes, and a playground in the browser at http://127.0.0.1:2020"),
    ),
    "query": (
        Example('gapless query photo.png "How many stars are there?"', "one question, one answer"),
        Example('gapless query a.png b.png "What colour is the star?"', "one JSON line a picture"),
        Example('cat photo.png | gapless query - "What is this?" --stream', "a picture from standard input"),
        Example('gapless query "Who are you?" --temperature 0', "no picture: a question by itself"),
        Example(
            'gapless query moon.png "How many moons?" --adapter moon=glint/moon',
            "with an adapter that knows a shape more",
        ),
        Example(
            'gapless query photo.png "How many?" --json --logprobs 2', "how sure it was of each token, for machines"
        ),
        Example(
            'gapless query photo.png "What colour is it?" --choice red --choice blue', "one of these answers, no other"
        ),
        Example("gapless query photo.png 'How many?' --regex '[0-9]{1,2}'", "an answer that matches as a whole"),
        Example(
            'gapless query photo.png "What is there?" --schema shapes.json --json', "JSON of a schema, and the object"
        ),
    ),
    "caption": (
        Example("gapless caption photo.png --length short", "a few words"),
        Example("gapless caption a.png b.png > captions.jsonl", "one JSON line a picture"),
    ),
    "point": (
        Example("gapless point photo.png star", "the middle of each star, x and y from 0 to 1"),
        Example('gapless point photo.png "red star" --draw points.png', "and a copy with the points on it"),
    ),
    "detect": (
        Example("gapless detect photo.png star --json", "boxes with everything the library returns"),
        Example("gapless detect a.png b.png star --draw boxes/", "a folder of drawn pictures"),
        Example("gapless detect a.png b.png star --draw 'boxes-{name}.png'", "the same, by a pattern"),
    ),
    "segment": (
        Example("gapless segment photo.png star", "box, and an outline inside it as an SVG path"),
        Example("gapless segment photo.png star --draw outline.png", "and a copy with the outline on it"),
    ),
    "gaze": (
        Example("gapless gaze photo.png 0.4 0.3", "where the person looks whose eye is there"),
        Example("gapless gaze photo.png --face 0.3,0.2,0.5,0.5 --draw gaze.png", "from a face, with more care, drawn"),
    ),
    "serve": (
        Example("gapless serve", "the bundled model at http://127.0.0.1:2020, for this machine alone"),
        Example("gapless serve glint --port 8000 --api-keys-file keys.txt", "clients must send one of the keys"),
        Example("gapless serve --config server.yaml", "settings from a file"),
        Example("gapless serve vikhyatk/moondream2 --ray --replicas 1:4", "one to four engines, a GPU each"),
    ),
    "models": (
        Example("gapless models", "what can be loaded by name"),
        Example("gapless models --json", "the same for machines"),
    ),
    "pull": (
        Example("gapless pull vikhyatk/moondream2", "the latest revision that this version knows"),
        Example("gapless pull vikhyatk/moondream2@2025-04-14", "an older one"),
    ),
    "inspect": (
        Example("gapless inspect glint", "layout, revision, dimensions, memory, and what would not fit"),
        Example("gapless inspect glint --json", "the same for machines"),
        Example("gapless inspect glint/moon", "an adapter: its rank, and which models it is made for"),
    ),
    "rule": (
        Example("gapless rule --choice red --choice blue", "the table of a rule for the bundled model"),
        Example("gapless rule glint --regex '[0-9]+' --json", "the same for machines"),
    ),
    "tune": (
        Example("gapless tune", "all batch sizes of Moondream 2, in some minutes"),
        Example("gapless tune moondream-3", "its experts, in bfloat16 and in FP8"),
        Example("gapless tune --rows 1 --rows 8 --seconds 60 --json", "two batch sizes, for machines"),
    ),
    "demo": (
        Example("gapless demo", "ask, draw, and run the fixed mix; pictures go to demo-out/"),
        Example("gapless demo --out /tmp/look", "the pictures elsewhere"),
    ),
    "trace": (
        Example('gapless trace trace.json -- query photo.png "What is this?"', "a timeline, for ui.perfetto.dev"),
        Example("gapless trace trace.json --png bubble.png -- bench mix", "and depth 1 above depth 2, drawn"),
    ),
    "bench": (
        Example("gapless bench mix", "24 requests at once, at depth 1 and 2"),
        Example("gapless bench decode --host-only", "what the engine itself takes for a step"),
    ),
    "bench mix": (
        Example("gapless bench mix", "24 requests at once, at depth 1 and 2"),
        Example("gapless bench mix --depth 1 --depth 3 --json", "other depths, for machines"),
    ),
    "bench model": (
        Example("gapless bench model", "published figures: predicted beside observed"),
        Example("gapless bench model decode.json --png gains.png", "a report of your own, and a picture"),
        Example("gapless bench model decode.json --host-ms 6 --depth 2 --depth 3", "if the loop thread took 6 ms"),
        Example("gapless bench model --forward-ms 3.8 --sampling-ms 0.14 --host-ms 1.6", "any step, at depth 1 to 4"),
    ),
    "bench compare": (
        Example("gapless bench compare old.json new.json", "what changed, row by row"),
        Example("gapless bench compare old.json new.json --column period_ms --fail-above", "1 if a step is 2 % slower"),
    ),
    "bench prefill": (
        Example("gapless bench prefill --out prefill.json --png prefill.png", "all rows, kept and drawn"),
        Example("gapless bench prefill --text 16 --batch 1 --json", "one row, for machines"),
    ),
    "bench vision": (
        Example("gapless bench vision --out vision.json --png vision.png", "all rows, kept and drawn"),
        Example("gapless bench vision --crops 2 --json", "one row, for machines"),
    ),
    "bench gaps": (
        Example("gapless bench gaps --out gaps.json --png gaps.png", "quiet, cut and whole, kept and drawn"),
        Example("gapless bench gaps --max-step-ms 4 --streams 8 --json", "another limit, for machines"),
    ),
    "bench rules": (
        Example("gapless bench rules --out rules.json --png rules.png", "all rows, kept and drawn"),
        Example("gapless bench rules --streams 8 --host --json", "with masks from the host, for machines"),
    ),
    "bench query": (
        Example("gapless bench query --out query.json --png query.png", "all rows, kept and drawn"),
        Example("gapless bench query --concurrency 1 --waves 1 --json", "one caller, for machines"),
        Example("gapless bench query --compare old.json new.json", "nothing is measured: what changed"),
    ),
    "bench serve": (
        Example("gapless bench serve --out serve.json --png serve.png", "all rows, kept and drawn"),
        Example("gapless bench serve --concurrency 1 --streams 2 --waves 1 --json", "a short look, for machines"),
        Example("gapless bench serve --compare old.json new.json", "nothing is measured: what changed"),
    ),
    "bench decode": (
        Example("gapless bench decode --out decode.json --png gains.png", "all rows, kept and drawn"),
        Example("gapless bench decode --streams 1 --streams 8 --sampler greedy --json", "some rows, for machines"),
        Example("gapless bench decode --compare old.json new.json", "nothing is measured: what changed"),
        Example("gapless bench decode --host-only", "what the engine itself takes for a step; loads no model"),
    ),
}


def epilog(command: str) -> str:
    """The help's last paragraph: each example on a line of its own, under its meaning."""
    lines = [text for example in EXAMPLES[command] for text in (f"# {example.meaning}", f"$ {example.line}")]
    return "\n".join(["Examples:", *lines])
