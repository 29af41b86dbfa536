"""What `load` takes, refuses and says."""

import shutil
import threading

import pytest
import torch
from tests.fakes.micro import write_micro

import gapless
from gapless import errors
from gapless.config import bytes_of
from gapless.weights.folder import TOKENIZER
from gapless.weights.hub import ASSETS


@pytest.mark.parametrize(
    "wrong",
    [
        *({"depth": v} for v in ("2", 2.5, True, None, 0, 10**5, 10**5000)),
        *({"max_rows": v} for v in ("x", 1.5, -1, 10**6)),
        *({"page_size": v} for v in (7, 0, 16.0, 10**9)),
        *({"pages": v} for v in (0, 1, 2.5, "9", 10**12)),
        *({"max_context": v} for v in (0, 17, 193, 10**6, "9", 2.5)),
        *({"kv_memory": v} for v in (0, -1, True, 2.5, "much", "8 apples", "1e9", 10**20, "9" * 19, ["1GB"])),
        *({"picture_cache": v} for v in (-1, None, "-1", "all")),
        *({"picture_cache_host": v} for v in (-1, None, "all")),
        *({"prefix_cache": v} for v in (None, 1, "off")),
        *({"threads": v} for v in (0, -1, "2", 1.5)),
        *({"image_limits": v} for v in (5, (1, 2))),
        *({"device": v} for v in (None, ["cpu"], 10**5000)),
        *({"constraints": v} for v in (None, ["host"])),
        *({"dtype": v} for v in (None, "int8")),
        *({"kv_dtype": v} for v in (None, "float8")),
        *({"grammars": v} for v in (-1, 1025, "64", True, None)),
        *({"grammar_memory": v} for v in (-1, None, "lots", "1 apple")),
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_load_cannot_take_is_named(micro_folder, wrong):
    with pytest.raises(errors.InvalidRequest, match=next(iter(wrong))):
        gapless.load(micro_folder, **wrong)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"device": "cuda:99999"}, "cuda:99999"),
        ({"device": "abacus"}, "auto, cpu, cuda or cuda:N"),
        ({"constraints": "both"}, "constraints"),
        ({"dtype": "int8"}, "dtype"),
        ({"depth": 0}, "depth"),
        ({"max_rows": 0}, "max_rows"),
        ({"pages": 1}, "pages"),
    ],
    ids=str,
)
def test_what_cannot_be_loaded_says_why(micro_folder, how, message):
    before = threading.active_count()
    with pytest.raises(errors.InvalidRequest, match=message):
        gapless.load(micro_folder, **how)
    assert threading.active_count() == before


def test_another_models_tokenizer_is_refused_before_anything_runs(tmp_path):
    folder, before = shutil.copytree(ASSETS / "glint", tmp_path / "glint"), threading.active_count()
    shutil.copy(write_micro(tmp_path / "micro") / TOKENIZER, folder / TOKENIZER)
    with pytest.raises(errors.InvalidCheckpoint, match=r"tokenizer\.json is not this model's"):
        gapless.load(folder)
    assert threading.active_count() == before


@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:1"])
def test_a_fork_of_a_process_that_used_the_gpu_cannot_load_on_it(micro_folder, monkeypatch, device):
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    with pytest.raises(errors.GaplessError, match="forked after CUDA was used") as raised:
        gapless.load(micro_folder, device=device)
    assert raised.value.param == "device"
    gapless.load(micro_folder, device="cpu").close()


def test_a_shorter_context_bounds_prompt_and_answer(micro_folder):
    with gapless.load(micro_folder, max_context=64) as vlm:
        assert vlm.query(question="x", settings={"max_tokens": 30, "temperature": 0})["answer"] is not None
        with pytest.raises(errors.PromptTooLong, match="context of 64"):
            vlm.query(question="x", settings={"max_tokens": 64})


def test_memory_is_told_in_bytes_or_in_words_and_holds_a_request_at_least(micro_folder):
    with gapless.load(micro_folder, kv_memory=2**20) as plain, gapless.load(micro_folder, kv_memory="1 mib") as said:
        pages = plain.desk.runner._engine.ledgers.pages.total
        assert pages == said.desk.runner._engine.ledgers.pages.total > 0
    with pytest.raises(errors.NotEnoughMemory, match="at the full context"):
        gapless.load(micro_folder, kv_memory="1KB")
    with pytest.raises(errors.InvalidRequest, match="pages and kv_memory"):
        gapless.load(micro_folder, kv_memory="1GB", pages=100)


def test_too_little_memory_of_a_cpu_is_told_and_never_a_traceback_of_torch(micro_folder, monkeypatch):
    """S-STA-05: weights before any is read, and whatever the system refuses later."""
    with monkeypatch.context() as small:
        small.setattr("gapless.models.moondream.reading.machine_memory", lambda: 1000)
        with pytest.raises(errors.NotEnoughMemory, match=r"the weights take 0\.\d\d GB in float32, but .* 0\.00 GB"):
            gapless.load(micro_folder, device="cpu")
    for place in ("gapless.device.host.HostDevice", "gapless.models.registry.load_model"):
        for error, told in (
            (RuntimeError("DefaultCPUAllocator: can't allocate memory"), errors.NotEnoughMemory),
            (MemoryError(), errors.NotEnoughMemory),
            (RuntimeError("another one"), RuntimeError),
        ):
            with monkeypatch.context() as failing:

                def fail(*_, error=error):
                    raise error

                failing.setattr(place, lambda *_, fail=fail, **__: fail())
                with pytest.raises(told):
                    gapless.load(micro_folder, device="cpu")


@pytest.mark.parametrize(
    ("how", "remedy"),
    [
        ({"grammars": 1, "grammar_memory": "1MiB"}, None),
        ({"grammars": 0}, "grammars of 1 or more"),
        ({"grammar_memory": 8, "process": True}, "takes 16 bytes .* grammar_memory is 8; raise grammar_memory"),
    ],
)
def test_room_for_tables_of_rules_is_what_was_said(micro_folder, how, remedy):
    rule = {"choice": ["a", "b"], "max_tokens": 8}
    with gapless.load(micro_folder, device="cpu", **how) as vlm:
        if remedy is None:
            assert vlm.query(question="x", settings=rule)["answer"] in ("a", "b")
            return
        with pytest.raises(errors.RequestTooLarge, match=remedy):
            vlm.query(question="x", settings=rule)


@pytest.mark.parametrize(
    ("size", "told"),
    [
        *((size, "or KiB to TiB, not P") for size in ("100PB", "1 Peta", "3pib")),
        *(
            (size, "units are KB, MB, GB and TB, and KiB to TiB")
            for size in ("GB", "8,5GB", "8 GB free", "-8GB", 8.5, "")
        ),
        *((size, r"from 1 to 1125899906842624 \(1024TiB\)") for size in ("0", "1025TiB", 2**50 + 1, -1)),
    ],
    ids=str,
)
def test_an_amount_of_memory_that_is_none_is_told_the_units_there_are(size, told):
    assert bytes_of("100TB") == 10**14 and bytes_of("1024TiB") == bytes_of(2**50) == 2**50
    with pytest.raises(errors.InvalidRequest, match=f"^kv_memory must be bytes.*(?i:{told}).*; got "):
        gapless.load("glint", kv_memory=size)


def test_nothing_is_kept_where_that_is_not_wanted(micro_folder, pictures):
    again = {True: 0, False: 0}
    for keep in again:
        with gapless.load(micro_folder, prefix_cache=keep) as vlm:
            for _ in range(2):
                said = vlm.query(pictures[0], "What?", settings={"max_tokens": 3})["metrics"]
            again[keep] = said["cached_tokens"]
    assert again[True] > 0 and again[False] == 0


def test_a_model_that_is_not_there():
    with pytest.raises(errors.ModelNotFound, match="nowhere"):
        gapless.load("nowhere")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_smaller_float_types_run(micro_folder, pictures, dtype):
    with gapless.load(micro_folder, dtype=dtype) as vlm:
        assert vlm.caption(pictures[0], settings={"temperature": 0, "max_tokens": 6})["metrics"]["output_tokens"] >= 1


def test_a_model_says_what_it_is(vlm):
    assert repr(vlm).startswith("VLM('") and "on cpu" in repr(vlm)


def test_a_context_beyond_the_models_own_is_told_with_that_limit(micro_folder):
    for length in (193, 32769, 10**9):
        with pytest.raises(
            errors.InvalidRequest, match=f"max_context is {length}, but must be from 18 .* to 192 with this"
        ):
            gapless.load(micro_folder, max_context=length, device="cpu")
