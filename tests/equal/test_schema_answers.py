"""Sixty schemas, models that say anything, and all that they say satisfies the schema they were asked with."""

import json
import random
from dataclasses import replace

import pytest
from tests.constrain.walks import SCHEMAS, glint, load, table_of
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel
from tests.fakes.host_stage import host_stage
from tests.fakes.inline_stage import inline_stage
from tests.fakes.scene import Entry, ask

from gapless.constrain.table import Rules
from gapless.records import FinishReason

SPEC = HashSpec(rules=Rules(vocab=2048, end=0, answer=3, coord=5, size=6, mask_answer=True), max_context=2048)
EACH = 3


@pytest.mark.slow
@pytest.mark.parametrize(("device", "depth"), [("host", 2), ("cuda", 4)])
def test_every_answer_satisfies_its_schema(device, depth):
    jsonschema = pytest.importorskip("jsonschema")
    rng, entries, paths = random.Random(depth), [], {}
    for path in SCHEMAS:
        table = table_of(path)
        for _ in range(EACH):
            number = len(entries) + 1
            most = min(table.fewest + rng.choice([0, 1, 7, 60]), 1800)
            wish = {"temperature": rng.choice([0.0, 0.7, 5.0]), "seed": number, "max_tokens": most}
            program = rng.choice(["text", "text", "reason"]) if most < 400 else "text"
            request = ask(number, program, ids=[9 + rng.randrange(2000)], **wish)
            entries.append(Entry(replace(request, grammar=table), arrives=number))
            paths[number] = path
    largest = max(table_of(path).numbers for path in SCHEMAS)
    make = host_stage if device == "host" else inline_stage
    sizes = {"pages": 3000, "page_size": 16, "grammars": 6, "numbers": largest + 40_000}
    with make(HashModel(SPEC), depth, **sizes) as (stage, refereed):
        heard = stage.play(entries)
        refereed.audit()
    for entry in entries:
        number = entry.request.id
        told, schema = heard[number], load(paths[number])["schema"]
        assert told.finish.error is None, (paths[number].stem, told.finish.error)
        ids = [token.id for token in told.tokens]
        ids = ids[ids.index(SPEC.rules.answer) + 1 :] if entry.request.program == "reason" else ids
        assert told.finish.reason is FinishReason.STOP and ids[-1] == SPEC.rules.end
        assert len(ids) <= entry.request.sampling.max_tokens
        text = b"".join(glint().pieces[id] for id in ids[:-1]).decode()
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
