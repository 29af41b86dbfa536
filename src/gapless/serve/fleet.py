"""Settings of many engines: those of one server, and beside them how many, where, and when there are more.

In: the arguments of `ray_app.app_builder`, as a Serve config's `args` has them: settings of the server by their names,
and under `fleet` those of this module. Out: `FleetSettings` and `ServerSettings`, checked. Nothing here needs Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from gapless.api.affinity import SLACK
from gapless.errors import InvalidRequest, shown
from gapless.serve.scaling import MOST_IDLE
from gapless.serve.settings import FLEET, ServerSettings, read_beside, read_settings

ENGINE, FRONT = "GaplessEngine", "GaplessFront"
"""The deployments' names, for a Serve config that sets something of one."""
LAST_WORDS = 5.0
"""Seconds beside `drain_timeout` that an engine gets to end."""
Seconds = Annotated[float, Field(ge=0, le=24 * 3600)]
Count = Annotated[int, Field(ge=1, le=10_000)]


class FleetSettings(BaseModel):
    """How many engines, on what, and when."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_replicas: Annotated[int, Field(ge=0, le=10_000)] = 1
    max_replicas: Count | None = None
    """None: as many as `min_replicas`, always."""
    target_requests: Annotated[float, Field(gt=0)] | None = None
    """What one engine is to hold; None: three quarters of its rows, as far as they are known (64 on a GPU, 16 on a
    CPU)."""
    most_idle: Annotated[float, Field(ge=0, le=1)] = MOST_IDLE
    """Share of the time; devices that idle more get no other one beside them."""
    upscale_delay: Seconds = 10.0
    downscale_delay: Seconds = 300.0
    look_back: Annotated[float, Field(gt=0)] = 20.0
    """Seconds over which requests are averaged."""
    affinity_slack: Annotated[int, Field(ge=0)] = SLACK
    """Requests by which the engine with the picture may always be ahead of the least busy one."""
    fronts: Count = 1
    """Processes that take requests and pass them on."""
    gpus: Annotated[float, Field(ge=0, le=64)] | None = None
    """Of one engine. None: 1, or 0 for `device: cpu` and for glint where no device is named."""
    cpus: Annotated[float, Field(ge=0)] | None = None
    """That Ray sets aside for one engine. None: 1, beside a GPU 4."""
    adapters_folder: Path | None = None
    """A folder that all machines see: a request that names an adapter unknown to its engine has it loaded from
    there."""
    surge_percent: Annotated[int, Field(ge=0, le=100)] = 0
    """Engines that an update may start before it ends old ones, of all; 0: old ones end first, as GPUs are taken."""
    health_period: Annotated[float, Field(gt=0)] = 10.0
    health_timeout: Annotated[float, Field(gt=0)] = 60.0
    version: str = ""
    """Any text; another one replaces all engines, one after another."""

    @model_validator(mode="after")
    def _in_order(self) -> FleetSettings:
        if self.max_replicas is not None and self.max_replicas < max(1, self.min_replicas):
            raise ValueError(f"max_replicas is {self.max_replicas}, less than min_replicas; raise it")
        if self.min_replicas == 0 and self.max_replicas is None:
            raise ValueError("min_replicas is 0 and there is no max_replicas; give one")
        return self

    @property
    def most(self) -> int:
        """Engines at most."""
        return self.max_replicas or self.min_replicas


def read_fleet(args: Mapping[str, Any]) -> tuple[ServerSettings, FleetSettings]:
    """Settings of the server and of the fleet. GAPLESS_* variables of the process that reads them count, a file is read
    under `config`; what the arguments say of the fleet wins over what the file says. Raises `InvalidRequest` naming the
    setting."""
    given = dict(args)
    named = given.pop("config", None)
    config = Path(named) if named else None
    told = _named(read_beside(FLEET, config)) | _named(given.pop(FLEET, None))
    try:
        fleet = FleetSettings(**told)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        name = ".".join([FLEET, *map(str, found["loc"])])
        known = f"; there are {', '.join(FleetSettings.model_fields)}" if found["type"] == "extra_forbidden" else ""
        raise InvalidRequest(
            f"{name}: {found['msg'].removeprefix('Value error, ').lower()}{known}", param=name
        ) from error
    server = read_settings(given, config, beside=FLEET)
    _check(server, fleet)
    if fleet.adapters_folder is not None:
        fleet = fleet.model_copy(update={"adapters_folder": fleet.adapters_folder.absolute()})
    return placed(server, fleet), fleet


def _named(told: object) -> dict[str, Any]:
    found = {} if told is None else told
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise InvalidRequest(f"{FLEET} must hold settings by their names; got {shown(told)}", param=FLEET)
    return dict(found)


def _check(server: ServerSettings, fleet: FleetSettings) -> None:
    if server.device.startswith("cuda:"):
        raise InvalidRequest(
            f"device is {server.device}, and in a fleet Ray gives each engine a GPU of its own; say cuda or auto",
            param="device",
        )
    if server.device == "cpu" and fleet.gpus:
        raise InvalidRequest(f"device is cpu and fleet.gpus is {fleet.gpus:g}; leave one of them out", param="device")


def gpus_of(server: ServerSettings, fleet: FleetSettings) -> float:
    """GPUs that one engine takes."""
    if fleet.gpus is not None:
        return fleet.gpus
    return 0.0 if server.device == "cpu" or (server.device == "auto" and server.model == "glint") else 1.0


def cpus_of(server: ServerSettings, fleet: FleetSettings) -> float:
    """CPUs that Ray sets aside for one engine."""
    return fleet.cpus if fleet.cpus is not None else (4.0 if gpus_of(server, fleet) else 1.0)


def front_cpus(server: ServerSettings, fleet: FleetSettings) -> float:
    """The same for one front."""
    return 1.0 if gpus_of(server, fleet) else 0.1


def placed(server: ServerSettings, fleet: FleetSettings) -> ServerSettings:
    """The settings of one engine on its machine: an engine that gets no GPU takes none that it happens to see, and one
    with a folder of adapters has room for some."""
    changed: dict[str, Any] = {}
    if server.device == "auto":
        changed["device"] = "cuda" if gpus_of(server, fleet) else "cpu"
    if fleet.adapters_folder is not None and server.max_adapters is None:
        from gapless.api.shelf import SLOTS

        changed["max_adapters"] = max(SLOTS, len(server.adapters))
    if Path(server.model).is_dir():
        changed["model"] = str(Path(server.model).absolute())
    changed["adapters"] = {name: _whole(path) for name, path in server.adapters.items()}
    keys = server.keys()
    hidden = tuple(SecretStr(key) for key in keys)
    return server.model_copy(update={**changed, "api_keys": hidden, "api_keys_file": None})


def _whole(path: str) -> str:
    """A path that is here, as it is found from any folder; all machines must have it there. Others stay: `glint/moon`
    is looked up where it is loaded."""
    return str(Path(path).absolute()) if Path(path).exists() else path


def target_of(server: ServerSettings, fleet: FleetSettings) -> float:
    """Requests that one engine is to hold."""
    if fleet.target_requests is not None:
        return fleet.target_requests
    rows = server.max_rows or (64 if gpus_of(server, fleet) else 16)
    return max(1.0, 0.75 * rows)


def engine_options(server: ServerSettings, fleet: FleetSettings) -> dict[str, Any]:
    """Options of the engines' deployment, as Ray Serve names them."""
    cpus, gpus = cpus_of(server, fleet), gpus_of(server, fleet)
    options: dict[str, Any] = {
        "max_ongoing_requests": server.max_requests,
        "ray_actor_options": {"num_cpus": cpus, "num_gpus": gpus},
        "graceful_shutdown_timeout_s": server.drain_timeout + LAST_WORDS,
        "graceful_shutdown_wait_loop_s": 0.5,
        "health_check_period_s": fleet.health_period,
        "health_check_timeout_s": fleet.health_timeout,
        "max_surge_percent": fleet.surge_percent,
        "user_config": {"adapters": dict(server.adapters)},
        "request_router_config": {
            "request_router_class": "gapless.serve.ray_router.AffinityRouter",
            "request_router_kwargs": {"slack": fleet.affinity_slack},
        },
    }
    if fleet.max_replicas is None or fleet.max_replicas == fleet.min_replicas:
        return options | {"num_replicas": fleet.most}
    return options | {
        "autoscaling_config": {
            "min_replicas": fleet.min_replicas,
            "max_replicas": fleet.max_replicas,
            "target_ongoing_requests": target_of(server, fleet),
            "upscale_delay_s": fleet.upscale_delay,
            "downscale_delay_s": fleet.downscale_delay,
            "look_back_period_s": fleet.look_back,
            "policy": {
                "policy_function": "gapless.serve.scaling:QueueAndBubble",
                "policy_kwargs": {"most_idle": fleet.most_idle},
            },
        }
    }


def front_options(server: ServerSettings, fleet: FleetSettings) -> dict[str, Any]:
    """Options of the deployment in front, which takes as much as all engines together, and its own share of what
    waits."""
    return {
        "num_replicas": fleet.fronts,
        "max_ongoing_requests": 2 * places_of(server, fleet),
        "ray_actor_options": {"num_cpus": front_cpus(server, fleet)},
        "graceful_shutdown_timeout_s": server.drain_timeout + LAST_WORDS,
        "graceful_shutdown_wait_loop_s": 0.5,
    }


def places_of(server: ServerSettings, fleet: FleetSettings) -> int:
    """Requests that one front holds at once; one more is told 429."""
    return -(-server.max_requests * fleet.most // fleet.fronts)
