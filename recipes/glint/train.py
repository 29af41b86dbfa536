"""Train glint on one GPU by the clock: flat learning rate, then linear to almost nothing.

    python -m recipes.glint.train --seconds 480 --out out
    torchrun --nproc-per-node 2 -m recipes.glint.train --seconds 180 --out more --weights out/weights.safetensors

Every ``--save-every`` seconds the weights go to ``out/weights.safetensors`` (fp16: a longer mantissa than
bf16); a second run continues from them with fresh optimiser states.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import MethodType

import torch
from recipes.glint.data import Batches, Renderer, groups
from recipes.glint.export import load_weights, save_weights
from recipes.glint.losses import Helpers, Losses
from recipes.glint.model import Glint, TextBlock, VisionBlock, packed_mask
from recipes.glint.optim import Muon, split_parameters
from recipes.glint.progress import evaluate, show
from recipes.glint.streams import PREFIX, Vocabulary
from recipes.glint.world import World
from torch import Tensor
from torch.utils.data import DataLoader

TERMS = ("token", "coord", "size", "aim", "dense")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--seconds", type=float, default=480, help="training time after compiling")
    add("--out", type=Path, required=True)
    add("--weights", type=Path, help="continue from these weights")
    add("--pictures", type=int, default=256)
    add("--length", type=int, default=383, help="packed positions per picture")
    add("--workers", type=int, default=14)
    add("--seed", type=int, default=0)
    add("--muon", type=float, default=0.02, help="peak learning rate of the blocks' matrices")
    add("--adam", type=float, default=2e-3, help="peak learning rate of everything else")
    add("--flat", type=float, default=0.5, help="share of the time before the learning rate falls")
    add("--sigma", type=float, nargs=2, default=(20.0, 3.0), help="bins: width of the soft targets, from and to")
    add("--anneal", type=float, default=0.35, help="share of the time in which sigma falls")
    add("--helpers", action=argparse.BooleanOptionalAction, default=True, help="auxiliary losses")
    add("--evaluations", type=int, default=3)
    add("--scenes", type=int, default=256, help="pictures per evaluation")
    add("--samples", type=int, default=1, help="replies of every skill to print at the end")
    add("--save-every", type=float, default=60)
    add("--steps", type=int, default=10**9, help="stop after so many steps")
    add("--compile", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


class Trainer:
    """Model, optimisers and one step."""

    def __init__(self, args: argparse.Namespace, world: World) -> None:
        self.args, self.world, self.device = args, world, world.device
        device = world.device
        self.vocabulary = Vocabulary()
        self.net = Glint(self.vocabulary.config).to(device)
        self.helpers = Helpers(self.vocabulary.config["text"]["dim"]).to(device)
        if args.weights:
            load_weights(self.net, args.weights)
        fast = args.compile and device.type == "cuda"
        self.fast = (
            {kind: torch.compile(kind.forward, dynamic=False) for kind in (VisionBlock, TextBlock)} if fast else {}
        )
        self.compiled(True)
        self.tilings = groups(args.pictures // world.size)
        self.render = Renderer(self.tilings, device, fast, worn=0.3)
        self.losses = Losses(fast)
        muon, matrices, rest = split_parameters(self.net)
        self.muon = Muon(muon)
        rest += list(self.helpers.parameters())
        self.adam = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.02}, {"params": rest, "weight_decay": 0.0}],
            lr=args.adam, betas=(0.9, 0.98), fused=device.type == "cuda",
        )  # fmt: skip
        self.sigma = (torch.ones((), device=device), torch.ones((), device=device))
        self.totals = torch.zeros(len(TERMS), device=device)
        self.trained = [p for p in [*self.net.parameters(), *self.helpers.parameters()] if p.requires_grad]

    def compiled(self, on: bool) -> None:
        """Use the compiled blocks, or the plain ones (evaluation has other shapes)."""
        for block in [*self.net.vision.blocks, *self.net.text.blocks]:
            block.__dict__.pop("forward", None)
            if on and self.fast:
                block.__dict__["forward"] = MethodType(self.fast[type(block)], block)

    def schedule(self, done: float, step: int) -> float:
        """Set the width of the soft targets; returns the share of the peak learning rate."""
        first, last = self.args.sigma
        z = min(1.0, done / self.args.anneal) if self.args.anneal else 1.0
        for sigma, factor in zip(self.sigma, (1.0, 1.5), strict=True):
            sigma.fill_(first * (last * factor / first) ** z)
        fall = min(1.0, (1 - done) / (1 - self.args.flat))
        return min(1.0, (step + 1) / 200) * max(0.01, fall)

    def step(self, batch: dict[str, Tensor], share: float, aux: float) -> None:
        """Forward, backward, update."""
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            crops = self.render(batch)
            image = self.net.features(crops, self.tilings)
            low = torch.rand(batch["ids"].shape[0], 1, 1, device=self.device) < 0.5
            x = self.net.embed(batch["ids"], batch["coord"], batch["size"], low)
            mask = packed_mask(batch["slot"], batch["picture"], PREFIX)
            hidden = self.net.packed(image, x, batch["position"], mask)
            terms = self.losses(self.net, self.helpers, batch, image=image, hidden=hidden, sigma=self.sigma)
        loss = (terms["token"] + terms["coord"] + 0.5 * terms["size"] + aux * 0.5 * terms["aim"]) / 100
        loss = loss + aux * terms["dense"]
        loss.backward()
        self.world.average(self.trained)
        self.muon.step(self.args.muon * share)
        for group in self.adam.param_groups:
            group["lr"] = self.args.adam * share
        self.adam.step()
        self.net.zero_grad(set_to_none=True)
        self.helpers.zero_grad(set_to_none=True)
        self.totals += torch.stack([terms[name].detach() for name in TERMS])

    def evaluate(self, count: int, samples: int = 0) -> dict[str, dict[str, float]]:
        """Greedy evaluation of the current weights as bf16 stores them, computed under autocast as in training."""
        kept = {k: t.clone() for k, t in self.net.state_dict().items()}
        self.net.load_state_dict({k: t.bfloat16().float() for k, t in kept.items()})
        self.compiled(False)
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            scores = evaluate(self.net, self.vocabulary, count, self.device, samples=samples)
        self.net.load_state_dict(kept)
        self.compiled(True)
        return scores


def batches(args: argparse.Namespace, world: World) -> Iterator[dict[str, Tensor]]:
    """This process's share of the batches, on its device."""
    device = world.device
    data = Batches(args.seed * 64 + world.rank, args.pictures // world.size, args.length)
    loader = DataLoader(
        data, batch_size=None, num_workers=args.workers, pin_memory=device.type == "cuda",
        prefetch_factor=4 if args.workers else None,
    )  # fmt: skip
    for batch in loader:
        yield {k: t.to(device, non_blocking=True) for k, t in batch.items()}


def run(trainer: Trainer, args: argparse.Namespace) -> None:
    """The loop: train by the clock, print, save, evaluate."""
    world, cuda = trainer.world, trainer.device.type == "cuda"
    stream = batches(args, world)
    begun, started, step, waited = time.time(), 0.0, 0, 0.0
    printed = saved = 0.0
    marks = [args.seconds * (i + 1) / (args.evaluations + 1) for i in range(args.evaluations)]
    while step < args.steps:
        if step == 6:
            if cuda:
                torch.cuda.synchronize()
            started = time.time()
            print(f"compiled in {started - begun:.1f} s", flush=True)
        elapsed = world.clock(time.time() - started if started else 0.0)
        done = elapsed / args.seconds
        if done >= 1:
            break
        asked = time.time()
        batch = next(stream)
        waited += time.time() - asked
        share = trainer.schedule(done, step)
        aux = max(0.0, 1 - done / 0.7) if args.helpers else 0.0
        trainer.step(batch, share, aux)
        step += 1
        if world.first and (step % 50 == 0 or not cuda):
            means = (trainer.totals / (50 if cuda else 1)).tolist()
            trainer.totals.zero_()
            if elapsed - printed > args.seconds / 24 or not cuda:
                printed = elapsed
                rate = (step - 6) * args.pictures / max(1e-9, time.time() - started) if started else 0
                losses = " ".join(f"{name} {x:.3f}" for name, x in zip(TERMS, means, strict=True))
                print(
                    f"t {elapsed:5.0f} step {step:5d} img/s {rate:6.0f} wait {waited:5.1f} lr {share:.2f} {losses}",
                    flush=True,
                )
        if world.first and started and elapsed - saved > args.save_every:
            saved = elapsed
            save_weights(trainer.net, args.out / "weights.safetensors", torch.float16)
        if world.first and marks and elapsed > marks[0]:
            marks.pop(0)
            report(trainer, args, elapsed, step, 0)
    if world.first:
        save_weights(trainer.net, args.out / "weights.safetensors", torch.float16)
        report(trainer, args, time.time() - started if started else 0.0, step, args.samples)


def report(trainer: Trainer, args: argparse.Namespace, elapsed: float, step: int, samples: int) -> None:
    """Evaluate, print and append to ``curve.jsonl``."""
    begun = time.time()
    scores = trainer.evaluate(args.scenes, samples)
    print(f"evaluation at {elapsed:.0f} s, step {step} ({time.time() - begun:.1f} s)\n{show(scores)}", flush=True)
    with (args.out / "curve.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"seconds": round(elapsed), "step": step, "scores": scores}) + "\n")


def main() -> None:
    """Train."""
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    world = World()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    trainer = Trainer(args, world)
    torch.manual_seed(args.seed + world.rank)
    if world.first:
        print(f"{sum(p.numel() for p in trainer.net.parameters())} parameters, {world.size} processes", flush=True)
    run(trainer, args)
    if world.first and world.device.type == "cuda":
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", flush=True)
    world.close()


if __name__ == "__main__":
    main()
