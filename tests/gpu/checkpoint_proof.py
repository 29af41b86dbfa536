"""One checkpoint on disk, loaded through the library and asked everything; in a process of its own, for its memory.

In: a folder, its adapters, a device. Out: a plain dict: seconds, bytes against what was predicted, and what the answers
were: of every skill at depth 2 and at depth 1, of a mix of them at once and each of those alone. `problems` says in
words what should not be; it is empty if all is well.
"""

from __future__ import annotations

import gc
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
from tests.gpu.checkpoint_asks import Heard, Question, ask_alone, ask_at_once, misshapen, mixed, questions
from tests.gpu.hub_folders import Kind
from tests.gpu.near_tie import Divergence, Reader, divergence

import gapless
from gapless.api.vlm import VLM
from gapless.bench.pictures import jpegs
from gapless.config import DType
from gapless.constrain.table import Table, build_table
from gapless.models.base import RowAdapters
from gapless.models.moondream.adapters import pack, read
from gapless.models.moondream.inspecting import Inspected, inspect
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.templates import Templates
from gapless.models.registry import load_model
from gapless.weights.hub import have

LIMITS = {"max_tokens": 24, "max_objects": 4}
PICTURES = 8
HOST_OVER = 2e9
"""Bytes that the host may hold beside the map while weights are loaded."""
NEAR, SPARE = 0.03, 256e6
"""The weights may take this part and these bytes more than predicted: the allocator hands memory out in pieces."""
PUBLISHED = 0.001
"""How far the bytes of a full-size file may be from those of the published one, as a part."""
EQUAL = 0.25
"""The part of the answers that are equal at least: a token of random weights is a near-tie once in thirty times."""
PATIENCE = 10.0
POLL = 0.002


@dataclass(frozen=True)
class Task:
    """What to prove: `adapters` are folders by name, of ranks up to `rank`; `count` questions are asked at once."""

    kind: Kind
    folder: Path
    adapters: Mapping[str, Path]
    device: str
    micro: bool
    count: int

    @property
    def dtype(self) -> DType:
        """What is computed in."""
        return "bfloat16" if self.device != "cpu" else "float32"


@dataclass
class Proof:
    """What was found so far."""

    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def expect(self, true: bool, otherwise: str) -> None:
        """Note a problem unless something is so."""
        if not true:
            self.problems.append(otherwise)


def prove(task: Task) -> dict[str, Any]:
    """See the module."""
    proof = Proof()
    found = _look(task, proof)
    proof.facts["weights"] = _weights(task, proof)
    pictures = jpegs(0, PICTURES, found.config.vision.crop_size if found.config else 1)
    asked, mix, heard = _ask_all(task, 2, found, pictures, proof)
    heard |= _ask_all(task, 1, found, pictures, proof)[2]
    for one, answer in zip((*asked, *mix), (*heard["depth 2"], *heard["at once"]), strict=True):
        proof.problems += misshapen(one, answer.answer)
        noted = sum(map(len, answer.tokens))
        said = answer.answer.get("metrics", {}).get("output_tokens", noted)  # a gaze with a face has none
        proof.expect(noted == said, f"{one.name}: {noted} tokens were noted on their way, the answer has {said}")
    judge = Judge(task)
    proof.facts["skills"] = _compare(asked, heard["depth 1"], heard["depth 2"], judge, proof, "depth 2 against depth 1")
    proof.facts["mix"] = _compare(mix, heard["alone"], heard["at once"], judge, proof, "at once against alone")
    proof.facts["said"] = {q.name: _shortly(h.answer) for q, h in zip(asked, heard["depth 2"], strict=True)}
    return {**proof.facts, "problems": proof.problems}


def _ask_all(
    task: Task, depth: int, found: Inspected, pictures: Sequence[bytes], proof: Proof
) -> tuple[list[Question], list[Question], dict[str, list[Heard]]]:
    """Load, ask and close; with depth 2 the mix too. The questions, the mix, and what was heard."""
    with _load(task, depth, found, proof) as vlm:
        asked = questions(vlm.desk.context.templates)
        mix = mixed(asked, task.count, PICTURES, tuple(task.adapters))
        shown = [vlm.encode_image(picture) for picture in pictures]
        began = time.perf_counter()
        heard = {f"depth {depth}": ask_alone(vlm, asked, shown, LIMITS)}
        proof.facts[f"skills at depth {depth}, s"] = round(time.perf_counter() - began, 1)
        if depth == 2:
            heard["at once"], heard["alone"] = _ask_mix(vlm, mix, shown, proof)
            _tell_apart(vlm, asked[0], tuple(task.adapters), shown, proof)
        _leave(vlm, proof, depth)
    return asked, mix, heard


# -- files and memory ------------------------------------------------------------------------------------------------


def _look(task: Task, proof: Proof) -> Inspected:
    """`gapless inspect`, before anything is loaded."""
    found, kind = inspect(have(str(task.folder))), task.kind
    proof.problems += [f"inspect: {problem}" for problem in found.problems]
    revision = found.config.revision if found.config else None
    proof.expect((found.layout, revision) == (kind.layout, kind.behaves), f"it is {found.layout}, {revision}")
    if not task.micro:
        proof.expect(found.facts.tensors == kind.tensors, f"{found.facts.tensors} tensors, published {kind.tensors}")
        off = abs(found.facts.bytes / kind.size - 1)
        proof.expect(off <= PUBLISHED, f"{found.facts.bytes} bytes of weights, published {kind.size}")
    proof.facts["inspect"] = {
        "layout": found.layout,
        "revision": revision,
        "files": [path.name for path in found.files],
        "tensors": found.facts.tensors,
        "dtypes": dict(found.facts.dtypes),
        "bytes": found.facts.bytes,
        "parameters": found.facts.parameters,
        "memory": dict(found.facts.memory),
    }
    return found


def _weights(task: Task, proof: Proof) -> dict[str, Any]:
    """Load the weights and nothing else, with what a process needs to use the device at all."""
    began = time.perf_counter()
    with HostMemory() as host:
        load_model(task.folder, task.device, task.dtype)
    seconds = round(time.perf_counter() - began, 2)
    if host.over is not None and not task.micro:
        said = f"the host held {host.over / 1e9:.2f} GB beside the map while weights were loaded"
        proof.expect(host.over <= HOST_OVER, said)
    return {"weights_s": seconds, "host_peak_over": host.over}


def _load(task: Task, depth: int, found: Inspected, proof: Proof) -> VLM:
    """Load through the library; how long it took and what it holds."""
    gpu = task.device != "cpu"
    _give_back(task.device)
    held, began = _driver() if gpu else 0, time.perf_counter()
    with HostMemory() as host:
        vlm = gapless.load(task.folder, device=task.device, depth=depth, adapters=dict(task.adapters) or None)
    facts: dict[str, Any] = {
        "load_s": round(time.perf_counter() - began, 2),
        "host_before": host.before,
        "host_over": host.over,
        "host_adapters": _pinned(task, vlm),
    }
    if vlm.plan is not None:
        facts |= _memory(task, vlm, found, held, proof)
    proof.facts[f"load, depth {depth}"] = facts
    return vlm


def _pinned(task: Task, vlm: VLM) -> int:
    """Bytes of host memory that the adapters stay in, pinned: a slot each, rounded up to a power of two by torch."""
    if vlm.plan is None or not vlm.plan.adapters:
        return 0
    slot = vlm.plan.adapters // (len(task.adapters) + 1)
    return len(task.adapters) * (1 << (slot - 1).bit_length())


def _memory(task: Task, vlm: VLM, found: Inspected, held: int, proof: Proof) -> dict[str, Any]:
    """Device memory, in bytes, beside what `inspect` and the plan say of it."""
    plan = vlm.plan
    assert plan is not None
    predicted, weights = found.facts.memory[task.dtype], plan.held - held
    used, most = _driver() - held, weights + plan.adapters + plan.cache + plan.reserve
    proof.expect(
        predicted <= weights <= predicted * (1 + NEAR) + SPARE,
        f"the weights take {weights / 1e9:.3f} GB, inspect predicted {predicted / 1e9:.3f}",
    )
    proof.expect(used <= most, f"{used / 1e9:.3f} GB are used, the plan says at most {most / 1e9:.3f}")
    return {
        "weights_predicted": predicted,
        "weights": weights,
        "used": used,
        "planned_at_most": most,
        "allocated": torch.cuda.memory_allocated(),
        "plan": asdict(plan),
    }


def _give_back(device: str) -> None:
    """Have a GPU ready, and of it nothing that nobody uses: an engine that was closed goes with its last name."""
    gc.collect()
    if device != "cpu":
        torch.zeros(1, device=device)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _driver() -> int:
    """Bytes of the GPU that are taken, by anyone."""
    free, total = torch.cuda.mem_get_info()
    return total - free


class HostMemory:
    """Watches what this process holds that no file backs. `over`: the most above `before`; None where /proc is not."""

    def __init__(self) -> None:
        self.before = self._most = _anonymous()
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watcher.join()

    @property
    def over(self) -> int | None:
        """Bytes."""
        return None if self.before is None or self._most is None else self._most - self.before

    def _watch(self) -> None:
        while not self._over.wait(POLL):
            now = _anonymous()
            if now is not None and self._most is not None:
                self._most = max(self._most, now)


def _anonymous() -> int | None:
    status = Path("/proc/self/status")
    if not status.is_file():
        return None
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    return 1024 * sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem"))


# -- answers ---------------------------------------------------------------------------------------------------------


def _ask_mix(
    vlm: VLM, mix: Sequence[Question], pictures: Sequence[Any], proof: Proof
) -> tuple[list[Heard], list[Heard]]:
    """The mix at once, then each of it alone."""
    before, began = vlm.accounting(), time.perf_counter()
    at_once = ask_at_once(vlm, mix, pictures, LIMITS)
    proof.facts["at once, s"] = round(time.perf_counter() - began, 1)
    proof.facts["at once"] = (vlm.accounting() - before).as_dict()
    began = time.perf_counter()
    alone = ask_alone(vlm, mix, pictures, LIMITS)
    proof.facts["alone, s"] = round(time.perf_counter() - began, 1)
    return at_once, alone


def _tell_apart(vlm: VLM, one: Question, adapters: Sequence[str], pictures: Sequence[Any], proof: Proof) -> None:
    """No two adapters, nor one and none, find a caption's tokens equally likely."""
    asked = [replace(one, adapter=name) for name in (None, *adapters)]
    heard = ask_alone(vlm, asked, pictures, LIMITS | {"logprobs": 0})
    said = {tuple((token.id, token.logprob) for token in tokens) for one in heard for tokens in one.tokens}
    proof.expect(len(said) == len(asked), f"{len(asked)} adapters, none among them, say {len(said)} things")


def _leave(vlm: VLM, proof: Proof, depth: int) -> None:
    """The engine audits its ledgers whenever it falls idle, and ends if they are wrong; nothing may be left."""
    until = time.monotonic() + PATIENCE
    standing = vlm.desk.runner.snapshot().standing
    while (standing.running or standing.pages_used or standing.steps_in_flight) and time.monotonic() < until:
        time.sleep(POLL)
        standing = vlm.desk.runner.snapshot().standing
    clean = not (standing.running or standing.pages_used or standing.steps_in_flight)
    proof.expect(clean, f"depth {depth}: something is left behind: {standing}")
    vlm.check()


class Judge:
    """Says how close the choice was where two answers differ; reads the model again when first asked. With experts
    in float32 too, to measure what bf16 does to scores."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._read: dict[DType, Read] = {}

    def judge(self, one: Question, right: Heard, other: Heard) -> list[tuple[Divergence, bool]]:
        """Each divergence of a question's requests, and whether it is a near-tie for this model."""
        own = self._open(self._task.dtype)
        exact = None if own.model.config.text.moe is None else self._open("float32").reader(one.adapter)
        reader, found = own.reader(one.adapter), []
        for request, a, b in zip(right.requests, right.tokens, other.tokens, strict=True):
            differs = divergence(reader, own.table, request, a, b, exact)
            found += [] if differs is None else [(differs, differs.near_for(own.model))]
        return found

    def _open(self, dtype: DType) -> Read:
        if dtype not in self._read:
            _give_back(self._task.device)
            self._read[dtype] = Read.of(self._task, dtype)
        return self._read[dtype]


@dataclass(frozen=True)
class Read:
    """A model as it was loaded again, with its adapters in slots."""

    model: Moondream
    table: Table
    slots: Mapping[str, RowAdapters]

    @classmethod
    @torch.inference_mode()
    def of(cls, task: Task, dtype: DType) -> Read:
        """Read the folder and the adapters."""
        loaded = load_model(task.folder, task.device, dtype)
        model, slots = loaded.model, {}
        assert isinstance(model, Moondream)
        if task.adapters:
            text, rank = loaded.config.text, max(task.kind.ranks)
            bank = model.new_adapters(1 + len(task.adapters), rank)
            for slot, (name, path) in enumerate(task.adapters.items(), start=1):
                bank.load(slot, pack(read(path, loaded.config), text, rank, model.dtype))
                slots[name] = RowAdapters(bank, torch.tensor([slot], device=model.device))
        return cls(model, build_table(Templates.of(loaded.config).rules()), slots)

    def reader(self, adapter: str | None) -> Reader:
        """The model with one of the adapters."""
        return Reader(self.model, None if adapter is None else self.slots[adapter])


def _compare(
    asked: Sequence[Question], right: Sequence[Heard], other: Sequence[Heard], judge: Judge, proof: Proof, what: str
) -> dict[str, Any]:
    """How many answers are equal, and how far apart the choices were of those that are not."""
    told, beyond, same = [], 0, 0
    for one, a, b in zip(asked, right, other, strict=True):
        if a.tokens == b.tokens and _said(a) == _said(b):
            same += 1
            continue
        differs = judge.judge(one, a, b)
        proof.expect(bool(differs), f"{what}: {one.name}: the tokens are equal, but not the answers")
        for divergent, near in differs:
            beyond += not near
            gap = divergent.gap if math.isfinite(divergent.gap) else None
            place = {"what": divergent.what, "place": divergent.place, "gap": gap, "size": divergent.size}
            place["error"] = divergent.error
            told.append({"question": one.name, "adapter": one.adapter, "near": divergent.near, **place})
            proof.expect(near, f"{what}: {one.name} with {one.adapter}: {divergent} is no near-tie")
    proof.expect(same >= len(asked) * EQUAL, f"{what}: only {same} of {len(asked)} answers are equal")
    return {
        "questions": len(asked),
        "equal": same,
        "near_ties": sum(one["near"] for one in told),
        "near_by_the_wider_rule": len(told) - beyond - sum(one["near"] for one in told),
        "beyond": beyond,
        "tokens": sum(len(tokens) for heard in right for tokens in heard.tokens),
        "different_answers": len({str(_said(heard)) for heard in right}),
        "divergences": told,
    }


def _said(heard: Heard) -> dict[str, Any]:
    return {key: value for key, value in heard.answer.items() if key != "metrics"}


def _shortly(answer: Mapping[str, Any]) -> str:
    return str({key: value for key, value in answer.items() if key != "metrics"})[:160]
