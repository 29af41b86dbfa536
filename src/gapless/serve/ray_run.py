"""`gapless serve --ray`: a fleet on this machine, or on the cluster that RAY_ADDRESS names, until a signal comes.

In: settings and who is told. Out: an exit code: 0 after a signal, 1 when the application could not be started or Ray
has ended. At the first signal new requests are told 503 and those that run get `drain_timeout` seconds, at the second
the rest is ended; then the application is taken down.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from gapless.errors import InvalidRequest
from gapless.serve.engine import Watcher
from gapless.serve.fleet import FleetSettings, cpus_of, front_cpus, gpus_of, read_fleet
from gapless.serve.fleet_status import Standing, lacking, standing
from gapless.serve.process import FAILED, STOPPED, example, is_local, listen, reached_here, spelled
from gapless.serve.settings import FLEET, ServerSettings

APP = "gapless"
OBJECTS = 256 * 2**20
"""Bytes of Ray's object store on a machine of its own: bodies pass through it one at a time."""
LOOK = 0.5
"""Seconds between two looks at a fleet that starts; `WATCH` at one that runs."""
WATCH = 5.0
OTHERS = "Ray Serve starts what is missing"
PAUSE = 0.2
ANSWER = 5.0
"""Seconds in which whoever is asked has to answer."""
SESSION = "/tmp/ray/session_latest"


class Signals:
    """`ended`: one came."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def listen(self) -> None:
        """From now on, instead of what these signals did."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.heard)

    def heard(self, number: int, frame: FrameType | None) -> None:
        """One of them. The second interrupts whatever is waited for."""
        if self.ended.is_set():
            raise KeyboardInterrupt
        self.ended.set()


def run_fleet(args: Mapping[str, Any], watcher: Watcher) -> int:
    """Serve until a signal. `args`: see `app_builder`. Raises `InvalidRequest` for settings that cannot be had."""
    settings, fleet = read_fleet(args)
    if settings.port == 0:
        raise InvalidRequest("--port is 0, and Ray's proxies take no free port by themselves; name one", param="port")
    import ray
    from ray import serve
    from ray.serve.exceptions import RayServeException

    there = os.environ.get("RAY_ADDRESS")
    if not there:
        listen(settings.host, settings.port).close()  # a port that is taken is told before anything starts
        check_folder(fleet.adapters_folder)
    _say_beginning(settings, fleet, watcher)
    own = machine(there, settings, fleet)
    session = _joined(there, own)
    signals = Signals()
    signals.listen()
    try:
        watcher.say(f"logs are in {_folder(session)}/logs")
        if not there:
            check_machine(settings, fleet, ray.cluster_resources())
        code = _serve(dict(args), settings, watcher, signals)
    finally:
        if there:
            with suppress(RayServeException):  # somebody else has ended it
                serve.delete(APP)  # the cluster, and what else runs there, is others'
        else:
            serve.shutdown()
        ray.shutdown()
    watcher.say("stopped")
    return code


def _say_beginning(settings: ServerSettings, fleet: FleetSettings, watcher: Watcher) -> None:
    if not settings.keys() and not is_local(settings.host):
        watcher.say(
            f"whoever can reach port {settings.port} may use it, since it asks for no key: set GAPLESS_API_KEYS_FILE "
            "or --api-keys-file, or listen on --host 127.0.0.1"
        )
    least = f"{fleet.min_replicas} to " if fleet.most > fleet.min_replicas else ""
    many = "s" if fleet.most > 1 else ""
    watcher.say(f"starting {least}{fleet.most} engine{many} of {settings.model} through Ray Serve")


def _joined(there: str | None, own: Mapping[str, Any]) -> Any:
    """What `ray.init` returns. Raises `InvalidRequest` for a cluster that cannot be had, or has a fleet already."""
    import ray
    from ray import serve

    try:
        session = ray.init(namespace="serve", log_to_driver=False, logging_level=logging.ERROR, **own)
    except ConnectionError as error:
        raise InvalidRequest(
            f"there is no way into the Ray cluster at {there} that RAY_ADDRESS names ({error}); if it runs, set "
            "RAY_AUTH_MODE=token, and have its token in ~/.ray/auth_token"
        ) from error
    if there and APP in serve.status().applications:
        ray.shutdown()
        raise InvalidRequest(
            f"the Ray cluster at {there} has an application {APP} already; end that one first, or change it with "
            "serve deploy"
        )
    return session


def _folder(session: Any) -> str:
    """Where Ray keeps what this machine's processes say."""
    told: Mapping[str, str] = getattr(session, "address_info", None) or {}
    return told.get("session_dir", SESSION)


def machine(there: str | None, settings: ServerSettings, fleet: FleetSettings) -> dict[str, Any]:
    """Arguments of `ray.init`. On a machine of its own, Ray counts as many CPUs as this fleet is said to need: nobody
    else is given any, and an engine that waits for a number would wait for ever."""
    if there:
        return {"address": there}
    need = fleet.most * cpus_of(settings, fleet) + fleet.fronts * front_cpus(settings, fleet)
    cpus = max(os.cpu_count() or 1, math.ceil(need))
    return {"address": "local", "num_cpus": cpus, "object_store_memory": OBJECTS, "include_dashboard": False}


def check_folder(folder: Path | None) -> None:
    """Raises `InvalidRequest` where there is none of that name."""
    if folder is not None and not folder.is_dir():
        raise InvalidRequest(
            f"there is no folder {folder}; adapters_folder must name one that engines can read", param="adapters_folder"
        )


def check_machine(settings: ServerSettings, fleet: FleetSettings, there: Mapping[str, float]) -> None:
    """Raises `InvalidRequest` for a machine, described by Ray, on which the fewest engines have no room."""
    short = lacking({"GPU": max(1, fleet.min_replicas) * gpus_of(settings, fleet)}, there)
    if short:
        raise InvalidRequest(
            f"this machine is asked for {short}; ask for fewer --replicas, or say --device cpu", param="replicas"
        )


def _serve(args: dict[str, Any], settings: ServerSettings, watcher: Watcher, signals: Signals) -> int:
    from ray import serve

    from gapless.serve.ray_app import app_builder

    serve.start(proxy_location="EveryNode", http_options={"host": settings.host, "port": settings.port})
    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # what it says is for programs that call it
    target = serve.RunTarget(app_builder(args), name=APP, route_prefix="/")
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
    if failure := until_running(_standing, watcher, signals.ended):
        watcher.say(f"the fleet could not be started: {failure}")
        return FAILED
    if not signals.ended.is_set():
        watcher.ready(_greeting(settings))
        watch(_standing, watcher, signals.ended)
        watcher.say(f"stopping: running requests get {settings.drain_timeout:g} seconds; again to end now")
        drain(partial(_close_doors, serve.get_app_handle(APP)), settings.drain_timeout)
    return STOPPED


def _standing() -> Standing:
    from ray import serve

    return standing(serve.status().applications.get(APP))


def until_running(look: Callable[[], Standing], watcher: Watcher, ended: threading.Event) -> str:
    """Wait until requests are taken or a signal comes, and tell what is in the way, once each. Returns why they never
    will be, "" if they are."""
    said = ""
    while not ended.wait(LOOK):
        found = look()
        if found.running:
            return ""
        if found.failed:
            return found.words or "Ray Serve says no more"
        if found.words and found.words != said:
            said = found.words
            watcher.say(f"not yet: {said}")
    return ""


def watch(look: Callable[[], Standing], watcher: Watcher, ended: threading.Event) -> None:
    """Until a signal comes, tell when the fleet is not whole, and when it is again."""
    whole = True
    while not ended.wait(WATCH):
        found = look()
        if found.running != whole:
            whole = found.running
            watcher.say("all is there again" if whole else f"not all is there: {found.words or OTHERS}")


def drain(held: Callable[[], int], seconds: float) -> None:
    """Let nobody in any more, and wait for those inside. `held`: sees to the first, and says how many they are."""
    until = time.monotonic() + seconds
    while held() and time.monotonic() < until:
        time.sleep(PAUSE)


def _close_doors(front: Any) -> int:
    told = front.broadcast("drain").results(timeout_s=ANSWER, return_exceptions=True)
    return sum(found for found in told if isinstance(found, int))


def _greeting(settings: ServerSettings) -> str:
    url = f"http://{spelled(reached_here(settings.host))}:{settings.port}"
    look = f"; open {url} in a browser" if settings.ui else ""
    if not _listened_at(reached_here(settings.host), settings.port):
        return f"the fleet runs, but not at {url}: Serve was there already, with addresses of its own"
    return f"ready at {url}/v1{look}; try: {example(url, locked=bool(settings.keys()))}"


def _listened_at(host: str, port: int) -> bool:
    """Whether anybody takes connections there; an answer may have to wait for an engine."""
    try:
        socket.create_connection((host, port), timeout=ANSWER).close()
    except OSError:
        return False
    return True


def with_replicas(args: dict[str, Any], replicas: str | None) -> dict[str, Any]:
    """Arguments with `N` or `MIN:MAX` engines. Raises `InvalidRequest` for another text."""
    if replicas is None:
        return args
    low, colon, high = replicas.partition(":")
    if not low.isdecimal() or (colon and not high.isdecimal()):
        raise InvalidRequest(f"--replicas is {replicas[:40]!r}; write a number, or two like 1:4", param="replicas")
    told = dict(args.get(FLEET) or {}) | {"min_replicas": int(low)} | ({"max_replicas": int(high)} if colon else {})
    return {**args, FLEET: told}
