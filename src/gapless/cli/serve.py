"""`gapless serve`: the model behind HTTP.

In: flags; what is not given comes from `GAPLESS_*` variables and the configuration file. Out: an exit code. Standard
output stays empty; the log and a person's lines go to standard error.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gapless.cli.options import (
    MOST_DEPTH,
    MOST_GRAMMARS,
    MOST_PAGES,
    MOST_ROWS,
    RUN,
    DTypeChoice,
    KVDTypeChoice,
    Switch,
    read_adapters,
)
from gapless.cli.terminal import PROGRAM, Spinner, complain, one_line, spinner
from gapless.errors import InvalidRequest

if TYPE_CHECKING:
    from gapless.serve.settings import ServerSettings

LISTEN, LIMITS, FLEET = "Where to listen", "Limits", "Many engines"
STDERR = 2
INSTALL = "pip install '.[serve]' in a checkout, or 'NAME.whl[serve]' where there is a wheel"
NEEDED = ("fastapi", "uvicorn", "uvloop", "httptools", "pydantic_settings", "yaml", "prometheus_client")
NEEDED_BY_RAY = ("ray",)

Model = Annotated[str | None, typer.Argument(metavar="MODEL", help="A model's name, or its folder. Not given: glint.")]
Host = Annotated[str | None, typer.Option("--host", rich_help_panel=LISTEN, help="Address. Not given: 127.0.0.1.")]
Port = Annotated[int | None, typer.Option("--port", rich_help_panel=LISTEN, help="Not given: 2020; 0: any free one.")]
KeysFile = Annotated[
    Path | None,
    typer.Option("--api-keys-file", rich_help_panel=LISTEN, help="Keys that clients must send, one a line."),
]
CorsOrigins = Annotated[
    str | None,
    typer.Option(
        "--cors-origins", metavar="URL,...", rich_help_panel=LISTEN, help="Pages that may ask from a browser; * is all."
    ),
]
UI = Annotated[
    bool | None,
    typer.Option(" /--no-ui", rich_help_panel=LISTEN, help="Without the playground, the page for people at /."),
]
Config = Annotated[
    Path | None, typer.Option("--config", help="A YAML file with settings by their names; flags and variables win.")
]
MaxRequests = Annotated[
    int | None,
    typer.Option(
        "--max-requests", metavar="N", rich_help_panel=LIMITS, help="Held at once; more are told 429. Not given: 128."
    ),
]
RateLimit = Annotated[
    float | None,
    typer.Option(
        "--rate-limit",
        metavar="N",
        rich_help_panel=LIMITS,
        help="Requests a second of one key; more are told 429. Not given: no limit.",
    ),
]
RateBurst = Annotated[
    int | None,
    typer.Option(
        "--rate-burst",
        metavar="N",
        rich_help_panel=LIMITS,
        help="How many of them may come at once. Not given: what --rate-limit gives in a second.",
    ),
]
MaxBody = Annotated[
    int | None,
    typer.Option(
        "--max-body-bytes", metavar="N", rich_help_panel=LIMITS, help="Larger bodies are told 413. Not given: 32 MiB."
    ),
]
PictureCacheSize = Annotated[
    str | None,
    typer.Option(
        "--picture-cache",
        metavar="SIZE",
        rich_help_panel=LIMITS,
        help="Decoded pictures that are kept, like 1GB; 0: none. Not given: 256 MiB.",
    ),
]
RequestTimeout = Annotated[
    float | None,
    typer.Option(
        "--request-timeout", metavar="SECONDS", rich_help_panel=LIMITS, help="Most an answer may take. Not given: 300."
    ),
]
DrainTimeout = Annotated[
    float | None,
    typer.Option(
        "--drain-timeout",
        metavar="SECONDS",
        rich_help_panel=LIMITS,
        help="What running requests get at SIGTERM. Not given: 30.",
    ),
]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="DEVICE", rich_help_panel=RUN, help="auto, cpu, cuda or cuda:N. Not given: auto."),
]
DType = Annotated[
    DTypeChoice | None,
    typer.Option(
        "--dtype",
        metavar="DTYPE",
        rich_help_panel=RUN,
        help="Number format. Not given: auto, which suits device and checkpoint.",
    ),
]
Depth = Annotated[
    int | None,
    typer.Option(
        "--depth", min=1, max=MOST_DEPTH, rich_help_panel=RUN, help="Steps in flight; 1 waits after each. Not given: 2."
    ),
]
Graphs = Annotated[
    Switch | None,
    typer.Option("--graphs", rich_help_panel=RUN, help="off: a GPU's steps without CUDA graphs, for debugging."),
]
PictureCacheHost = Annotated[
    str | None,
    typer.Option(
        "--picture-cache-host",
        metavar="SIZE",
        rich_help_panel=RUN,
        help="Host memory for what vision made of pictures, like 8GB, for those whose pages are gone. Not given: none.",
    ),
]
Process = Annotated[
    Switch | None,
    typer.Option("--process", rich_help_panel=RUN, help="off: the engine in a thread of the server. Not given: on."),
]
MaxRows = Annotated[
    int | None,
    typer.Option(
        "--max-rows",
        metavar="N",
        min=1,
        max=MOST_ROWS,
        rich_help_panel=RUN,
        help="Requests that run at once. Not given: 16, on a GPU 64.",
    ),
]
Pages = Annotated[
    int | None,
    typer.Option(
        "--pages",
        metavar="N",
        min=2,
        max=MOST_PAGES,
        rich_help_panel=RUN,
        help="Size of the KV cache, in pages of 16 tokens. Not given: enough for all rows, or what fits.",
    ),
]

KvMemory = Annotated[
    str | None,
    typer.Option(
        "--kv-memory",
        metavar="SIZE",
        rich_help_panel=RUN,
        help="The same, like 8GB; more than all rows need is room for the prefix cache.",
    ),
]
KVDType = Annotated[
    KVDTypeChoice | None,
    typer.Option("--kv-dtype", metavar="KIND", rich_help_panel=RUN, help="auto, or fp8: twice the tokens in as much."),
]
MaxContext = Annotated[
    int | None,
    typer.Option(
        "--max-context",
        metavar="N",
        min=1,
        rich_help_panel=RUN,
        help="Tokens of a prompt and its answer together. Not given: what the checkpoint says.",
    ),
]
Grammars = Annotated[
    int | None,
    typer.Option(
        "--grammars",
        metavar="N",
        min=0,
        max=MOST_GRAMMARS,
        rich_help_panel=RUN,
        help="Different rules for answers that may be followed at once. Not given: 64; 0: none.",
    ),
]
GrammarMemory = Annotated[
    str | None,
    typer.Option(
        "--grammar-memory", metavar="SIZE", rich_help_panel=RUN, help="For their tables, like 256MiB. Not given: 64MiB."
    ),
]
PrefixCache = Annotated[
    Switch | None,
    typer.Option("--prefix-cache", rich_help_panel=RUN, help="off: what was computed is not kept for later requests."),
]
MaxStep = Annotated[
    float | None,
    typer.Option(
        "--max-step-ms",
        metavar="MS",
        min=0,
        rich_help_panel=RUN,
        help="What prompts and pictures are cut to while others decode. Not given: 8 on a GPU, no limit on a CPU; 0: "
        "no limit.",
    ),
]
Adapter = Annotated[
    list[str] | None,
    typer.Option(
        "--adapter", metavar="NAME=PATH", rich_help_panel=RUN, help="A LoRA adapter for requests; may be given again."
    ),
]
MaxAdapters = Annotated[
    int | None,
    typer.Option(
        "--max-adapters",
        metavar="N",
        min=1,
        rich_help_panel=RUN,
        help="Adapters that run at once. Not given: 8 with --adapter, else none.",
    ),
]
MaxAdapterRank = Annotated[
    int | None,
    typer.Option(
        "--max-adapter-rank",
        metavar="R",
        min=1,
        max=64,
        rich_help_panel=RUN,
        help="Of any of them. Not given: that of --adapter, or 64.",
    ),
]

Ray = Annotated[
    bool, typer.Option("--ray", rich_help_panel=FLEET, help="Many engines, a GPU each, through Ray Serve (extra ray).")
]
Replicas = Annotated[
    str | None,
    typer.Option(
        "--replicas",
        metavar="N|MIN:MAX",
        rich_help_panel=FLEET,
        help="Engines of --ray; with two numbers as many as requests need. Not given: 1.",
    ),
]


def serve(
    model: Model = None,
    config: Config = None,
    host: Host = None,
    port: Port = None,
    api_keys_file: KeysFile = None,
    cors_origins: CorsOrigins = None,
    ui: UI = None,
    max_requests: MaxRequests = None,
    rate_limit: RateLimit = None,
    rate_burst: RateBurst = None,
    max_body_bytes: MaxBody = None,
    picture_cache: PictureCacheSize = None,
    request_timeout: RequestTimeout = None,
    drain_timeout: DrainTimeout = None,
    device: Device = None,
    dtype: DType = None,
    depth: Depth = None,
    graphs: Graphs = None,
    max_rows: MaxRows = None,
    pages: Pages = None,
    kv_memory: KvMemory = None,
    kv_dtype: KVDType = None,
    max_context: MaxContext = None,
    prefix_cache: PrefixCache = None,
    picture_cache_host: PictureCacheHost = None,
    max_step_ms: MaxStep = None,
    grammars: Grammars = None,
    grammar_memory: GrammarMemory = None,
    process: Process = None,
    adapter: Adapter = None,
    max_adapters: MaxAdapters = None,
    max_adapter_rank: MaxAdapterRank = None,
    ray: Ray = False,
    replicas: Replicas = None,
) -> int:
    """Serve a model over HTTP with the routes of the Moondream service and OpenAI's chat completions.

    A browser at the same address has a playground.

    Every setting, also those without a flag, can come from a variable GAPLESS_NAME or a line of the --config file.
    """
    given = locals()  # the arguments, before there is anything else
    for name in ("config", "ray", "replicas"):
        del given[name]
    _check_installed(NEEDED + (NEEDED_BY_RAY if ray else ()))
    if ray:
        return _run_fleet(_flags(given), config, replicas)
    if replicas is not None:
        raise typer.BadParameter(f"--replicas is {replicas}, and one server has one engine; give --ray too")
    return _run(_settings(_flags(given), config))


def _flags(given: dict[str, Any]) -> dict[str, Any]:
    """What was given, by the names of settings."""
    named = {**given, "adapters": dict(read_adapters(given["adapter"])) or None}
    del named["adapter"]
    return {name: _plain(value) for name, value in named.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, Switch):
        return value is Switch.ON
    return value.for_load() if isinstance(value, DTypeChoice | KVDTypeChoice) else value


def _run_fleet(flags: dict[str, Any], config: Path | None, replicas: str | None) -> int:
    from gapless.serve.ray_run import run_fleet, with_replicas
    from gapless.serve.settings import unknown_variables

    for line in unknown_variables():
        complain(line)
    args = with_replicas(flags | ({"config": str(config)} if config is not None else {}), replicas)
    with ExitStack() as loading:
        return run_fleet(args, Screen(loading, loading.enter_context(spinner("starting Ray Serve"))))


def _run(settings: ServerSettings) -> int:
    from gapless.serve.process import run
    from gapless.serve.settings import unknown_variables

    for line in unknown_variables():
        complain(line)
    with ExitStack() as loading:
        return run(settings, Screen(loading, loading.enter_context(spinner(f"loading {settings.model}"))))


def _settings(given: dict[str, Any], config: Path | None) -> ServerSettings:
    from gapless.serve.settings import read_settings

    try:
        return read_settings(given, config)
    except InvalidRequest as error:
        if error.param in given:
            raise typer.BadParameter(str(error)) from error
        raise


class Screen:
    """What a person sees of a server: a spinner on a terminal while it loads, and lines on standard error."""

    def __init__(self, loading: ExitStack, spinner: Spinner) -> None:
        self._loading = loading
        self._spinner = spinner

    def show(self, doing: str, done: int, total: int) -> None:
        """How far loading is."""
        self._spinner.show(doing, done, total)

    def say(self, line: str) -> None:
        """One line on standard error. Where that is a full disk, it is lost, and the server goes on."""
        if sys.stderr.isatty():
            complain(line)
        else:  # unbuffered: what cannot be written now is not to fail again at the end
            with suppress(OSError):
                os.write(STDERR, f"{PROGRAM}: {one_line(line)}\n".encode("utf-8", "backslashreplace"))

    def ready(self, line: str) -> None:
        """Take the spinner away."""
        self._loading.close()
        self.say(line)


def _check_installed(needed: tuple[str, ...]) -> None:
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        install = INSTALL.replace("serve", "ray") if missing == list(NEEDED_BY_RAY) else INSTALL
        raise InvalidRequest(f"the server's packages are not installed ({', '.join(missing)} missing); {install}")
