"""/metrics: what the server and its engine have done, for Prometheus.

In: a `Snapshot` of the engine, and what the door has counted of HTTP requests. Out: text in Prometheus' format. The
endings of names are those of vLLM where it has the metric, with the prefix `gapless:`. Invariants: a scrape changes
nothing, runs beside the event loop, and waits at most a moment for an engine that is at a long step; a counter never
goes back, whatever it is fed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import Response

from gapless.api.rules import RuleCounts
from gapless.images.cache import PictureCounts
from gapless.observe.accounting import Snapshot
from gapless.observe.answers import Spread
from gapless.observe.meter import Part
from gapless.serve.engine import Engine
from gapless.serve.errors import DoorError, type_of
from gapless.serve.limits import Gate
from gapless.serve.log import BackgroundLog
from gapless.serve.schema import Responses, errors

METRICS = "/metrics"
OTHER = "other"
"""The route of a request for which there is none: paths are the clients' to choose, and would be endless."""
SPREADS = {
    "queue": ("request_queue_time_seconds", "waiting for a row"),
    "prefill": ("request_prefill_time_seconds", "from a row to the first token"),
    "first_token": ("time_to_first_token_seconds", "from submission to the first token"),
    "decode": ("request_decode_time_seconds", "from the first token to the end"),
    "whole": ("e2e_request_latency_seconds", "from submission to the end"),
    "token_gap": ("inter_token_latency_seconds", "between two tokens; a request's gaps count as their mean"),
    "prompt": ("request_prompt_tokens", "tokens of a request's picture and prompt"),
    "generated": ("request_generation_tokens", "tokens of a request's answer"),
}


class Visits:
    """HTTP requests that are over, counted. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self.answered: Counter[tuple[str, str, int]] = Counter()
        """By method, route and status."""
        self.rejected: Counter[str] = Counter({type_of(kind("")): 0 for kind in DoorError.__subclasses__()})
        """By the type of the error with which the server itself refused them."""

    def count(self, method: str, route: str | None, status: int, error: BaseException | None) -> None:
        """One request is over. `route`: as the schema has it; `error`: what it was refused with, if it was."""
        self.answered[method, route or OTHER, status] += 1
        if isinstance(error, DoorError):
            self.rejected[type_of(error)] += 1


class MetricsRoutes:
    """The route, and what it looks at. One scrape at a time, in a thread that does nothing else."""

    def __init__(self, engine: Engine, gate: Gate, visits: Visits, log: BackgroundLog | None) -> None:
        self._engine = engine
        self._log = log
        self._gate = gate
        self._visits = visits
        self._thread = ThreadPoolExecutor(1, "gapless-metrics")
        self._sheet = Sheet()

    def router(self) -> APIRouter:
        """It."""
        router = APIRouter()
        told: Responses = {
            200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
            **errors(401, 405, 408, 431, 500),
        }
        router.add_api_route(
            METRICS, self.metrics, methods=["GET"], response_class=Response, response_model=None, responses=told
        )
        return router

    async def metrics(self) -> Response:
        """All metrics, for Prometheus."""
        door = self._door()  # here, as visits are counted on the event loop
        text = await asyncio.get_running_loop().run_in_executor(self._thread, self._text, door)
        return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)

    def _door(self) -> list[Metric]:
        alive = self._engine.ready and self._engine.death() is None
        requests = CounterMetricFamily(
            "gapless:http_requests", "HTTP requests that are over.", labels=["method", "route", "status"]
        )
        for (method, route, status), count in self._visits.answered.items():
            requests.add_metric([method, route, str(status)], count)
        refused = CounterMetricFamily(
            "gapless:rejected_requests", "Requests that the server itself refused.", labels=["reason"]
        )
        for reason, count in self._visits.rejected.items():
            refused.add_metric([reason], count)
        lost = 0 if self._log is None else self._log.lost
        return [
            requests,
            refused,
            CounterMetricFamily("gapless:log_lines_lost", "Lines of the log that were not written.", value=lost),
            GaugeMetricFamily("gapless:http_requests_held", "Places taken now.", value=self._gate.held),
            GaugeMetricFamily("gapless:http_places", "Places there are.", value=self._gate.places),
            GaugeMetricFamily("gapless:engine_up", "1 while the engine takes requests, else 0.", value=float(alive)),
        ]

    def _text(self, door: list[Metric]) -> bytes:
        told, pictures, rules = self._engine.snapshot(), self._engine.pictures(), self._engine.rules()
        lines = [*door, *(() if told is None else self._sheet.families(*told))]
        lines += () if pictures is None else self._sheet.pictures(*pictures)
        lines += () if rules is None else self._sheet.rules(*rules)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Lines(lines))
        ProcessCollector(registry=registry)
        return generate_latest(registry)


class _Lines:
    """What `prometheus_client` asks of a collector."""

    def __init__(self, lines: list[Metric]) -> None:
        self._lines = lines

    def collect(self) -> list[Metric]:
        """All of them."""
        return self._lines


class Sheet:
    """Snapshots of one engine as metrics. Remembers what it has shown, so that no counter goes back."""

    def __init__(self) -> None:
        self._shown: dict[tuple[str, str], float] = {}

    def families(self, snapshot: Snapshot, model: str) -> Iterator[Metric]:
        """All metrics of an engine, labelled with the model's name."""
        held = snapshot.standing
        usage = held.pages_used / held.pages if held.pages else 0.0
        for name, value, words in (
            ("num_requests_running", held.running, "Requests that run."),
            ("num_requests_waiting", snapshot.waiting, "Requests that wait for a row."),
            ("kv_cache_usage_perc", usage, "Part of the KV cache's pages that is used, 0 to 1."),
            ("kv_pages", held.pages, "Pages of the KV cache."),
            ("kv_pages_used", held.pages_used, "Pages of the KV cache that are used."),
            ("kv_pages_cached", held.pages_cached, "Free pages that hold what later requests may begin with."),
            ("pictures_on_host", held.host_pictures, "Pictures whose vision is kept in host memory."),
            ("pictures_on_host_bytes", held.host_bytes, "What they take."),
            ("steps_in_flight", held.steps_in_flight, "Steps in flight."),
            ("adapters_resident", held.adapters, "Adapters on the device."),
            ("longest_step_seconds", snapshot.accounting.longest_step_ms / 1e3, "Device time of the longest step."),
        ):
            yield _gauge(name, words, value, model)
        yield from self._counters(snapshot, model)
        yield from self._labelled_counters(snapshot, model)
        for key, (name, words) in SPREADS.items():
            yield _histogram(name, f"Spread of requests: {words}.", snapshot.endings.spreads[key], model)

    def pictures(self, counts: PictureCounts, model: str) -> Iterator[Metric]:
        """Metrics of the pictures that were prepared, and of those that are kept."""
        for name, value, words in (
            ("pictures_kept", counts.held, "Decoded pictures that are kept."),
            ("pictures_kept_bytes", counts.held_bytes, "What they take."),
        ):
            yield _gauge(name, words, value, model)
        for name, value, words in (
            ("pictures_prepared", counts.asked, "Pictures that came, those that were refused too."),
            ("pictures_decoded", counts.decoded, "Of these, those that had to be decoded."),
            ("pictures_cut", counts.cut, "Of these, those whose pixels were new."),
            ("picture_evictions", counts.evicted, "Decoded pictures that made room for others."),
        ):
            yield self._counter(name, words, value, model)

    def rules(self, counts: RuleCounts, model: str) -> Iterator[Metric]:
        """Metrics of the rules for answers, and of the tables that are kept."""
        for name, value, words in (
            ("rule_tables_kept", counts.kept, "Tables of rules that are kept."),
            ("rule_tables_kept_bytes", counts.kept_bytes, "What they take."),
        ):
            yield _gauge(name, words, value, model)
        for name, count, words in (
            ("rules", float(counts.asked), "Requests with a rule for their answer."),
            ("rules_compiled", counts.compiled, "Rules that were compiled; the others were known."),
            ("rules_refused", counts.refused, "Requests whose rule was wrong, too large, or one too many."),
            ("rule_compile_seconds", counts.compile_ms / 1e3, "Seconds that tables took to compile."),
        ):
            yield self._counter(name, words, count, model)

    def _counters(self, snapshot: Snapshot, model: str) -> Iterator[Metric]:
        accounting, counted = snapshot.accounting, snapshot.accounting.counters
        for name, value, words in (
            ("prompt_tokens", counted.prompt_tokens, "Tokens of pictures and prompts, cached ones too."),
            ("generation_tokens", counted.tokens, "Tokens that were generated."),
            ("num_preemptions", counted.preemptions, "Requests that gave up their row for a while."),
            ("recomputed_tokens", counted.recomputed_tokens, "Tokens that such requests had to compute again."),
            ("bubble_seconds", accounting.idle_ms / 1e3, "Seconds the device stood idle while there was work."),
            ("zombie_rows", counted.zombies, "Rides of rows after their last token."),
            ("pictures", counted.pictures, "Requests with a picture."),
            ("picture_hits", counted.shared_pictures, "Of these, those whose picture's block was there already."),
            ("prefix_cache_queries", counted.prompt_tokens, "Tokens that were looked up in the prefix cache."),
            ("prefix_cache_hits", counted.cached_tokens, "Of these, those that were there already."),
            ("prefix_evictions", counted.prefix_evictions, "Entries of the prefix cache that made room."),
            ("host_picture_hits", counted.host_hits, "Pictures brought from host memory instead of being encoded."),
            ("host_picture_evictions", counted.host_evictions, "Pictures in host memory that made room for others."),
            ("prompt_parts", counted.prompt_parts, "Parts of prompts that were cut, the last of each left out."),
            ("long_steps", counted.long_steps, "Steps that could not be cut to max_step_ms."),
            ("prefix_copies", counted.prefix_copies, "Partly filled pages of picture blocks that were copied."),
        ):
            yield self._counter(name, words, value, model)

    def _labelled_counters(self, snapshot: Snapshot, model: str) -> Iterator[Metric]:
        told = snapshot.accounting
        spent = {part: told.host[part.label] / 1e3 for part in Part}
        waits = {part.label: seconds for part, seconds in spent.items() if part.waits}
        works = {part.label: seconds for part, seconds in spent.items() if not part.waits}
        busy = {kind: ms / 1e3 for kind, ms in told.busy.items()}
        found = {"hit": told.counters.prefix_hits, "miss": told.counters.prefix_misses}
        table: tuple[tuple[str, str, Mapping[str, float], str], ...] = (
            ("request_success", "finished_reason", snapshot.endings.ended, "Requests that ended, however they did."),
            ("steps", "kind", told.steps, "Steps that landed."),
            ("prefix_lookups", "result", found, "Prefills, by whether they found a beginning of theirs."),
            ("device_busy_seconds", "kind", busy, "Seconds the device spent in steps."),
            ("host_wait_seconds", "reason", waits, "Seconds the loop's thread stood still."),
            ("host_work_seconds", "part", works, "Seconds the loop's thread worked."),
        )
        for name, label, values, words in table:
            counter = CounterMetricFamily(f"gapless:{name}", words, labels=["model_name", label])
            for value, count in values.items():
                counter.add_metric([model, value], self._forward(name, value, count))
            yield counter

    def _counter(self, name: str, words: str, value: float, model: str) -> Metric:
        counter = CounterMetricFamily(f"gapless:{name}", words, labels=["model_name"])
        counter.add_metric([model], self._forward(name, "", value))
        return counter

    def _forward(self, name: str, label: str, value: float) -> float:
        shown = self._shown.get((name, label), 0.0)
        if value > shown:  # not for NaN either
            self._shown[name, label] = shown = value
        return shown


def _gauge(name: str, words: str, value: float, model: str) -> Metric:
    gauge = GaugeMetricFamily(f"gapless:{name}", words, labels=["model_name"])
    gauge.add_metric([model], value)
    return gauge


def _histogram(name: str, words: str, spread: Spread, model: str) -> Metric:
    bounds = [*map(str, spread.bounds), "+Inf"]
    family = HistogramMetricFamily(f"gapless:{name}", words, labels=["model_name"])
    family.add_metric([model], list(zip(bounds, accumulate(spread.counts), strict=True)), spread.total)
    return family
