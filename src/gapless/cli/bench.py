"""`gapless bench`: measurements, one subcommand each. Every one says what machine it ran on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from gapless.bench.against import chosen
from gapless.bench.decode import SECONDS, Decode
from gapless.bench.gaps import MAX_STEP_MS as GAPS_STEP_MS
from gapless.bench.gaps import SECONDS as GAPS_SECONDS
from gapless.bench.gaps import Gaps
from gapless.bench.mix import MIX, PICTURES
from gapless.bench.prefill import SECONDS as PREFILL_SECONDS
from gapless.bench.prefill import Prefill
from gapless.bench.query import SECONDS as QUERY_SECONDS
from gapless.bench.query import Query
from gapless.bench.rules import SECONDS as RULES_SECONDS
from gapless.bench.rules import TURNS, RulesBenchmark
from gapless.bench.serve import SECONDS as SERVE_SECONDS
from gapless.bench.serve import Serve
from gapless.bench.vision import SECONDS as VISION_SECONDS
from gapless.bench.vision import Vision
from gapless.cli import cost
from gapless.cli.examples import epilog
from gapless.cli.measured import (
    AgainstTorchOption,
    BenchModelOption,
    CompareOption,
    DepthsOption,
    OneSampler,
    OutOption,
    PngOption,
    SamplerChoice,
    SecondsOption,
    WavesOption,
    alone,
    distinct,
    run_benchmark,
    show_host_only,
)
from gapless.cli.options import (
    MOST_DEPTH,
    DeviceOption,
    DTypeChoice,
    DTypeOption,
    GraphsOption,
    KVDTypeChoice,
    ModelOption,
    ReportJsonOption,
    Switch,
)
from gapless.cli.show import json_line
from gapless.cli.terminal import complain, spinner, table

if TYPE_CHECKING:
    from gapless.bench.run import Report

app = typer.Typer(name="bench")
app.command("model", epilog=epilog("bench model"))(cost.model)
app.command("compare", epilog=epilog("bench compare"))(cost.compare)
STREAMS_HELP = "Requests at once; may be given again. Not given: 1 and 8, on a GPU 1, 8, 32, 64 and 128."
CALLERS_HELP = "Callers at once; may be given again. Not given: 1 and 4, on a GPU 1, 4, 16 and 64."
CLIENTS_HELP = "Callers at once; may be given again. Not given: 1 and 4, on a GPU 1, 16, 64 and 128."
LEAST_STEP_MS = 0.1
NO_PROMISE = (
    "Depth 2 hides the host's work behind the device's. On a CPU both share the same cores, so a small or busy machine "
    "may gain nothing from it, or lose a little; the answers are the same either way."
)


@app.callback(invoke_without_command=True)
def bench(context: typer.Context, compare: CompareOption = None) -> int:
    """Measure this machine, and say what to expect of it."""
    if compare is not None:
        if context.invoked_subcommand is not None:
            context.fail(
                f"--compare measures nothing; leave out {context.invoked_subcommand}, or put --compare after it"
            )
        return cost.compare(*compare)
    if context.invoked_subcommand is None:
        context.fail("Missing command.")
    return 0


@app.command("mix", epilog=epilog("bench mix"))
def mix(
    depth: Annotated[
        list[int] | None,
        typer.Option("--depth", min=1, max=MOST_DEPTH, help="A depth to run at; may be given again. Default: 1 and 2."),
    ] = None,
    model: ModelOption = "glint",
    device: DeviceOption = "auto",
    dtype: DTypeOption = DTypeChoice.AUTO,
    json: ReportJsonOption = False,
) -> int:
    """Run one fixed mix at each depth: 24 requests of all skills over four small pictures, all at once."""
    report = measure(model, depth or (1, 2), device=device, dtype=dtype)
    if json:
        json_line(report.as_dict())
    return finish_report(report, quiet=json)


@app.command("decode", epilog=epilog("bench decode"))
def decode(
    context: typer.Context,
    model: BenchModelOption = None,
    device: DeviceOption = "auto",
    streams: Annotated[
        list[int] | None,
        typer.Option("--streams", min=1, callback=distinct, help=STREAMS_HELP),
    ] = None,
    depth: DepthsOption = None,
    sampler: Annotated[
        SamplerChoice, typer.Option("--sampler", help="Temperature 0, what a query uses by default, or both.")
    ] = SamplerChoice.BOTH,
    waves: WavesOption = 3,
    seconds: SecondsOption = SECONDS,
    graphs: GraphsOption = Switch.ON,
    kv_dtype: Annotated[
        list[KVDTypeChoice] | None,
        typer.Option("--kv-dtype", metavar="KIND", help="How the KV cache is kept: auto or fp8; may be given again."),
    ] = None,
    prompt: Annotated[
        int | None, typer.Option("--prompt", metavar="N", min=1, help="Ids behind each picture. Default: 14.")
    ] = None,
    against_torch: AgainstTorchOption = False,
    host_only: Annotated[
        bool, typer.Option("--host-only", help="The engine's own part alone; loads no model.")
    ] = False,
    json: ReportJsonOption = False,
    out: OutOption = None,
    png: PngOption = None,
    compare: CompareOption = None,
) -> int:
    """Time decode steps at several numbers of streams, blocking and pipelined, beside what the hardware allows.

    Answers end by surprise at about 110 tokens. Ends with 1 if a row could not be measured.
    """
    if compare is not None:
        alone(context, "compare")
        return cost.compare(*compare, json=json)
    if host_only:
        alone(context, "host_only")
        show_host_only(json)
        return 0
    benchmark = Decode(
        model,
        device,
        tuple(streams) if streams else None,
        tuple(depth or (1, 2)),
        sampler.value,
        waves,
        seconds,
        graphs is Switch.ON,
        kv_dtypes=tuple(kind.for_load() for kind in kv_dtype or (KVDTypeChoice.AUTO,)),
        prompt=prompt,
    )
    measured = chosen(benchmark, replace(benchmark, plain=True), against_torch)
    return run_benchmark(measured, json=json, out=out, png=png)


@app.command("query", epilog=epilog("bench query"))
def query(
    context: typer.Context,
    model: BenchModelOption = None,
    device: DeviceOption = "auto",
    concurrency: Annotated[
        list[int] | None,
        typer.Option("--concurrency", min=1, callback=distinct, help=CALLERS_HELP),
    ] = None,
    depth: DepthsOption = None,
    sampler: Annotated[
        OneSampler, typer.Option("--sampler", help="Temperature 0, or what a query uses by default.")
    ] = OneSampler.DEFAULT,
    waves: Annotated[
        int | None, typer.Option("--waves", min=1, help="Slices of each row. Not given: 1, on a GPU 2.")
    ] = None,
    seconds: SecondsOption = QUERY_SECONDS,
    graphs: GraphsOption = Switch.ON,
    against_torch: AgainstTorchOption = False,
    json: ReportJsonOption = False,
    out: OutOption = None,
    png: PngOption = None,
    compare: CompareOption = None,
) -> int:
    """Time questions about pictures through the library: what callers wait for, with short and with long answers.

    Every picture is another one; answers end by surprise at 3 and at about 110 tokens, whatever they say.
    """
    if compare is not None:
        alone(context, "compare")
        return cost.compare(*compare, json=json)
    benchmark = Query(
        model,
        device,
        tuple(concurrency) if concurrency else None,
        tuple(depth or (1, 2)),
        sampler.value,
        waves,
        seconds,
        graphs is Switch.ON,
    )
    measured = chosen(benchmark, replace(benchmark, plain=True), against_torch)
    return run_benchmark(measured, json=json, out=out, png=png)


@app.command("serve", epilog=epilog("bench serve"))
def serve(
    context: typer.Context,
    model: BenchModelOption = None,
    device: DeviceOption = "auto",
    concurrency: Annotated[
        list[int] | None,
        typer.Option("--concurrency", min=1, callback=distinct, help=CLIENTS_HELP),
    ] = None,
    streams: Annotated[
        int | None, typer.Option("--streams", min=1, help="Streams at once. Not given: 4, on a GPU 64.")
    ] = None,
    waves: Annotated[int, typer.Option("--waves", min=1, help="Slices of each row, if time allows.")] = 2,
    seconds: SecondsOption = SERVE_SECONDS,
    json: ReportJsonOption = False,
    out: OutOption = None,
    png: PngOption = None,
    compare: CompareOption = None,
) -> int:
    """Time questions over HTTP to a real server, beside the same engine asked in this process.

    Every picture is another one; answers are as long as they may be. Also: what a decode step takes while many streams
    are sent. Ends with 1 if a row could not be measured, or the server did not end as it should.
    """
    if compare is not None:
        alone(context, "compare")
        return cost.compare(*compare, json=json)
    benchmark = Serve(model, device, tuple(concurrency) if concurrency else None, streams, waves, seconds)
    return run_benchmark(benchmark, json=json, out=out, png=png)


@app.command("prefill", epilog=epilog("bench prefill"))
def prefill(
    context: typer.Context,
    model: BenchModelOption = None,
    device: DeviceOption = "auto",
    text: Annotated[
        list[int] | None,
        typer.Option("--text", min=1, callback=distinct, help="Tokens behind a picture. Not given: 16, 128 and 512."),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option("--batch", min=1, callback=distinct, help="Prompts of a step. Not given: 1, 4 and 8."),
    ] = None,
    seconds: SecondsOption = PREFILL_SECONDS,
    against_torch: AgainstTorchOption = False,
    json: ReportJsonOption = False,
    out: OutOption = None,
    png: PngOption = None,
    compare: CompareOption = None,
) -> int:
    """Time prefills: a picture's block and text behind it, one or more prompts in a step."""
    if compare is not None:
        alone(context, "compare")
        return cost.compare(*compare, json=json)
    usual = Prefill()
    texts, batches = tuple(text or usual.texts), tuple(batch or usual.batches)
    benchmark = Prefill(model, device, texts, batches, seconds)
    measured = chosen(benchmark, replace(benchmark, plain=True), against_torch)
    return run_benchmark(measured, json=json, out=out, png=png)


@app.command("vision", epilog=epilog("bench vision"))
def vision(
    context: typer.Context,
    model: BenchModelOption = None,
    device: DeviceOption = "auto",
    crops: Annotated[
        list[int] | None,
        typer.Option("--crops", min=1, callback=distinct, help="Crops of a picture. Not given: 1, 2, 5, 9 and 13."),
    ] = None,
    seconds: SecondsOption = VISION_SECONDS,
    against_torch: AgainstTorchOption = False,
    json: ReportJsonOption = False,
    out: OutOption = None,
    png: PngOption = None,
    compare: CompareOption = None,
) -> int:
    """Time the encoding of pictures of one or more crops."""
    if compare is not None:
        alone(context, "compare")
        return cost.compare(*compare, json=json)
    counts = tuple(crops or Vision().crops)
    benchmark = Vision(model, device, counts, seconds)
    measured = chosen(benchmark, replace(benchmark, plain=True), against_torch)
    return run_benchmark(measured, json=json, out=out, png=png)


@app.command("gaps", epilog=epilog("bench gaps"))
def gaps(
    context: typer.Context,
    model: BenchModelOption = None,
    device: DeviceOption = "auto",
    streams: Annotated[
        int | None, typer.Option("--streams", min=1, help="Answers that run all the time. Not given: 4, on a GPU 32.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0, help="New pictures a second. Not given: 1, on a GPU 10.")
    ] = None,
    max_step_ms: Annotated[
        float, typer.Option("--max-step-ms", min=LEAST_STEP_MS, help="What prompts and pictures are cut to.")
    ] = GAPS_STEP_MS,
    seconds: SecondsOption = GAPS_SECONDS,
    json: ReportJsonOption = False,
    out: OutOption = None,
    png: PngOption = None,
    compare: CompareOption = None,
) -> int:
    """Time the gaps between tokens of running answers while new pictures come in: cut, whole, and without pictures."""
    if compare is not None:
        alone(context, "compare")
        return cost.compare(*compare, json=json)
    return run_benchmark(Gaps(model, device, streams, rate, max_step_ms, seconds=seconds), json=json, out=out, png=png)


@app.command("rules", epilog=epilog("bench rules"))
def rules(
    context: typer.Context,
    model: BenchModelOption = None,
    device: DeviceOption = "auto",
    streams: Annotated[
        int | None, typer.Option("--streams", min=1, help="Requests at once. Not given: 4, on a GPU 32.")
    ] = None,
    turns: Annotated[
        int, typer.Option("--turns", min=1, help="How often each row is measured, if time allows.")
    ] = TURNS,
    host: Annotated[
        bool, typer.Option("--host", help="Also rows whose masks are built on the host, and next to a slow one.")
    ] = False,
    seconds: SecondsOption = RULES_SECONDS,
    json: ReportJsonOption = False,
    out: OutOption = None,
    png: PngOption = None,
    compare: CompareOption = None,
) -> int:
    """Time steps of many streams of which none, some or all follow a rule: a list of detections as JSON."""
    if compare is not None:
        alone(context, "compare")
        return cost.compare(*compare, json=json)
    return run_benchmark(RulesBenchmark(model, device, streams, turns, seconds, host), json=json, out=out, png=png)


def measure(
    model: str, depths: Sequence[int], *, device: str = "auto", dtype: DTypeChoice = DTypeChoice.AUTO
) -> Report:
    """Run the mix, with a spinner."""
    with spinner(f"running the mix at depth {' and '.join(map(str, depths))}"):
        from gapless.bench.run import run_mix

        return run_mix(model, depths, device=device, dtype=dtype.for_load())


def finish_report(report: Report, *, quiet: bool) -> int:
    """Print the report for people, unless `quiet`. Returns the exit code: 1 if depths gave different answers."""
    if not quiet:
        _show_report(report)
    if not report.answers_equal:
        complain("the answers differ between depths, which is a bug; please report it with this machine's description")
        return 1
    return 0


def _show_report(report: Report) -> None:
    columns = ("depth", "steps", "tokens", "wall s", "step ms", "idle %", "tokens/s")
    rows = [
        (
            run.depth,
            run.steps,
            run.tokens,
            f"{run.wall_s:.2f}",
            f"{run.step_ms:.2f}",
            f"{100 * run.idle_share:.1f}",
            f"{run.tokens_per_s:.0f}",
        )
        for run in report.runs
    ]
    table(columns, rows, title=f"The fixed mix: {len(MIX)} requests over {len(PICTURES)} pictures, all at once")
    print(f"answers equal at every depth: {'yes' if report.answers_equal else 'NO'}")
    print(f"machine: {report.machine}")
    print(NO_PROMISE)
