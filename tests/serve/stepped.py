"""Application and loop in one thread, on a clock that moves only with the loop's steps: a request may end at an exact
step. In: bodies, turns at which clients come and leave. Out: what was sent to each, stamped with the simulated time."""

import asyncio
import itertools
import json
from dataclasses import dataclass, field, replace

from tests.fakes.scene import Stage, limits_of, sim_stage
from tests.fakes.sim_device import Timing
from tests.serve.conftest import Site
from tests.serve.hash_answers import Oracle
from tests.serve.raw_http import Reply

from gapless.api.channel import Channel
from gapless.api.desk import Desk
from gapless.api.runner import explained
from gapless.api.vlm import VLM
from gapless.records import Request
from gapless.serve.limits import RequestLimits

STEP = Timing(forward=1.0)
LIMITS = RequestLimits(max_body_bytes=2**20, body_timeout=60.0, request_timeout=10_000.0, send_timeout=60.0)
YIELDS = 40
"""Turns of the event loop between two ticks: more than any part of the application needs to react."""


class SteppedRunner:
    """`EngineHandle` without a thread: who drives it calls `turn`."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.turns = 0
        self._ids = itertools.count(1)
        self._open: dict[int, Channel] = {}
        self._given_up: set[int] = set()

    def check(self):
        pass

    def abandon(self):
        pass

    def now(self):
        return self.stage.clock.now()

    def submit(self, prompt, program, sampling, deadline, channel, adapter=None, grammar=None):
        request = Request(next(self._ids), prompt, program, sampling, False, deadline, self.now(), None, grammar)
        self._open[request.id] = channel
        self.stage.mailbox.submit(request)
        return request.id

    def adapters(self):
        return ()

    def cancel(self, request_id):
        if request_id in self._open:
            self._given_up.add(request_id)
            self.stage.mailbox.cancel(request_id)

    @property
    def busy(self):
        return self.stage.engine.loop.busy

    def turn(self):
        """One tick, and its news to their channels."""
        self.turns += 1
        if not self.busy:
            return
        self.stage.engine.loop.tick()
        for emission in self.stage.engine.book.take_emissions():
            channel = self._open[emission.request_id]
            if emission.finish is not None:
                del self._open[emission.request_id]
                finish = explained(emission.request_id, emission.finish, self._given_up, channel)
                channel.put(replace(emission, finish=finish))
            else:
                channel.put(emission)


@dataclass
class Visit:
    """One client: when it comes, and leaves, in turns; what it was sent and when."""

    route: str
    body: dict
    comes: int = 0
    leaves: int | None = None
    sent: list = field(default_factory=list)
    times: list = field(default_factory=list)

    @property
    def reply(self):
        if not self.sent:
            return Reply()
        headers = {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}
        body = b"".join(message.get("body", b"") for message in self.sent)
        return Reply(self.sent[0]["status"], headers, body, not self.sent[-1].get("more_body", False))


class Stepped:
    """A site whose time is the test's. `depth`, `rows`, `pages`: of the simulated device."""

    def __init__(self, oracle: Oracle, depth, rows=9, pages=400):
        self.oracle = oracle
        spec = oracle.spec
        limits = limits_of(spec, depth, rows=rows, pages=pages)
        self.stage, self.device = sim_stage(spec, limits, timing=STEP)
        self.runner = SteppedRunner(self.stage)
        desk = self.oracle.desk
        self.vlm = VLM(Desk(self.oracle.context, desk._crops, desk._limits, self.runner, rows - 1))
        self.site = Site(self.vlm, LIMITS, places=1000)

    def play(self, visits):
        """Let all clients come and go, and the loop run until it is idle; then audit."""
        asyncio.run(self._play(visits))
        assert self.site.gate.held == 0
        self.stage.engine.audit()
        self.device.audit()

    async def _play(self, visits):
        coming = [asyncio.create_task(self._visit(visit)) for visit in visits]
        while not all(task.done() for task in coming) or self.runner.busy:
            self.runner.turn()
            assert self.runner.turns < 20_000, "the scene does not end"
            for _ in range(YIELDS):
                await asyncio.sleep(0)
        await asyncio.gather(*coming)

    async def _until(self, turn):
        while self.runner.turns < turn:
            await asyncio.sleep(0)

    async def _visit(self, visit):
        await self._until(visit.comes)
        body = iter([{"type": "http.request", "body": json.dumps(visit.body).encode(), "more_body": False}])

        async def receive():
            for message in body:
                return message
            await (self._until(visit.leaves) if visit.leaves is not None else asyncio.Event().wait())
            return {"type": "http.disconnect"}

        async def send(message):
            visit.sent.append(message)
            visit.times.append(self.runner.now())

        path = f"/v1/{visit.route}"
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "root_path": ""}
        scope |= {"query_string": b"", "headers": [(b"content-type", b"application/json")], "scheme": "http"}
        scope |= {"http_version": "1.1", "server": ("test", 80), "client": ("test", 1), "asgi": {"version": "3.0"}}
        await self.site.app(scope, receive, send)
