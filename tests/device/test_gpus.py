"""Which GPU a name means, and what is said when there is none, none of that number, or only an old one."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from gapless.device.gpus import Gpu, choose_device, find_gpu
from gapless.errors import InvalidRequest

NEW = Gpu(0, "New", (9, 0), 70, 80)
OLD = Gpu(0, "Old", (7, 5), 10, 16)


@dataclass
class FakeDriver:
    gpus: list[Gpu] = field(default_factory=list)
    is_fork: bool = False

    def forked(self) -> bool:
        return self.is_fork

    def count(self) -> int:
        return len(self.gpus)

    def why_none(self) -> str:
        return "no driver answers"

    def look_at(self, index: int) -> Gpu:
        return self.gpus[index]


def second(gpu: Gpu) -> Gpu:
    return Gpu(1, gpu.name, gpu.capability, gpu.free, gpu.total)


@pytest.mark.parametrize(
    ("name", "gpus", "means"),
    [
        ("cpu", [NEW], "cpu"),
        ("auto", [], "cpu"),
        ("auto", [OLD], "cpu"),
        ("auto", [OLD, second(NEW)], "cuda:1"),
        ("cuda", [NEW, second(NEW)], "cuda:0"),
        ("cuda:1", [OLD, second(NEW)], "cuda:1"),
    ],
)
def test_names(name, gpus, means):
    assert choose_device(name, FakeDriver(gpus)) == means


@pytest.mark.parametrize(
    ("name", "gpus", "says"),
    [
        ("cuda", [], "no driver answers; or use cpu"),
        ("cuda:3", [], "no driver answers"),
        ("cuda:1", [NEW], "numbered 0 to 0"),
        ("cuda", [OLD], "Old has compute capability 7.5, but 8.0 is the least"),
        ("cuda:", [NEW], "does not exist"),
        ("cuda:-1", [NEW], "does not exist"),
        ("cuda:²", [NEW], "does not exist"),
        ("cuda:9999999999", [NEW], "does not exist"),
        ("abacus", [NEW], "'abacus' does not exist; use auto, cpu, cuda or cuda:N"),
        (7, [NEW], "not 7"),
    ],
)
def test_what_cannot_be_used_is_named(name, gpus, says):
    with pytest.raises(InvalidRequest) as raised:
        choose_device(name, FakeDriver(gpus))
    assert says in str(raised.value)
    assert raised.value.param == "device"


def test_a_gpu_is_described():
    assert find_gpu("cuda:1", FakeDriver([OLD, second(NEW)])) == second(NEW)


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:0"])
def test_a_fork_that_lost_its_gpu_is_told_what_to_do(name):
    with pytest.raises(InvalidRequest, match=r"forked after CUDA was used.* method spawn.* or use cpu"):
        choose_device(name, FakeDriver([NEW], is_fork=True))
    assert choose_device("cpu", FakeDriver([NEW], is_fork=True)) == "cpu"
