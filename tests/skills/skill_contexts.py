"""Contexts of the golden models, built from their config and tokenizer files alone."""

import json
from pathlib import Path

from gapless.models.moondream.config import MoondreamConfig, read_config
from gapless.models.moondream.templates import Templates
from gapless.skills.base import SkillContext
from gapless.skills.tokenizer import Tokenizer

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden"
TOKENIZER = GOLDEN / "moondream2-2025-06-21-a" / "tokenizer.json"


def config_of(folder: str) -> MoondreamConfig:
    """What the folder's config.json says."""
    return read_config(json.loads((GOLDEN / folder / "config.json").read_text()))


def context_of(folder: str) -> SkillContext:
    config = config_of(folder)
    templates = Templates.of(config)
    tokenizer = Tokenizer.from_file(TOKENIZER, templates.ids.all())
    return SkillContext(templates, tokenizer, config.text.prefix_attn, config.text.max_context, folder)
