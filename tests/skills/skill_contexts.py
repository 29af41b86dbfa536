"""Contexts of the golden models, built from their config and tokenizer files alone."""

import json
from dataclasses import replace
from pathlib import Path

from gapless.models.moondream.config import MoondreamConfig, read_config
from gapless.models.moondream.templates import Templates
from gapless.skills.base import SkillContext
from gapless.skills.tokenizer import Tokenizer

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden"
TOKENIZER = GOLDEN / "moondream2-2025-06-21-a" / "tokenizer.json"


def config_of(folder: str) -> MoondreamConfig:
    """A Moondream 3 config is read as a dense one: only its ids matter here."""
    raw = json.loads((GOLDEN / folder / "config.json").read_text())
    raw["text"].pop("moe", None)
    config = read_config(raw)
    return replace(config, revision="moondream3") if folder.startswith("moondream3") else config


def context_of(folder: str) -> SkillContext:
    config = config_of(folder)
    templates = Templates.of(config)
    tokenizer = Tokenizer.from_file(TOKENIZER, templates.ids.all())
    return SkillContext(templates, tokenizer, config.text.prefix_attn, config.text.max_context, folder)
