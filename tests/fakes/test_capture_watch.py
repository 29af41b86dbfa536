"""The watch is worth nothing unless it catches every way to wait for a GPU."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.fakes.capture_watch import DEVICE, CaptureWatch
from torch import Tensor

READS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda a: a.sum().item(),
    "int": lambda a: int(a.sum()),
    "if": lambda a: 1 if a.any() else 0,
    "tolist": lambda a: a.tolist(),
    "cpu": lambda a: a.cpu(),
    "numpy": lambda a: a.numpy(),
    "range": lambda a: list(range(a[0, 0].long())),
    "nonzero": lambda a: a.nonzero(),
    "where": lambda a: torch.where(a > 0),
    "equal": lambda a: torch.equal(a, a),
    "unique": lambda a: a.unique(),
    "masked": lambda a: a[a > 0],
    "masked write": lambda a: a.__setitem__(a > 0, 0.0),
    "repeats": lambda a: a.repeat_interleave(a[0].long()),
    "list as index": lambda a: a[[0, 1]],
    "list as place": lambda a: a.__setitem__((slice(None), [0, 1]), 0.0),
    "data": lambda a: torch.tensor([1, 2], device=a.device),
    "number": lambda a: a * torch.tensor(2.0),
    "array": lambda a: torch.from_numpy(np.zeros(3)).to(a.device),
    "host tensor": lambda a: a.__setitem__(0, torch.zeros(4)),
}


@pytest.mark.parametrize("read", READS)
def test_reads_are_caught(read: str) -> None:
    with torch.inference_mode():
        a = torch.zeros(4, 4, device=DEVICE)
        with pytest.raises((AssertionError, NotImplementedError, TypeError, RuntimeError)), CaptureWatch():
            READS[read](a)


def test_plain_operations_pass_and_memory_is_what_is_held() -> None:
    with torch.inference_mode():
        a = torch.zeros(256, 1024, device=DEVICE)
        watch = CaptureWatch()
        with watch:
            b = torch.where(a > 0, a, 0.0)
            del b
            c = 2.0**a
            c.view(-1)[:10].fill_(1.0)
            c = c + 1
        assert watch.operations > 5
        assert watch.peak == 2 * a.nbytes
        with watch:
            a.bfloat16()
        assert watch.peak == 2 * a.nbytes
