"""The engine's own process: the loop in its main thread over a device, one socket, one picture arena. Nothing else.

In: messages of `wire`, read between ticks. Out: a report a tick, and one last message: `Bye` when it was closed, `Died`
when the loop raised, which a message that cannot be read makes it do too. It ends with the process that started it,
whose end it sees in a thread that only ever waits for that; interrupts of a terminal are that process's business.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from gapless.api import lessons, wire
from gapless.api.arena import ArenaView
from gapless.api.child_rules import ChildRules
from gapless.api.child_shelf import ChildShelf
from gapless.api.opening import load_weights, open_device
from gapless.api.ruling import ruled
from gapless.api.shelf import Shelf
from gapless.config import EngineConfig, Opening
from gapless.constrain.guided import GuidedMasks
from gapless.constrain.masks import TableMasks
from gapless.constrain.table import Table
from gapless.device.base import Device
from gapless.engine.build import Engine
from gapless.engine.mailbox import Mail, Pile
from gapless.observe.accounting import Accounting
from gapless.observe.meter import Part
from gapless.records import Emission, Inset, Prompt, Request, Talk

SWITCH_INTERVAL = 1e-4
"""Seconds after which a worker of the CPU device hands the interpreter to the loop."""
SOON = 0.02
"""Seconds between looks at pictures that something still refers to while the engine is idle."""

_log = logging.getLogger("gapless")


class SocketMailbox:
    """The loop's mailbox (`engine.mailbox.Mailbox`) at the end of a socket. `closing`, `hasty`: see `wire.Close`."""

    def __init__(self, line: wire.Line, arena: ArenaView, shelf: ChildShelf) -> None:
        self.closing = False
        self.shelf = shelf
        self.hasty = False
        self.asked: list[wire.Tell] = []
        """For which `Totals` are owed."""
        self.pins: list[wire.Pin] = []
        """Those that the engine was not told of."""
        self.open: set[int] = set()
        """Requests that came and have not been told of their end."""
        self._line = line
        self._arena = arena
        self._pile = Pile()
        self._rules = ChildRules()
        self._ring: int | None = None

    @property
    def empty(self) -> bool:
        """See `Mailbox`."""
        return self._pile.empty

    def take(self, limit: int) -> Mail:
        """See `Mailbox`. Raises `ValueError` for a frame that is no message."""
        self._read()
        return self._pile.take(limit)

    def sleep(self, seconds: float | None) -> None:
        """See `Mailbox`."""
        if self.empty:
            self._line.wait(seconds)
        self._read()

    def notify(self) -> None:
        """Wake the loop, or keep it from its next sleep (any thread): a mask is ready."""
        if self._ring is not None:
            with suppress(BlockingIOError):  # it rings as it is
                os.write(self._ring, b"!")

    def _learn(self, lesson: lessons.Lesson) -> None:
        self._rules.learn(lesson)
        if self._ring is None and isinstance(lesson, lessons.LearnGuide):  # from now on masks are built by threads
            bell, self._ring = os.pipe()
            os.set_blocking(self._ring, False)
            self._line.hear(bell)

    def cancel(self, request_id: int) -> None:
        """See `wire.Cancel`; ids that are unknown or over are harmless."""
        self._pile.cancel(request_id)

    def _read(self) -> None:
        while (frame := self._line.receive()) is not None:
            match wire.decode_downward(frame):
                case wire.Submit() as submit:
                    self._pile.add(self._request(submit))
                    self.open.add(submit.id)
                case lessons.Learn() | lessons.LearnWords() | lessons.LearnGuide() | lessons.Unlearn() as lesson:
                    self._learn(lesson)
                case wire.Cancel(id=request_id):
                    self.cancel(request_id)
                case wire.Shelve() as order:
                    self.shelf.begin(order)
                case wire.Discard(key=key):
                    self.shelf.discard(key)
                case wire.Pin() as pin:
                    self.pins.append(pin)
                case wire.Tell() as tell:
                    self.asked.append(tell)
                case wire.Close(drain=drain):
                    self.closing, self.hasty = True, self.hasty or not drain
                case wire.Open():
                    raise ValueError("a model is loaded already")

    def _request(self, submit: wire.Submit) -> Request:
        picture = None if submit.region is None else self._arena.picture(submit.region)
        insets = tuple(Inset(at, self._arena.picture(region)) for at, region in submit.insets)
        prompt = Prompt(submit.ids, submit.values, picture, insets)
        request = Request(
            submit.id,
            prompt,
            submit.program,
            submit.sampling,
            submit.host_masked,
            submit.deadline,
            submit.submitted,
            None if submit.adapter is None else self.shelf.get(submit.adapter),
        )
        return ruled(request, None if submit.grammar is None else self._rules.get(submit.grammar))


class EngineLoop:
    """Ticks until it is closed or fails. Owns the device from here on."""

    def __init__(
        self,
        line: wire.Line,
        arena: ArenaView,
        device: Device,
        table: Table,
        config: EngineConfig,
        shelf: Shelf | None = None,
    ) -> None:
        self._line = line
        self._arena = arena
        self.shelf = ChildShelf(shelf)
        self._mailbox = SocketMailbox(line, arena, self.shelf)
        self._engine = Engine(
            device, table, config, TableMasks(), self._mailbox, guided=GuidedMasks(self._mailbox.notify)
        )

    def totals(self) -> Accounting:
        """What the engine and its device did since the start."""
        return Accounting.of(self._engine.meter)

    def run(self) -> None:
        """Serve. Raises what the loop raises, after what can still be told was told."""
        meter = self._engine.meter
        while True:
            self._cancel_all()
            self._pin_all()
            busy = self._engine.loop.tick()
            meter.enter(Part.DELIVER)
            self.deliver()
            if busy:
                continue
            self._engine.audit()
            if self._mailbox.closing and self._mailbox.empty:
                return
            self._rest()

    def _cancel_all(self) -> None:
        if self._mailbox.hasty:
            for request_id in self._mailbox.open:
                self._mailbox.cancel(request_id)

    def _pin_all(self) -> None:
        for pin in self._mailbox.pins:
            self._engine.pin(pin.picture, pin.more)
        self._mailbox.pins.clear()

    def deliver(self) -> None:
        """Send what there is to say."""
        news = self._engine.loop.book.take_news()
        emissions = [one for one in news if isinstance(one, Emission)]
        self._mailbox.open.difference_update(e.request_id for e in emissions if e.finish is not None)
        freed = self._arena.take_freed()
        if news or freed:
            talk = tuple(some for some in news if isinstance(some, Talk))
            self._line.send(wire.Report(tuple(map(wire.News.of, emissions)), freed, talk))
        for answer in self.shelf.take_answers():
            self._line.send(answer)
        for tell in self._mailbox.asked:
            steps = self._engine.watch(tell.watch) if tell.watch else ()
            self._line.send(wire.Totals(self.totals(), self._engine.standing(), steps))
        self._mailbox.asked.clear()

    def _rest(self) -> None:
        """Sleep until there is news; for a moment if an adapter is being read, or something still refers to a picture
        whose room callers may wait for: a cycle of references, a worker of the device that is not quite done."""
        if self._arena.lent:
            gc.collect()
        patience = SOON if self._arena.lent or self.shelf.waiting else None
        self.deliver()  # after that look: nothing is freed unsaid before a long sleep
        self._engine.meter.enter(Part.MAIL)
        self._mailbox.sleep(patience)


class _Reporter:
    """`Progress` over the line."""

    def __init__(self, line: wire.Line) -> None:
        self._line = line

    def show(self, doing: str, done: int, total: int) -> None:
        self._line.send(wire.Progressed(doing, done, total))


def serve(line: wire.Line, loop: EngineLoop, device: Device) -> bool:
    """Run a loop to its end and say how it ended. Returns whether it was closed rather than stopped by an error."""
    failed: dict[str, BaseException] = {}
    try:
        loop.run()
        last: wire.Bye | wire.Died = wire.Bye(loop.totals())
    except BaseException as error:
        failed["the engine stopped"] = error
        last = wire.Died(wire.ErrorNote.of(error))
        with suppress(Exception):  # the ledgers may be in any state now
            loop.deliver()
    try:
        device.close()
    except Exception as error:
        failed["the device did not close cleanly"] = error
    line.send(last)
    for what, why in failed.items():  # at last: standard error may be a pipe that nobody reads
        _log.error(what, exc_info=why)
    return isinstance(last, wire.Bye)


def begin(arguments: list[str]) -> tuple[wire.Line, ArenaView]:
    """Take up what the parent handed over: its end, the arena, the address. See `spawn.EngineProcess`."""
    for one in wire.PARENTS_SIGNALS:
        signal.signal(one, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, wire.PARENTS_SIGNALS)
    address, life, memory, capacity = arguments[0], *map(int, arguments[1:4])
    os.set_inheritable(life, False)
    watched = socket.socket(fileno=life)
    threading.Thread(target=_end_with_parent, args=(watched, address), name="gapless-parent", daemon=True).start()
    arena = ArenaView(memory, capacity)
    os.close(memory)
    line = wire.Line(address, serves=False)
    line.send(wire.Hello())
    return line, arena


def _end_with_parent(life: socket.socket, address: str) -> None:
    """A parent that ended before it heard a hello has left the socket and its folder."""
    with suppress(OSError):
        life.recv(1)
    path = Path(address.removeprefix("ipc://"))
    with suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()
    os._exit(1)


def _opening(line: wire.Line) -> Opening:
    line.wait(None)
    message = wire.decode_downward(line.receive() or b"")
    if not isinstance(message, wire.Open):
        raise ValueError(f"the first message is to be Open, not {type(message).__name__}")
    return message.opening


def _load(line: wire.Line, arena: ArenaView) -> tuple[EngineLoop, Device]:
    opening = _opening(line)
    reporter = _Reporter(line)
    reporter.show("loading the weights", 0, 1)
    weights = load_weights(opening, reporter)
    device, plan = open_device(weights, opening, reporter)
    loop = EngineLoop(line, arena, device, weights.table, weights.config, weights.shelf)
    ready(line, loop, weights.config.max_rows, weights.loaded.model.prefix, weights.loaded.model.max_context, plan)
    return loop, device


def ready(line: wire.Line, loop: EngineLoop, rows: int, prefix: int, max_context: int, plan: object = None) -> None:
    """All that lives now stays; say that requests may come. `plan`: a `GpuPlan`."""
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_INTERVAL)
    fields = None if plan is None else asdict(plan)  # type: ignore[call-overload]
    line.send(wire.Ready(rows, prefix, max_context, loop.totals(), fields, loop.shelf.keys))


def main() -> None:
    """The whole life of the process; exits with 0 when it was closed, else with 1."""
    line, arena = begin(sys.argv[1:])
    closed = False
    try:
        loop, device = _load(line, arena)
    except BaseException as error:
        line.send(wire.Refused(wire.ErrorNote.of(error)))
    else:
        closed = serve(line, loop, device)
    line.close()
    sys.exit(0 if closed else 1)
