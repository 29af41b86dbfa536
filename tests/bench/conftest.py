"""What every benchmark leaves behind: nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def collected_again() -> Iterator[None]:
    """The garbage collector looks at everything again, or a rig that was closed keeps its memory for ever."""
    yield
    assert gc.get_freeze_count() == 0
