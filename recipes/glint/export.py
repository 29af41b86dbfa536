"""Between the training model and the published files: one bf16 ``model.safetensors`` with the family's tensor names.

python -m recipes.glint.export --weights weights.safetensors --out src/gapless/assets/glint
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from recipes.glint.model import Glint
from safetensors.torch import load_file, save_file
from torch import Tensor

LIMIT_PARAMETERS, LIMIT_BYTES = 7_000_000, 14_000_000


def named_tensors(net: Glint, dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """Checkpoint tensors, ``model.`` in front of every name."""
    return {"model." + k: t.detach().to("cpu", dtype).contiguous() for k, t in net.state_dict().items()}


def save_weights(net: Glint, path: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write atomically, so that an interrupted run leaves the previous file."""
    partial = path.with_suffix(".partial")
    save_file(named_tensors(net, dtype), str(partial), metadata={"format": "pt"})
    partial.replace(path)


def load_weights(net: Glint, path: Path) -> None:
    """Read a checkpoint of any float type into the model."""
    device = next(net.parameters()).device
    net.load_state_dict({k.removeprefix("model."): t.float().to(device) for k, t in load_file(str(path)).items()})


def main() -> None:
    """Check the limits and write the published file."""
    from recipes.glint.streams import Vocabulary

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("src/gapless/assets/glint"))
    args = parser.parse_args()
    net = Glint(Vocabulary().config)
    load_weights(net, args.weights)
    count = sum(p.numel() for p in net.parameters())
    if count > LIMIT_PARAMETERS:
        raise SystemExit(f"{count} parameters are more than {LIMIT_PARAMETERS}")
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "model.safetensors"
    save_weights(net, path)
    if path.stat().st_size > LIMIT_BYTES:
        raise SystemExit(f"{path.stat().st_size} bytes are more than {LIMIT_BYTES}")
    print(f"{path}: {count} parameters, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
