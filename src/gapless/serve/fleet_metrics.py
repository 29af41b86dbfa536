"""What many engines tell Prometheus, as one text: every line with the label of the engine that it is from.

In: each engine's text by its id. Out: one text, each metric once. Invariant: nothing is added up, since sums over
engines that come and go would go back; Prometheus sums by label.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

REPLICA = "replica"
FRONT = "front"


class _Lines:
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """What `prometheus_client` asks of a collector."""
        yield from self._families


def merged(texts: Mapping[str, str], own: Iterable[Metric] = ()) -> bytes:
    """All texts as one. `own`: metrics beside them, which keep their labels."""
    families: dict[str, Metric] = {}
    for replica, text in sorted(texts.items()):
        for family in text_string_to_metric_families(text):
            kept = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            kept.samples += [_labelled(sample, replica) for sample in family.samples]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Lines([*families.values(), *own]))
    return generate_latest(registry)


def _labelled(sample: Sample, replica: str) -> Sample:
    return Sample(sample.name, {**sample.labels, REPLICA: replica}, sample.value)


def front_families(counts: Mapping[str, int], held: int, places: int, engines: int, front: str) -> list[Metric]:
    """What the front itself counts. `counts`: see `Forward`; `engines`: how many told their metrics just now."""
    asked = CounterMetricFamily(
        "gapless:fleet_attempts", "Requests passed to an engine, by what became of it.", labels=["result", FRONT]
    )
    for result, count in counts.items():
        if result != "broken":
            asked.add_metric([result, front], count)
    broken = CounterMetricFamily(
        "gapless:fleet_broken_answers", "Answers whose engine ended in their middle.", labels=[FRONT]
    )
    broken.add_metric([front], counts["broken"])
    gauges = []
    for name, words, value in (
        ("fleet_engines", "Engines that answered this scrape.", engines),
        ("fleet_requests_held", "Places of this front that are taken.", held),
        ("fleet_places", "Places of this front.", places),
    ):
        gauge = GaugeMetricFamily(f"gapless:{name}", words, labels=[FRONT])
        gauge.add_metric([front], value)
        gauges.append(gauge)
    return [asked, broken, *gauges]
