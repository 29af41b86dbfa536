"""Proof without a GPU that code asks the device for nothing: run it on shapes alone and look at every operation.

The device is torch's `meta`: its tensors have shapes and dtypes, but no content, so whatever a host read would be, it
raises. The watch also refuses what would wait for a GPU or could not be captured though all shapes are known: tensors
on the host, copies between devices, masks as indices. And it measures the memory that the code holds at once on top of
what was there (`peak`, bytes).

    with torch.inference_mode(), CaptureWatch() as watch:
        model.forward(...)  # everything on DEVICE
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DEVICE = torch.device("meta")
"""Stands for the GPU."""

ASKS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "item", "unique")
INDEXED = ("index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_")
MADE = (torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy, torch.frombuffer)


class HostRead(AssertionError):
    """The code would read a device tensor on the host, or hand the device one made there."""


class _NoHostData(TorchFunctionMode):
    """Refuses calls that make a tensor of the host's data: operations do not show where their inputs come from."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in MADE:
            raise HostRead(f"{func.__name__} takes data from the host")
        if getattr(func, "__name__", "") in ("__getitem__", "__setitem__"):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(i, list | np.ndarray) for i in index):
                raise HostRead(f"{func.__name__} takes an index from the host")
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    """Looks at every operation that reaches the device, as small as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self.count = 0
        self._held: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction(), self:
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        self._check(func, args, kwargs)
        result = func(*args, **kwargs)
        self._refuse_host(func, result)
        self._weigh(args, kwargs, result)
        self.count += 1
        return result

    def _check(self, func: Any, args: Any, kwargs: Any) -> None:
        name = func.overloadpacket.__name__
        if name in ASKS:
            raise HostRead(f"{func} reads a tensor")
        masks = (torch.bool, torch.uint8)
        if name in INDEXED and any(isinstance(i, Tensor) and i.dtype in masks for i in args[1]):
            raise HostRead(f"{func} counts a mask's elements")
        self._refuse_host(func, (args, kwargs))

    def _refuse_host(self, func: Any, tree: Any) -> None:
        for leaf in tree_leaves(tree):
            if isinstance(leaf, Tensor) and leaf.device != DEVICE:
                raise HostRead(f"{func} touches a tensor {list(leaf.shape)} on {leaf.device}")

    def _weigh(self, args: Any, kwargs: Any, result: Any) -> None:
        given = {StorageWeakRef(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and StorageWeakRef(leaf.untyped_storage()) not in given:
                self._held[StorageWeakRef(leaf.untyped_storage())] = leaf.untyped_storage().nbytes()
        self._held = {ref: size for ref, size in self._held.items() if not ref.expired()}
        self.peak = max(self.peak, sum(self._held.values()))


class CaptureWatch:
    """While it is entered, code must be fit for a CUDA graph; raises `HostRead` (or torch's own error) where not."""

    def __init__(self) -> None:
        self._operations = _Operations()
        self._host_data = _NoHostData()

    def __enter__(self) -> CaptureWatch:
        self._host_data.__enter__()
        self._operations.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._operations.__exit__(*exc)
        self._host_data.__exit__(*exc)

    @property
    def peak(self) -> int:
        """Most bytes of new tensors that were alive at once."""
        return self._operations.peak

    @property
    def operations(self) -> int:
        """How many operations there were."""
        return self._operations.count
