"""How large the device is made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from gapless.config import EngineConfig
from gapless.device.graphs import FORWARDS, buckets_for, widths_for
from gapless.device.sizing import GpuPlan, device_limits, gpu_pages, table_memory
from gapless.errors import InvalidRequest, NotEnoughMemory

GIB = 2**30


@dataclass
class Sizes:
    vocab: int = 100
    prefix: int = 730
    max_context: int = 2048
    picture_bytes: int = 3 * 10**6

    def page_bytes(self, page_size: int) -> int:
        return page_size * 1024

    def adapter_bytes(self, rank: int) -> int:
        return rank * 2**20


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


def test_memory_for_the_cache_may_be_more_than_all_rows_need_and_less_but_not_less_than_one_needs():
    page, least = 16 * 1024, 128 + 1 + 1
    for pages in (least, 1000):
        config = EngineConfig(max_rows=3, page_size=16, kv_memory=pages * page + page - 1)
        assert device_limits(Sizes(), config, GIB).pages == pages
    assert device_limits(Sizes(), EngineConfig(kv_memory=2**50), 2**60).pages == 2**24
    for name, wanted in (("kv_memory", EngineConfig(kv_memory=2**40)), ("pages", EngineConfig(pages=2**26))):
        with pytest.raises(NotEnoughMemory, match=rf"but there are 68\.72 GB of memory in all; lower {name}") as raised:
            device_limits(Sizes(), wanted, 64 * GIB)
        assert raised.value.param == name
    with pytest.raises(NotEnoughMemory, match=r"kv_memory is 2\.1 MB, .* 2\.2 MB \(130 pages of 16 tokens\)") as raised:
        device_limits(Sizes(), EngineConfig(max_rows=3, page_size=16, kv_memory=least * page - 1), 64 * GIB)
    assert raised.value.param == "kv_memory"


def test_memory_that_was_asked_for_is_had_on_a_gpu_or_told_to_be_too_much():
    config = EngineConfig(max_rows=3, page_size=16, kv_memory=1000 * 16 * 1024)
    limits = device_limits(Sizes(), config, GIB)
    enough = 2 * 100 + GIB + config.kv_memory
    assert gpu_pages(limits, config, 16 * 1024, enough, 100) == (1000, 200 + GIB)
    with pytest.raises(NotEnoughMemory, match=r"for 1000 pages .* kv_memory or page_size"):
        gpu_pages(limits, config, 16 * 1024, enough - 1, 100)


def test_slots_for_adapters_leave_the_cache_less():
    """Four slots and the empty one, 8 MiB each; the cache's quarter is of the rest."""
    config = EngineConfig(max_rows=1000, page_size=16, adapters=4, adapter_rank=8)
    limits = device_limits(Sizes(), config, GIB)
    assert limits.pages == (GIB - 5 * 8 * 2**20) // 4 // (16 * 1024)
    assert (limits.adapters, limits.adapter_rank) == (4, 8)
    assert device_limits(Sizes(), config, 2**62).pages == 1000 * 129 + 1


def test_slots_for_adapters_that_do_not_fit_are_told_with_the_numbers_and_the_remedy():
    config = EngineConfig(max_rows=3, page_size=16, adapters=63, adapter_rank=8)
    assert device_limits(Sizes(), config, GIB).adapters == 63  # just half of the memory
    with pytest.raises(NotEnoughMemory) as raised:
        device_limits(Sizes(), replace(config, adapters=64), GIB)
    assert str(raised.value) == (
        "64 slots for adapters of rank 8 take 0.55 GB (0.01 GB each, and as much for none), but there is room for "
        "0.54 GB; lower max_adapters or max_adapter_rank"
    )
    assert raised.value.param == "max_adapters"


def test_tables_of_rules_that_do_not_fit_are_told_with_the_numbers_and_the_remedy():
    """Three slots of 100 ids and 3 numbers of 8 bytes, the empty one among them, and 131072 bytes behind the states."""
    config = EngineConfig(max_rows=3, grammars=2, grammar_memory=5000)
    whole = 3 * 224 + 5000 + 2**17
    assert table_memory(Sizes(), config, whole) == whole and table_memory(Sizes(), replace(config, grammars=0), 0) == 0
    with pytest.raises(NotEnoughMemory) as raised:
        table_memory(Sizes(), replace(config, grammars=64, grammar_memory=2**40), 32 * GIB)
    assert str(raised.value) == (
        "64 slots for tables of rules and grammar_memory of 1099.51 GB take 1099.51 GB, but there is room for "
        "34.36 GB; lower grammar_memory or grammars"
    )
    assert raised.value.param == "grammar_memory"


def test_given_pages_are_taken_as_they_are():
    assert device_limits(Sizes(), EngineConfig(pages=7), GIB).pages == 7


@pytest.mark.parametrize(
    ("field", "value"),
    [("pages", 1), ("depth", 0), ("max_rows", 0), ("page_size", 0), ("prefills_per_step", 0)],
)
def test_settings_that_cannot_work_are_named(field, value):
    with pytest.raises(InvalidRequest, match=field) as raised:
        device_limits(Sizes(), EngineConfig(**{field: value}), GIB)
    assert raised.value.param == field


def gpu_limits(pages: int | None = None, rows: int = 3) -> tuple:
    config = EngineConfig(max_rows=rows, page_size=16, pages=pages)
    return device_limits(Sizes(), config, 2**62), config


def test_a_gpu_gets_what_every_row_may_need_if_that_is_free():
    limits, config = gpu_limits()
    assert gpu_pages(limits, config, 2**20, 64 * GIB, GIB) == (3 * 129 + 1, 3 * GIB)


def test_a_gpu_gets_what_fits_beside_twice_the_measured_step():
    limits, config = gpu_limits()
    assert gpu_pages(limits, config, 2**20, 3 * GIB + 200 * 2**20, GIB) == (200, 3 * GIB)


def test_too_little_memory_is_told_with_the_numbers_and_the_remedy():
    """S-MEM-03: sized from what is free, not from what there is."""
    limits, config = gpu_limits()
    with pytest.raises(NotEnoughMemory) as raised:
        gpu_pages(limits, config, 2**20, 3 * GIB + 100 * 2**20, GIB)
    text = str(raised.value)
    assert "3.33 GB free" in text and "0.14 GB for 130 pages" in text and "3.22 GB for steps" in text
    assert "lower max_rows (now 3), pages or page_size" in text


def test_too_little_memory_beside_adapters_names_them():
    config = EngineConfig(max_rows=3, page_size=16, adapters=4, adapter_rank=8)
    with pytest.raises(NotEnoughMemory) as raised:
        gpu_pages(device_limits(Sizes(), config, 2**62), config, 2**20, 3 * GIB, GIB)
    text = str(raised.value)
    assert "after the weights and 4 slots for adapters, but" in text
    assert "lower max_rows (now 3), max_adapters (now 4), max_adapter_rank, pages or page_size" in text


def test_pages_that_were_asked_for_are_given_or_refused():
    limits, config = gpu_limits(pages=50)
    assert gpu_pages(limits, config, 2**20, 4 * GIB, GIB)[0] == 50
    with pytest.raises(NotEnoughMemory, match="for 50 pages"):
        gpu_pages(limits, config, 2**30, 4 * GIB, GIB)


def test_host_memory_for_pictures_is_bounded_and_on_a_cpu_it_is_not_the_caches():
    one = Sizes().picture_bytes
    config = EngineConfig(max_rows=1000, page_size=16, picture_cache_host=10 * one + one - 1)
    plain = replace(config, picture_cache_host=0)
    for memory in (GIB, 2 * GIB):
        shared = device_limits(Sizes(), config, memory)
        assert (shared.host_pictures, shared.picture_bytes) == (10, one)
        assert shared.pages == device_limits(Sizes(), plain, memory - 10 * one).pages
        apart = device_limits(Sizes(), config, memory, 8 * GIB)
        assert apart.host_pictures == 10 and apart.pages == device_limits(Sizes(), plain, memory).pages
    for host, allowed in ((7 * GIB, True), (7 * GIB + 1, False)):
        asked = replace(config, picture_cache_host=host)
        if allowed:
            assert device_limits(Sizes(), asked, 64 * GIB, 8 * GIB).host_pictures == host // one
        else:
            with pytest.raises(NotEnoughMemory, match=r"of 8\.59 GB of memory in all it may take at most 7\.52 GB"):
                device_limits(Sizes(), asked, 64 * GIB, 8 * GIB)
    assert device_limits(Sizes(), replace(config, picture_cache_host=one), GIB).host_pictures == 1
    with pytest.raises(
        NotEnoughMemory, match=r"is 2\.9 MB, but one picture takes 3\.0 MB; give as much, or 0 for none"
    ):
        device_limits(Sizes(), replace(config, picture_cache_host=one - 1), GIB)
    with pytest.raises(NotEnoughMemory, match="is 1 bytes, but one picture takes 3"):
        device_limits(Sizes(), replace(config, picture_cache_host=1), GIB)


def test_the_plan_reads_as_a_sentence():
    plan = GpuPlan("H200", 150 * 10**9, 4 * 10**9, 3 * 10**9, 24 * 10**9, 7809, 16, 64, 90, 10**9, 2.5)
    assert str(plan) == (
        "H200, 150.00 GB: weights and others 4.00 GB, KV cache 24.00 GB (7809 pages of 16 tokens, 64 rows), "
        "reserve 3.00 GB; 90 graphs in 2.5 s and 1.00 GB"
    )


def test_the_plan_tells_what_adapters_take():
    plan = GpuPlan("H200", 150 * 10**9, 4 * 10**9, 3 * 10**9, 24 * 10**9, 7809, 16, 64, adapters=1_415_577_600)
    assert "weights and others 4.00 GB, adapters 1.42 GB, KV cache 24.00 GB" in str(plan)
    kept = replace(plan, host=8 * 10**9, host_pictures=2679)
    assert str(kept) == f"{plan}; 8.00 GB of host memory for 2679 pictures"


def test_buckets_and_widths():
    assert buckets_for(1) == (1,)
    assert buckets_for(9) == (1, 2, 4, 8, 16)
    assert buckets_for(64)[-2:] == (48, 64)
    assert buckets_for(130)[-3:] == (96, 128, 160)
    assert widths_for(2048, 16, 9) == (64, 128)
    assert widths_for(1000, 16, 9) == (63,)
    assert widths_for(4096, 16, 9) == (64, 128, 256)
    assert widths_for(5000, 16, 9) == (64, 128, 256, 313)
    assert widths_for(32768, 16, 9) == (64, 128, 256, 512, 1024, 2048)
    assert widths_for(32768, 16, 11) == (64, 256, 1024, 2048)
    assert widths_for(32768, 16, 18) == (64, 512, 2048)
    assert widths_for(32768, 16, 100) == (64, 2048)


@pytest.mark.parametrize("adapted", [1, 2])
@pytest.mark.parametrize("rows", [1, 7, 16, 64, 128, 250])
@pytest.mark.parametrize("context", [100, 1024, 1025, 2048, 4096, 10_000, 32768])
def test_forwards_are_bounded_and_every_width_is_of_use(context, rows, adapted):
    batches = adapted * len(buckets_for(rows))
    widths = widths_for(context, 16, batches)
    assert len(widths) <= 2 or len(widths) * batches <= FORWARDS
    assert widths[-1] == -(-context // 16) and list(widths) == sorted(set(widths))
    ratios = {b // a for a, b in pairwise(widths[:-1])}
    assert len(ratios) <= 1, "a geometric row"
    assert batches > 10 or all(b <= 2 * a for a, b in pairwise(widths))
