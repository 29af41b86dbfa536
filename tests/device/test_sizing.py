"""How large the device is made."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gapless.config import EngineConfig
from gapless.device.sizing import device_limits, machine_memory
from gapless.errors import InvalidRequest

GIB = 2**30


@dataclass
class Sizes:
    vocab: int = 100
    prefix: int = 730
    max_context: int = 2048

    def page_bytes(self, page_size: int) -> int:
        return page_size * 1024


def test_by_default_every_row_fits_at_full_context():
    limits = device_limits(Sizes(), EngineConfig(max_rows=3, page_size=16), 64 * GIB)
    assert limits.rows == 4
    assert limits.pages == 3 * (128 + 1) + 1  # 730 positions end inside a page, which a holder copies
    assert (limits.max_context, limits.prefix, limits.vocab, limits.depth) == (2048, 730, 100, 2)


def test_a_prefix_of_whole_pages_needs_no_copy():
    assert device_limits(Sizes(prefix=736), EngineConfig(max_rows=3, page_size=16), 64 * GIB).pages == 3 * 128 + 1


def test_the_cache_takes_a_quarter_of_the_memory_but_at_least_one_sequence():
    config = EngineConfig(max_rows=1000, page_size=16)
    assert device_limits(Sizes(), config, 1 * GIB).pages == GIB // 4 // (16 * 1024)
    assert device_limits(Sizes(), config, 1024).pages == 128 + 1 + 1


def test_given_pages_are_taken_as_they_are():
    assert device_limits(Sizes(), EngineConfig(pages=7), 0).pages == 7


@pytest.mark.parametrize(
    ("field", "value"),
    [("pages", 1), ("depth", 0), ("max_rows", 0), ("page_size", 0), ("prefills_per_step", 0)],
)
def test_settings_that_cannot_work_are_named(field, value):
    with pytest.raises(InvalidRequest, match=field) as raised:
        device_limits(Sizes(), EngineConfig(**{field: value}), GIB)
    assert raised.value.param == field


def test_the_machine_says_how_much_memory_it_has():
    assert machine_memory() > 2**28
