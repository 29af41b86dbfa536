"""`python -m gapless.bench.decode`: the decode benchmark as a command that needs torch, nothing else.

In: which model, streams, depths, samplers and how long. Out: a table on standard output and a JSON file, written anew
after every few sections, so that a run that is cut short leaves what it had. What is measured, and how, says
`bench.decode_run`. Importing this waits for no torch.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, get_args

from gapless.bench.against import chosen
from gapless.bench.command import Report, Save, add_against_torch, finish, numbers, parser_of
from gapless.bench.hostpart import ROWS, measure_null
from gapless.bench.joined import joined
from gapless.bench.load import check_sizes, load, names_of, where
from gapless.bench.text import table
from gapless.config import KVDType
from gapless.errors import InvalidRequest

if TYPE_CHECKING:
    from PIL.Image import Image

    from gapless.api.load import Progress
    from gapless.bench.decode_run import Options
    from gapless.bench.rig import Rig

HOST_COLUMNS = ("device", "rows", "plan_ms", "launch_ms", "wait_ms", "commit_ms", "calls_per_step", "api_calls")
CHOICES = ("greedy", "default", "both")
STREAMS = {"cpu": (1, 8), "cuda": (1, 8, 32, 64, 128)}
SECONDS = 150.0
FP8_CACHE = ", KV cache in FP8"
"""Behind a model's name."""


@dataclass(frozen=True, slots=True)
class Decode:
    """The benchmark; see `Benchmark`. `streams` and `host_rows` None: the device's usual ones. `kinds`: of `KINDS`,
    rows that do more than write text, measured beside the others. `plain`: with torch's kernels alone. `kv_dtypes`:
    how keys and values are kept; `prompt`: ids behind a row's picture, None for the usual few. `model` may name several
    kinds of random weights, see `names_of`; all are measured one after the other, in one report."""

    model: str | None = None
    device: str = "auto"
    streams: tuple[int, ...] | None = None
    depths: tuple[int, ...] = (1, 2)
    sampler: str = "both"
    waves: int = 3
    seconds: float = SECONDS
    graphs: bool = True
    host_rows: tuple[int, ...] | None = None
    kinds: tuple[str, ...] = ()
    plain: bool = False
    kv_dtypes: tuple[KVDType, ...] = ("auto",)
    prompt: int | None = None

    @property
    def title(self) -> str:
        """See `Benchmark`."""
        return "Decode steps"

    @property
    def tables(self) -> Mapping[str, Sequence[str]]:
        """See `Benchmark`."""
        from gapless.bench.decode_rows import COLUMNS

        return {"rows": COLUMNS, "host": HOST_COLUMNS[:-1]}

    def run(self, save: Save, progress: Progress | None = None) -> Report:
        """See `Benchmark`. Raises `InvalidRequest` for a device that is not there, more rows than an engine takes or a
        prompt that does not fit, and what loading a model raises."""
        from gapless.bench.decode_run import Options  # needs torch

        check_sizes(self.depths, (*(self.streams or ()), *(self.host_rows or ())), "streams")
        device = where(self.device)
        kind = device.partition(":")[0]
        streams = self.streams or STREAMS[kind]
        host_rows = self.host_rows or ((1,) if kind == "cpu" else ROWS)
        samplers = (*(CHOICES[:2] if self.sampler == "both" else (self.sampler,)), *self.kinds)
        each = list(product(names_of(self.model), self.kv_dtypes))
        seconds = self.seconds / len(each)
        options = Options(streams, self.depths, seconds, host_rows=host_rows, waves=self.waves, samplers=samplers)
        options = options if self.prompt is None else replace(options, prompt=self.prompt)
        done: list[Report] = []
        for name, kept in each:
            done.append(self._one(name, kept, device, options, partial(_save_with, save, tuple(done)), progress))
        return joined(done)

    def _one(
        self,
        name: str | None,
        kept: KVDType,
        device: str,
        options: Options,
        save: Save,
        progress: Progress | None,
    ) -> Report:
        """Measure one model over one kind of cache."""
        from gapless.bench.decode_run import Bench

        rig = self._rig(name, kept, device, tuple(sorted({*options.streams, *options.host_rows})), options.prompt)
        try:
            return Bench(rig, options, progress=progress).run(save)
        finally:
            rig.close()

    def _rig(self, name: str | None, kept: KVDType, device: str, buckets: tuple[int, ...], prompt: int) -> Rig:
        from gapless.bench.rig import ADAPTED, ADAPTERS, ANSWERS, Wants
        from gapless.bench.rigs import open_rig

        loaded, adapters = load(name, device, self.plain, kept), ADAPTERS if ADAPTED in self.kinds else 0
        room = loaded.model.max_context - loaded.model.prefix - ANSWERS[1]
        if self.prompt is not None and prompt > room:
            raise InvalidRequest(
                f"{prompt} ids behind a picture leave no room for an answer; {loaded.name} has room for {room}",
                param="prompt",
            )
        named = replace(loaded, name=loaded.name + FP8_CACHE) if kept == "fp8" else loaded
        return open_rig(device, named, buckets, Wants(prompt, adapters), graphs=self.graphs, plain=self.plain)

    def complete(self, report: Report) -> bool:
        """Whether every number of streams was measured at every depth with every sampler, and on a GPU its parts."""
        streams = self.streams or STREAMS["cpu" if report["device"] == "cpu" else "cuda"]
        kinds = (2 if self.sampler == "both" else 1) + len(self.kinds)
        wanted = len(streams) * len(self.depths) * kinds * len(names_of(self.model)) * len(self.kv_dtypes)
        needed = ("period_ms",) if report["device"] == "cpu" else ("period_ms", "forward_ms")
        whole = [row for row in report["rows"] if all(row[name] is not None for name in needed)]
        return len(whole) == wanted

    def draw(self, report: Report) -> Image:
        """See `Benchmark`: gains above depth 1."""
        from gapless.bench.decode_rows import KINDS
        from gapless.bench.gain_plot import draw_gains, gain_bars

        written = [row for row in report["rows"] if row["sampler"] not in KINDS]
        return draw_gains(gain_bars(written), "What pipelining brings", gain_subtitle(report))


def _save_with(save: Save, before: Sequence[Report], report: Mapping[str, Any]) -> None:
    """Save a report behind those of the models before."""
    save(joined([*before, dict(report)]))


def gain_subtitle(report: Mapping[str, Any]) -> str:
    """What the bars of a decode report are."""
    from gapless.bench.command import described

    return f"Tokens per second above the blocking engine's, in percent · {described(report)}"


def host_table(parts: Sequence[Mapping[str, Any]]) -> str:
    """The host's part as text."""
    calls = [{**part, "api_calls": sum((part["api_calls"] or {}).values()) or None} for part in parts]
    return table(calls, HOST_COLUMNS)


def _kinds(given: str) -> tuple[str, ...]:
    from gapless.bench.decode_rows import KINDS

    kinds = tuple(given.split(","))
    if not set(kinds) <= set(KINDS):
        raise ArgumentTypeError(f"--also is {given!r}; give one or more of {', '.join(KINDS)}")
    return kinds


def _kept(given: str) -> tuple[KVDType, ...]:
    found = tuple(kind for kind in get_args(KVDType) if kind in given.split(","))
    if not given or set(found) != set(given.split(",")):
        raise ArgumentTypeError(f"--kv-dtype is {given!r}; give one or more of {', '.join(get_args(KVDType))}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 0, 1 if a row is not whole, 2 if nothing could be measured."""
    usual = Decode()
    parser = parser_of("decode", "The decode benchmark.", "auto", usual.seconds)
    parser.add_argument("--streams", type=numbers, help="for example 1,8,32,64,128")
    parser.add_argument("--depth", "--depths", type=numbers, default=usual.depths, help="for example 1,2")
    parser.add_argument("--sampler", choices=CHOICES, default=usual.sampler)
    parser.add_argument("--also", type=_kinds, default=(), help="rows beside those that write text: spatial,adapters")
    parser.add_argument("--waves", type=int, default=usual.waves, help="how often each row is measured")
    parser.add_argument("--host-rows", type=numbers, help="rows of the host's part")
    parser.add_argument("--graphs", choices=("on", "off"), default="on")
    parser.add_argument("--kv-dtype", type=_kept, default=("auto",), help="how keys and values are kept: auto,fp8")
    parser.add_argument("--prompt", type=int, help="ids behind each picture")
    add_against_torch(parser)
    parser.add_argument("--host-only", action="store_true", help="the engine's own part alone; needs no GPU")
    given = parser.parse_args(arguments)
    if given.host_only:
        print(host_table([part.as_dict() for part in measure_null(given.host_rows or ROWS)]))
        return 0
    decode = Decode(
        given.model,
        given.device,
        given.streams,
        given.depth,
        given.sampler,
        given.waves,
        given.seconds,
        given.graphs == "on",
        given.host_rows,
        given.also,
        kv_dtypes=given.kv_dtype,
        prompt=given.prompt,
    )
    return finish(chosen(decode, replace(decode, plain=True), given.against_torch), given.out, given.png, given.json)


if __name__ == "__main__":
    raise SystemExit(main())
