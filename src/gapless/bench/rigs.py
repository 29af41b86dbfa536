"""Which rig a model is measured on: that of the kind of device it was loaded on."""

from __future__ import annotations

from gapless.bench.rig import Rig, Wants
from gapless.models.registry import Loaded


def open_rig(
    device: str, loaded: Loaded, buckets: tuple[int, ...], wants: Wants, *, graphs: bool = True, plain: bool = False
) -> Rig:
    """A rig on `device`, as `load.where` names it. `graphs`, `plain`: of a GPU, see `CudaRig`."""
    if device == "cpu":
        from gapless.bench.cpu_rig import CpuRig

        return CpuRig(loaded, buckets, wants)
    from gapless.bench.cuda_rig import CudaRig

    return CudaRig(loaded, buckets, wants, graphs=graphs, plain=plain)
