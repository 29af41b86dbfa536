"""Templates of every revision, as ids."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gapless
from gapless.constrain.table import Walker, build_table
from gapless.errors import InvalidCheckpoint
from gapless.models.moondream.config import REVISIONS, read_config
from gapless.models.moondream.templates import HABITS, Templates
from gapless.records import Flags, ValueHead
from gapless.skills.own_tokenizer import check_tokenizer
from gapless.skills.tokenizer import Tokenizer

DATA = Path(__file__).resolve().parents[1] / "data" / "golden"

# From the published checkpoints: captions short, normal, long; then prefix and suffix by skill.
STARMIE = {
    "short": (1, 32708, 2, 12492, 3),
    "normal": (1, 32708, 2, 6382, 3),
    "long": (1, 32708, 2, 4059, 3),
    "detect": ((1, 7235, 476, 2), (3,)),
    "point": ((1, 2581, 2), (3,)),
}


def published(revision):
    return Templates.of(replace(read_config({}), revision=revision))


@pytest.mark.parametrize("revision", ["2025-06-21", "moondream3"])
def test_s_tok_05_starmie_suffixes(revision):
    """S-TOK-05: Moondream 2 doubles its answer id because it was trained so; Moondream 3 does not."""
    t = published(revision)
    double = (3,) if revision == "2025-06-21" else ()
    assert t.query.prefix == t.reason.prefix == (1, 15381, 2)
    assert t.query.suffix == (*double, 3)
    assert t.reason.suffix == (*double, 4)
    assert {length: t.captions[length] for length in ("short", "normal", "long")} == {
        length: STARMIE[length] for length in ("short", "normal", "long")
    }
    for skill in ("detect", "point"):
        wrap = getattr(t, skill)
        assert (wrap.prefix, wrap.suffix, wrap.space) == (*STARMIE[skill], True)
    assert not t.query.space
    assert t.segment is None
    assert (t.ids.bos, t.ids.eos) == (0, 0)
    assert t.ids.all() == {0, 3, 4, 5, 6, 7, 9}


def test_segment_has_no_leading_space():
    config = read_config({"tokenizer": {"templates": {"segment": {"prefix": [1, 17374, 2], "suffix": [3]}}}})
    wrap = Templates.of(config).segment
    assert (wrap.prefix, wrap.suffix, wrap.space) == ((1, 17374, 2), (3,), False)


@pytest.mark.parametrize("revision", ["2025-01-09", "2025-03-27", "2025-04-14"])
def test_gpt2_templates(revision):
    t = Templates.of(REVISIONS[revision])
    assert t.revision == revision
    assert (t.ids.bos, t.ids.eos) == (50256, 50256)
    assert (t.query.prefix, t.query.suffix) == ((198, 198, 24361, 25), (198, 198, 33706, 25))
    assert (t.detect.prefix, t.detect.suffix, t.detect.space) == ((198, 198, 47504, 25), (628,), True)
    assert (t.point.prefix, t.point.suffix, t.point.space) == ((198, 198, 12727, 25), (628,), True)
    assert t.captions["short"] == (198, 198, 16438, 8305, 25)
    assert t.captions["normal"] == (198, 198, 24334, 1159, 25)
    assert t.query.space == (revision != "2025-01-09")
    assert ("long" in t.captions) == (revision != "2025-01-09")
    assert t.captions.get("long", (198, 198, 14617, 8305, 25)) == (198, 198, 14617, 8305, 25)
    assert t.reason is None
    assert t.segment is None
    assert t.worded
    assert min(t.ids.all() - {50256}) > 50295, "the GPT-2 tokenizer has a text for these"


@pytest.mark.parametrize("program", ["point", "detect"])
def test_without_coordinate_ids_any_id_but_the_end_opens_an_object(program):
    """The reference's loop of these revisions: an object follows unless the likeliest id of all is the end."""
    rules = Templates.of(REVISIONS["2025-01-09"]).rules()
    table = build_table(rules)
    walker = Walker.start(table, program, 64, 2)
    assert walker.mask().sum() == rules.vocab - 1 and not walker.mask()[rules.size]
    assert walker.advance(628) == (ValueHead.COORD, Flags.NONE)
    assert list(np.flatnonzero(walker.mask())) == [rules.coord]
    assert walker.advance(rules.coord) == (ValueHead.COORD, Flags.NONE)
    if program == "detect":
        assert list(np.flatnonzero(walker.mask())) == [rules.size]
        assert walker.advance(rules.size) == (ValueHead.SIZE, Flags.NONE)
    assert walker.advance(rules.end) == (ValueHead.NONE, Flags.STOP)


def test_defaults_by_revision():
    table = {name: (d.temperature, d.top_p, d.max_tokens, d.max_objects) for name, d in
             ((name, habits.defaults) for name, habits in HABITS.items())}  # fmt: skip
    assert table == {
        "2025-01-09": (0.0, 1.0, 512, 50),
        "2025-03-27": (0.0, 1.0, 768, 50),
        "2025-04-14": (0.5, 0.3, 768, 50),
        "2025-06-21": (0.5, 0.3, 768, 50),
        "moondream3": (0.5, 0.9, 768, 150),
        "moondream3.1": (0.5, 0.9, 768, 150),
    }


def test_rules_build_a_table(md2, md3):
    for context, masked in ((md2, True), (md3, False)):
        rules = context.templates.rules()
        assert (rules.vocab, rules.end, rules.answer, rules.coord, rules.size) == (512, 0, 3, 5, 6)
        assert rules.mask_answer is masked
        table = build_table(rules)
        assert set(table.programs) >= {"text", "reason", "point", "detect", "segment"}


def test_unknown_revisions_name_the_known_ones():
    with pytest.raises(InvalidCheckpoint, match=r"2024-08-26.*2025-06-21"):
        published("2024-08-26")


def test_a_skill_that_a_config_leaves_out_is_missing():
    raw = json.loads('{"tokenizer": {"templates": {"query": {"prefix": [1], "suffix": [3]}}}}')
    t = Templates.of(read_config(raw))
    assert t.query is not None
    assert t.point is t.detect is t.segment is None
    assert t.captions == {}


def test_a_tokenizer_of_another_model_is_refused():
    """A foreign tokenizer loads and answers nonsense; the caption templates tell."""
    folder = DATA / "moondream2-2025-06-21-a"
    templates = Templates.of(read_config(json.loads((folder / "config.json").read_text())))
    own = Tokenizer.from_file(folder / "tokenizer.json", templates.ids.all())
    check_tokenizer(templates, own)
    glints = Path(gapless.__file__).parent / "assets" / "glint" / "tokenizer.json"
    with pytest.raises(InvalidCheckpoint, match="starmie"):
        check_tokenizer(templates, Tokenizer.from_file(glints, templates.ids.all()))
