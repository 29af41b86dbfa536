"""`gapless serve --ray`: a fleet on this machine, or on the cluster that RAY_ADDRESS names, until a signal comes.

In: settings and who is told. Out: an exit code: 0 after a signal, 1 when the application could not be started. At the
end the application is taken down: requests that run get `drain_timeout` seconds.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from types import FrameType
from typing import Any

from gapless.errors import InvalidRequest
from gapless.serve.engine import Watcher
from gapless.serve.fleet import FLEET, read_fleet
from gapless.serve.process import FAILED, STOPPED, example, listen, reached_here, spelled

APP = "gapless"
OBJECTS = 256 * 2**20
"""Bytes of Ray's object store on a machine of its own: bodies pass through it one at a time."""


def run_fleet(args: Mapping[str, Any], watcher: Watcher) -> int:
    """Serve until a signal. `args`: see `app_builder`. Raises `InvalidRequest` for settings that cannot be had."""
    settings, fleet = read_fleet(args)
    if settings.port == 0:
        raise InvalidRequest("--port is 0, and Ray's proxies take no free port by themselves; name one", param="port")
    import ray
    from ray import serve

    from gapless.serve.ray_app import app_builder

    there = os.environ.get("RAY_ADDRESS")
    if not there:
        listen(settings.host, settings.port).close()  # a port that is taken is told before anything starts
    watcher.say(f"starting {fleet.min_replicas} to {fleet.most} engines of {settings.model} through Ray Serve")
    own = {} if there else {"object_store_memory": OBJECTS, "include_dashboard": False}
    ray.init(address=there, namespace="serve", log_to_driver=False, **own)
    ended = threading.Event()
    _until_signal(ended)
    try:
        serve.start(proxy_location="EveryNode", http_options={"host": settings.host, "port": settings.port})
        try:
            serve.run(app_builder(dict(args)), name=APP, route_prefix="/")
        except RuntimeError as error:
            watcher.say(f"the fleet could not be started: {error}")
            return FAILED
        url = f"http://{spelled(reached_here(settings.host))}:{settings.port}"
        watcher.ready(f"ready at {url}/v1; try: {example(url, locked=bool(settings.keys()))}")
        ended.wait()
        watcher.say(f"stopping: running requests get {settings.drain_timeout:g} seconds")
    finally:
        if there:
            serve.delete(APP)  # the cluster, and what else runs there, is others'
        else:
            serve.shutdown()
        ray.shutdown()
    watcher.say("stopped")
    return STOPPED


def _until_signal(ended: threading.Event) -> None:
    def heard(number: int, frame: FrameType | None) -> None:
        if ended.is_set():
            raise KeyboardInterrupt  # the second ends it now
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, heard)


def with_replicas(args: dict[str, Any], replicas: str | None) -> dict[str, Any]:
    """Arguments with `N` or `MIN:MAX` engines. Raises `InvalidRequest` for another text."""
    if replicas is None:
        return args
    low, colon, high = replicas.partition(":")
    if not low.isdecimal() or (colon and not high.isdecimal()):
        raise InvalidRequest(f"--replicas is {replicas[:40]!r}; write a number, or two like 1:4", param="replicas")
    told = dict(args.get(FLEET) or {}) | {"min_replicas": int(low)} | ({"max_replicas": int(high)} if colon else {})
    return {**args, FLEET: told}
