"""Contexts of the golden models: a Moondream 2 without the segment skill, and a Moondream 3 with it."""

import numpy as np
import pytest
from tests.skills.skill_contexts import TOKENIZER, context_of

from gapless.records import Picture
from gapless.skills.base import SkillContext
from gapless.skills.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer_json() -> str:
    return TOKENIZER.read_text()


@pytest.fixture(scope="session")
def md2() -> SkillContext:
    return context_of("moondream2-2025-06-21-a")


@pytest.fixture(scope="session")
def md3() -> SkillContext:
    return context_of("moondream3-a")


@pytest.fixture(scope="session")
def tokenizer(md2) -> Tokenizer:
    return md2.tokenizer


@pytest.fixture(scope="session")
def picture() -> Picture:
    return Picture("0" * 64, np.zeros((2, 378, 378, 3), np.uint8), (1, 1), 40, 20)
