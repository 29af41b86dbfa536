"""Teach glint a ninth shape with low-rank branches, on the CPU in minutes.

    python -m recipes.glint.lora --weights src/gapless/assets/glint/model.safetensors --out DIR --word moon
    python -m recipes.glint.lora --weights src/gapless/assets/glint/model.safetensors --out DIR --evaluate

The vision encoder is frozen, so every training picture is drawn, resized and encoded once, before the training; then
the clock runs for ``--minutes``. Writes ``adapter.safetensors`` (see ``low_rank.py``) and ``adapter.json``: which
weights it belongs to, what it teaches and how it was made. ``--evaluate`` scores what ``--out`` holds on fresh
pictures: the network without it, with it, and with it merged into the weights as usual, which is not the same.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from recipes.glint.export import load_weights
from recipes.glint.lora_score import compare, show
from recipes.glint.losses import soft_bins, token_loss
from recipes.glint.low_rank import Branches, attach, load_adapter, merge, save_adapter, tensors_of
from recipes.glint.model import Glint, packed_mask
from recipes.glint.new_word import SHAPES, Cast, Stage
from recipes.glint.pictures import embed_pictures
from recipes.glint.streams import BINS, PREFIX, Vocabulary, blank, pack_streams
from torch import Tensor

SIZES = ((224, 224), (224, 224), (200, 160), (160, 200), (320, 240), (240, 320), (480, 300), (300, 480), (400, 400))
SIGMA, JITTER = 3.0, 3.0
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Seen:
    """A cast and its image embeddings ``[patches, dim]``, float16."""

    cast: Cast
    image: Tensor


def worn(picture: Image.Image, rng: random.Random) -> Image.Image:
    """The picture, or what a JPEG file would keep of it."""
    if rng.random() < 0.6:
        return picture
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=rng.randint(65, 95))
    return Image.open(file)


def look(net: Glint, stage: Stage, rng: random.Random, count: int, new: float) -> list[Seen]:
    """Draw ``count`` fresh casts and encode their pictures; a share ``new`` of them has a part for the new shape."""
    out = []
    for _ in range(count):
        width, height = rng.choice(SIZES)
        cast = stage.cast(rng, width / height, new)
        picture = worn(stage.picture(cast, width, height, rng.randrange(1 << 30)), rng)
        out.append(Seen(cast, embed_pictures(net, [picture])[0].half().cpu()))
    return out


def batch_of(seen: Sequence[Seen], stage: Stage, rng: random.Random, length: int) -> Batch:
    """Packed fresh requests about some pictures, and ``image [B, patches, dim]``."""
    packed = blank(len(seen), length)
    for row, s in enumerate(seen):
        streams = stage.streams(s.cast, rng, length, JITTER)
        pack_streams(packed, row, streams, [0] * len(s.cast.scene.things))
    batch = {k: torch.from_numpy(a) for k, a in packed.items()}
    batch["image"] = torch.stack([s.image for s in seen]).float()
    return batch


def loss_of(net: Glint, batch: Batch, low: Tensor) -> Tensor:
    """The training loss of glint without its helpers: tokens, coordinates and sizes, per picture.

    ``low [B, 1, 1]`` marks the rows whose Fourier features follow bfloat16's order of rounding.
    """
    x = net.embed(batch["ids"], batch["coord"], batch["size"], low)
    mask = packed_mask(batch["slot"], batch["picture"], PREFIX)
    hidden = net.packed(batch["image"], x, batch["position"], mask)
    says, points, sizes = batch["target"] >= 0, batch["coord_target"] >= 0, batch["size_target"][..., 0] >= 0
    sigma = hidden.new_tensor(SIGMA)
    total = (token_loss(net.text.logits(hidden[says]), batch["target"][says]) * batch["weight"][says]).sum()
    total = total + soft_bins(net.region.coord_decoder(hidden[points]), batch["coord_target"][points], sigma).sum()
    logits = net.region.size_decoder(hidden[sizes]).unflatten(-1, (2, BINS))
    total = total + 0.5 * soft_bins(logits, batch["size_target"][sizes], 1.5 * sigma).sum()
    return total / len(batch["ids"])


@dataclass(frozen=True)
class Plan:
    """How to train: minutes of the clock (or fewer steps), pictures a step, packed length, peak learning rate."""

    minutes: float
    steps: int = 10**9
    pictures: int = 8
    length: int = 383
    rate: float = 4e-3
    seed: int = 0


def share_of_rate(done: float, step: int) -> float:
    """Warm up over 10 steps, stay flat for 30 % of the time, then fall linearly to almost nothing."""
    return min(1.0, (step + 1) / 10) * max(0.02, min(1.0, (1 - done) / 0.7))


def train(net: Glint, branches: Branches, stage: Stage, seen: Sequence[Seen], plan: Plan) -> int:
    """Train the branches; returns the number of steps."""
    rng, device = random.Random(plan.seed + 1), next(net.parameters()).device
    torch.manual_seed(plan.seed)
    params = [p for branch in branches.values() for p in branch.parameters()]
    adam = torch.optim.AdamW(params, lr=plan.rate, betas=(0.9, 0.98), weight_decay=0.0)
    begun, step, recent = time.time(), 0, 0.0
    while step < plan.steps:
        done = max((time.time() - begun) / (60 * plan.minutes), step / plan.steps)
        if done >= 1:
            break
        batch = batch_of(rng.sample(seen, min(plan.pictures, len(seen))), stage, rng, plan.length)
        low = torch.rand(len(batch["ids"]), 1, 1, device=device) < 0.5
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = loss_of(net, {k: t.to(device) for k, t in batch.items()}, low)
        adam.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 20.0)
        for group in adam.param_groups:
            group["lr"] = plan.rate * share_of_rate(done, step)
        adam.step()
        step += 1
        recent += loss.item()
        if step % 20 == 0:
            print(f"{time.time() - begun:5.0f} s  step {step:4d}  loss {recent / 20:7.3f}", flush=True)
            recent = 0.0
    return step


def digest(path: Path) -> str:
    """SHA-256 of a file, hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fresh_net(weights: Path, device: torch.device) -> Glint:
    """A network with its weights."""
    net = Glint(Vocabulary().config).to(device).eval()
    load_weights(net, weights)
    return net


def describe_adapter(args: argparse.Namespace, branches: Branches, steps: int) -> dict[str, Any]:
    """The contents of ``adapter.json``."""
    shape = SHAPES[args.word]
    return {
        "name": f"glint-{shape.word}",
        "teaches": f"a ninth shape: {shape.word}, plural {shape.plural}, for every skill",
        "word": shape.word,
        "layout": "Moondream 2 variant: y = W x + b + B (A x); attn.proj's branch reads the block's normed input",
        "rank": args.rank,
        "parameters": sum(t.numel() for t in tensors_of(branches).values()),
        "base": {"name": "glint", "file": args.weights.name, "sha256": digest(args.weights)},
        "trained": {
            "by": "recipes.glint.lora", "seed": args.seed, "scenes": args.scenes, "share_with_the_shape": args.share,
            "steps": steps, "pictures_a_step": args.pictures, "learning_rate": args.rate, "minutes": args.minutes,
            "device": args.device, "threads": args.threads,
        },
        "licence": "Apache-2.0",
    }  # fmt: skip


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--weights", type=Path, required=True, help="glint's own weights")
    add("--out", type=Path, required=True, help="folder of the adapter")
    add("--word", choices=sorted(SHAPES), default="moon", help="the new shape")
    add("--rank", type=int, default=8)
    add("--minutes", type=float, default=10, help="training time after the pictures are encoded")
    add("--steps", type=int, default=10**9, help="stop after so many steps")
    add("--scenes", type=int, default=1200, help="training pictures, encoded once")
    add("--share", type=float, default=0.6, help="share of the pictures in which the new shape has a part")
    add("--pictures", type=int, default=8, help="pictures a step")
    add("--rate", type=float, default=4e-3, help="peak learning rate")
    add("--seed", type=int, default=0)
    add("--threads", type=int, default=torch.get_num_threads())
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--evaluate", action="store_true", help="score the adapter in --out instead of training one")
    add("--fresh", type=int, default=60, help="pictures with, and as many without the new shape, for --evaluate")
    return parser.parse_args()


def teach(args: argparse.Namespace) -> None:
    """Train and write the adapter."""
    device, vocabulary = torch.device(args.device), Vocabulary()
    stage, net, begun = Stage(SHAPES[args.word], vocabulary), fresh_net(args.weights, device), time.time()
    seen = look(net, stage, random.Random(args.seed), args.scenes, args.share)
    print(f"{len(seen)} pictures drawn and encoded in {time.time() - begun:.0f} s", flush=True)
    torch.manual_seed(args.seed)
    branches = attach(net, args.rank)
    plan = Plan(args.minutes, args.steps, args.pictures, rate=args.rate, seed=args.seed)
    steps = train(net, branches, stage, seen, plan)
    args.out.mkdir(parents=True, exist_ok=True)
    save_adapter(branches, args.out / "adapter.safetensors")
    text = json.dumps(describe_adapter(args, branches, steps), indent=1)
    (args.out / "adapter.json").write_text(text + "\n", encoding="utf-8")


def evaluate(args: argparse.Namespace) -> None:
    """Score the network without, with and with the merged adapter; adds the scores to ``adapter.json``."""
    path, device = args.out / "adapter.json", torch.device(args.device)
    card = json.loads(path.read_text(encoding="utf-8"))
    if card["base"]["sha256"] != digest(args.weights):
        raise SystemExit(f"{path}: trained for other weights than {args.weights}; train it again on these")
    stage, plain = Stage(SHAPES[card["word"]], Vocabulary()), fresh_net(args.weights, device)
    adapted, merged, file = fresh_net(args.weights, device), fresh_net(args.weights, device), "adapter.safetensors"
    branches = load_adapter(adapted, args.out / file)
    merge(merged, tensors_of(branches))
    seen = {
        kind: look(plain, stage, random.Random(f"{kind} {args.seed}"), args.fresh, share)
        for kind, share in (("new", 1.0), ("old", 0.0))
    }
    card["scores"] = compare({"before": plain, "after": adapted, "merged": merged}, stage, seen, args.seed)
    path.write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    print(show(card["scores"]))


def main() -> None:
    """Train or evaluate."""
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision("high")
    (evaluate if args.evaluate else teach)(args)


if __name__ == "__main__":
    main()
