"""Page-locked memory that cannot be had is an error with its size and what to do, not torch's."""

from __future__ import annotations

import pytest
import torch

from gapless.device.runtime import CudaRuntime
from gapless.errors import NotEnoughMemory


def test_too_little_page_locked_memory_says_how_much_was_wanted(monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later")

    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(NotEnoughMemory, match=r"no 8\.0 MB of page-locked.*out of memory\).*ulimit -l") as caught:
        CudaRuntime.pinned(object.__new__(CudaRuntime), (1000, 1000), torch.int64)
    assert "reported later" not in str(caught.value)
