"""Scenes: seeded mixes of requests with their arrivals and cancellations, and the stage an engine plays them on.

What flows in: a seed, a device, an engine configuration. What flows out: what every request heard, compared with the
oracle. Mail arrives before numbered ticks, so a scene is the same at every depth and on every device. Invariants
checked by `Stage.play`: one finish per request and nothing after it; when idle, engine and device have nothing left.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from tests.fakes.hash_language import HashSpec
from tests.fakes.masks import SimMasks
from tests.fakes.oracle import Answer, answer
from tests.fakes.sim_clock import SimClock, SimMailbox
from tests.fakes.sim_device import Fault, SimDevice, Timing
from tests.fakes.sim_guided import SimGuided

from gapless.config import EngineConfig
from gapless.constrain.table import PROGRAMS, Table, build_table
from gapless.costs import Costs
from gapless.engine.build import Engine
from gapless.engine.mailbox import ThreadMailbox
from gapless.records import DeviceLimits, Emission, Finish, Inset, Picture, Prompt, Request, Sampling, Token

MOST_TICKS = 20_000


@dataclass(frozen=True)
class Entry:
    """A request, the tick before which it arrives, and the tick before which it is cancelled (None: never)."""

    request: Request
    arrives: int = 0
    cancelled: int | None = None


@dataclass
class Heard:
    """All that one request was told."""

    tokens: list[Token] = field(default_factory=list)
    finish: Finish | None = None


def picture(seed: int, side: int = 4) -> Picture:
    """A small random picture; equal seeds are the same picture."""
    crops = np.random.default_rng(seed).integers(0, 256, (2, side, side, 3), dtype=np.uint8)
    return Picture(digest=f"{seed:064x}", crops=crops, tiling=(1, 1), width=side, height=side)


def table_of(spec: HashSpec) -> Table:
    """The constraint table of a hash model."""
    return build_table(spec.rules)


def limits_of(
    spec: HashSpec,
    depth: int,
    *,
    rows: int = 9,
    pages: int = 400,
    page_size: int = 4,
    adapters: int = 0,
    host: int = 0,
    grammars: int = 0,
    numbers: int = 0,
) -> DeviceLimits:
    """Device sizes; `rows` and `pages` count the reserved ones; `host`: pictures in host memory; `grammars`: slots
    for token tables, with room for `numbers`."""
    sizes = rows, pages, page_size, spec.max_context, spec.prefix, depth, spec.rules.vocab, adapters
    return DeviceLimits(
        *sizes, host_pictures=host, picture_bytes=16 * (spec.prefix - 1), grammars=grammars, grammar_numbers=numbers
    )


def ask(
    number: int, program: str = "text", ids: Sequence[int] = (9, 17), shown: Picture | None = None, **sampling: float
) -> Request:
    """One plain request. Without a picture the prompt begins with BOS."""
    full = tuple(ids) if shown is not None else (0, *ids)
    prompt = Prompt(full, ((),) * len(full), shown)
    return Request(number, prompt, program, replace(Sampling(max_tokens=12, max_objects=3), **sampling))


def mix_of_requests(
    seed: int,
    count: int,
    *,
    host: float = 0.0,
    cancels: float = 0.15,
    spread: int = 30,
    inset: int = 0,
    adjusted: float = 0.0,
) -> list[Entry]:
    """Every skill, with and without pictures, prompts with coordinates, all kinds of sampling, random arrivals.

    `host`: the share of requests whose masks are built on the host; `cancels`: the share that is cancelled some time;
    `inset`: positions that a further picture takes in a prompt, and then prompts have up to two of them (0: none);
    `adjusted`: the share, of whatever skill, whose logits are adjusted.
    """
    rng, wishes = random.Random(seed), random.Random(seed + 1000)
    entries = []
    for number in range(1, count + 1):
        ids, values = _prompt(rng)
        shown = picture(rng.randrange(3)) if rng.random() < 0.75 else None
        if shown is None:
            ids, values = (0, *ids), ((), *values)
        sampling = Sampling(
            temperature=rng.choice([0.0, 0.0, 0.6, 1.3]),
            top_p=rng.choice([1.0, 0.9, 0.3]),
            max_tokens=rng.choice([1, 2, 5, 9, 22, 35]),
            max_objects=rng.choice([1, 3, 6, 10]),
            seed=rng.randrange(1 << 40),
            top_logprobs=rng.choice([-1, -1, 0, 3]),
        )
        if wishes.random() < adjusted:
            sampling = wishing(sampling, wishes)
        program = rng.choice([name for name in PROGRAMS if name != "forced-point"])
        if program == "point" and number % 3 == 0:
            program = "forced-point"
        prompt = Prompt(ids, values, shown)
        if inset:
            shown_too = [picture(rng.randrange(5)) for _ in range(rng.randrange(3))]
            prompt = with_insets(prompt, shown_too, inset, rng)
        request = Request(number, prompt, program, sampling, host_masked=rng.random() < host)
        arrives = rng.randrange(spread)
        cancelled = arrives + rng.randrange(25) if rng.random() < cancels else None
        entries.append(Entry(request, arrives, cancelled))
    return entries


def wishing(sampling: Sampling, rng: random.Random) -> Sampling:
    """The same with logits adjusted in some of all ways, each of them strongly."""
    ids = rng.sample(range(64), rng.randrange(12))
    return replace(
        sampling,
        logit_bias=tuple((id, rng.choice([-100.0, -3.7, 0.1, 2.3, 9.0])) for id in ids[:6]),
        banned=tuple(ids[4:]) if rng.random() < 0.9 else tuple(range(1, 64)),
        min_tokens=rng.choice([0, 0, 3, sampling.max_tokens]),
        repetition_penalty=rng.choice([1.0, 1.3, 1.9, 0.7]),
        presence_penalty=rng.choice([0.0, 1.1, -0.9, 2.0]),
        frequency_penalty=rng.choice([0.0, 0.7, -0.3, 2.0]),
    )


def with_insets(prompt: Prompt, pictures: Sequence[Picture], length: int, rng: random.Random) -> Prompt:
    """The prompt with pictures of `length` positions before any of its ids, but behind BOS; filler is any id."""
    ids, values, insets = list(prompt.ids), list(prompt.values), []
    places = sorted(rng.randrange(prompt.picture is None, len(ids)) for _ in pictures)
    for i, (place, shown) in enumerate(zip(places, pictures, strict=True)):
        at = place + i * length
        ids[at:at] = [rng.randrange(64) for _ in range(length)]
        values[at:at] = [()] * length
        insets.append(Inset(at, shown))
    return Prompt(tuple(ids), tuple(values), prompt.picture, tuple(insets))


def _prompt(rng: random.Random) -> tuple[tuple[int, ...], tuple[tuple[float, ...], ...]]:
    ids: list[int] = [rng.randrange(7, 64) for _ in range(rng.randrange(1, 9))]
    values: list[tuple[float, ...]] = [() for _ in ids]
    if rng.random() < 0.3:
        bins = [rng.randrange(1024) / 1024 for _ in range(4)]
        ids = [5, 5, 6, *ids]
        values = [(bins[0],), (bins[1],), (bins[2], bins[3]), *values]
    return tuple(ids), tuple(values)


@dataclass
class Stage:
    """An engine on a device with a clock of ticks or seconds, its mailbox, and everything it said."""

    engine: Engine
    mailbox: SimMailbox | ThreadMailbox
    clock: SimClock
    heard: dict[int, Heard] = field(default_factory=dict)
    ticks: int = 0
    before_tick: Callable[[int], None] | None = None

    def tick(self) -> bool:
        """One tick of the loop; what it said is noted."""
        self.ticks += 1
        busy = self.engine.loop.tick()
        for emission in self.engine.book.take_emissions():
            self._note(emission)
        return busy

    def _note(self, emission: Emission) -> None:
        heard = self.heard.setdefault(emission.request_id, Heard())
        assert heard.finish is None, f"request {emission.request_id} was told more after its finish"
        heard.tokens.extend(emission.tokens)
        heard.finish = emission.finish

    def play(self, entries: Sequence[Entry]) -> dict[int, Heard]:
        """Play a scene to its end and audit the empty stage."""
        arriving = sorted(entries, key=_arrives)
        leaving = sorted((e for e in entries if e.cancelled is not None), key=_leaves)
        busy = True
        while busy or arriving or leaving:
            now = self.ticks if busy else max(self.ticks, min(_times(arriving, leaving)))
            self.ticks = now
            while arriving and arriving[0].arrives <= now:
                self.mailbox.submit(arriving.pop(0).request)
            while leaving and (leaving[0].cancelled or 0) <= now:
                self.mailbox.cancel(leaving.pop(0).request.id)
            if self.before_tick is not None:
                self.before_tick(now)
            busy = self.tick()
            assert self.ticks < MOST_TICKS, "the scene does not end"
        self.engine.audit()
        return self.heard


def sim_stage(
    spec: HashSpec,
    limits: DeviceLimits,
    *,
    timing: Timing | None = None,
    faults: tuple[Fault, ...] = (),
    delays: tuple[float, float] = (0.0, 0.0),
    deny: tuple[int, ...] = (),
    config: EngineConfig | None = None,
    costs: Costs | None = None,
) -> tuple[Stage, SimDevice]:
    """An engine on the simulated device. `delays`: how long host masks take, in simulated seconds; `deny`: see them."""
    clock, table = SimClock(), table_of(spec)
    masks = SimMasks(clock, delays, deny=deny)
    guided = SimGuided(clock, delays)
    mailbox = SimMailbox(clock, partial(_next_ready, masks, guided))
    device = SimDevice(limits, table, spec, clock, timing, faults, costs)
    device.referee.narrower = bool(deny)
    engine = Engine(device, table, config or EngineConfig(lookahead=8), masks, mailbox, clock, guided)
    return Stage(engine, mailbox, clock), device


def _next_ready(*sources: SimMasks | SimGuided) -> float | None:
    return min((at for source in sources if (at := source.next_ready()) is not None), default=None)


def expected(spec: HashSpec, entries: Sequence[Entry], deny: tuple[int, ...] = ()) -> dict[int, Answer]:
    """The oracle's answers by request id."""
    table = table_of(spec)
    return {e.request.id: answer(spec, table, e.request, deny) for e in entries}


def _arrives(entry: Entry) -> int:
    return entry.arrives


def _leaves(entry: Entry) -> int:
    return entry.cancelled or 0


def _times(arriving: list[Entry], leaving: list[Entry]) -> list[int]:
    return [e.arrives for e in arriving[:1]] + [e.cancelled or 0 for e in leaving[:1]]
