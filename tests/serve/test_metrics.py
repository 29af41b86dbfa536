"""/metrics against what was asked: every request is counted once, however it ends, and gauges follow at once."""

import asyncio
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.api.asking import idle
from tests.api.engine_room import until
from tests.serve.conftest import SMALL, Site, png, url
from tests.serve.test_door import called, endless  # noqa: F401 - a fixture

import gapless
from gapless.observe.accounting import Standing
from gapless.observe.answers import Ending
from gapless.observe.meter import Part
from gapless.serve.errors import DoorError, type_of
from gapless.serve.metrics import Sheet

ASK = {"question": "Who?", "settings": SMALL}
PAGE = Path(__file__).resolve().parents[2] / "docs" / "server.md"
VLLM = {
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "num_preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "request_success_total",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
}


def scrape(site, **options):
    said = site.ask("GET", "/metrics", **options)
    assert said.status_code == 200 and said.headers["content-type"].startswith("text/plain; version=0.0.4")
    return read(said.text)


def read(text):
    """Samples by name and labels but the model's, which must be on everything of the engine."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "model_name"}
            assert sample.value >= 0 and math.isfinite(sample.value), sample
            found[sample.name.removeprefix("gapless:"), *labels.values()] = sample.value
    return found


def since(site, before):
    now = scrape(site)
    return {key: value - before.get(key, 0.0) for key, value in now.items()}


def test_routes_are_called_as_the_document_calls_them(alone):
    for path in ("/v1/models/micro", "/v1/models/a/b", "/openapi.json", "/nothing", "/metrics"):
        alone.ask("GET", path)
    found = scrape(alone)
    routes = {key[2]: value for key, value in found.items() if key[0] == "http_requests_total"}
    assert routes == {"/v1/models/{name}": 1, "/openapi.json": 1, "other": 1, "/metrics": 1}


def ended(found):
    return {ending.value: found["request_success_total", ending.value] for ending in Ending}


@pytest.fixture
def alone(micro_folder):
    with gapless.load(micro_folder, page_size=16, max_rows=4) as vlm:
        yield Site(vlm)


def test_the_names_are_vllms_and_every_one_is_on_the_page(alone):
    alone.post("/v1/query", ASK)
    text = alone.ask("GET", "/metrics").text
    named = set(re.findall(r"^# HELP (?:gapless:)?(\S+)", text, flags=re.M))
    assert named >= VLLM, VLLM - named
    told = set(re.findall(r"^\| `gapless:(\w+)(?:\{\w+(?:, \w+)*\})?`", PAGE.read_text(), flags=re.M))
    ours = {name for name in named if not name.startswith("process_")}
    assert told == ours, told ^ ours
    if sys.platform == "linux":
        assert {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"} <= named
    assert all("_created" not in line and "python_" not in line for line in text.splitlines())
    assert re.search(r'^gapless:num_requests_running\{model_name="micro"\} 0\.0$', text, flags=re.M)


def test_what_an_answer_says_of_itself_is_what_is_counted(alone):
    picture = {"image_url": url(png(3)), **ASK}
    answers = [alone.post("/v1/query", body).json() for body in (ASK, picture, picture)]
    found = scrape(alone)
    told = [answer["metrics"] for answer in answers]
    inputs, outputs = (sum(one[name] for one in told) for name in ("input_tokens", "output_tokens"))
    reasons = [answer["finish_reason"] for answer in answers]
    assert found["prompt_tokens_total",] == inputs and found["generation_tokens_total",] == outputs
    assert ended(found) == {e.value: reasons.count(e.value) for e in Ending}
    assert found["request_prompt_tokens_sum",] == inputs and found["request_generation_tokens_sum",] == outputs
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_prefill_time"):
        assert found[f"{name}_seconds_count",] == 3
    assert found["time_to_first_token_seconds_sum",] == pytest.approx(sum(one["ttft_ms"] for one in told) / 1e3)
    assert found["inter_token_latency_seconds_count",] == outputs - 3
    assert found["inter_token_latency_seconds_sum",] == pytest.approx(sum(one["decode_time_ms"] for one in told) / 1e3)
    assert found["pictures_total",] == 2 and found["picture_hits_total",] == 1
    assert [found[f"pictures_{what}_total",] for what in ("prepared", "decoded", "cut")] == [2, 1, 1]
    assert found["pictures_kept",] == 1 and found["pictures_kept_bytes",] > 0 == found["picture_evictions_total",]
    cached = [one["cached_tokens"] for one in told]
    assert cached[:2] == [0, 0] and 0 < cached[2] < told[2]["input_tokens"], "the same question about the same picture"
    assert found["prefix_cache_hits_total",] == cached[2] and found["prefix_cache_queries_total",] == inputs
    assert (found["prefix_lookups_total", "hit"], found["prefix_lookups_total", "miss"]) == (1, 2)
    assert found["prefix_copies_total",] in (1, 2) and found["prefix_evictions_total",] == 0
    assert found["kv_pages_cached",] > 0
    assert found["http_requests_total", "POST", "/v1/query", "200"] == 3
    accounting = alone.vlm.accounting()
    assert found["steps_total", "decode"] == accounting.steps["decode"] > 0
    assert found["bubble_seconds_total",] == pytest.approx(max(0, accounting.idle_ms / 1e3))
    assert found["device_busy_seconds_total", "prefill"] == pytest.approx(accounting.busy["prefill"] / 1e3)
    assert found["host_work_seconds_total", "commit"] > 0 and found["host_wait_seconds_total", "mail"] > 0
    assert found["kv_pages",] == alone.vlm.desk.runner._engine.ledgers.pages.total
    assert found["engine_up",] == 1


def test_requests_that_share_a_picture_hit(endless):  # noqa: F811
    site, body = Site(endless), {"image_url": url(png(4)), "question": "Go on?", "settings": {"max_tokens": 5000}}

    async def both():
        leave = asyncio.Event()
        asking = [asyncio.create_task(called(site, body, leave)) for _ in range(3)]
        while endless.accounting().counters.pictures < 3:
            await asyncio.sleep(0.005)
        leave.set()
        await asyncio.gather(*asking)

    asyncio.run(both())
    idle(endless)
    assert scrape(site)["picture_hits_total",] == 2


def test_s_met_01_and_02_all_leave_at_once(endless):  # noqa: F811
    """Aborts are counted as such, and the gauges are back at 0 although no step and no request follows."""
    site, body = Site(endless), {"image_url": url(png(4)), "question": "Go on?", "settings": {"max_tokens": 5000}}

    async def crowd():
        leave = asyncio.Event()
        asking = [asyncio.create_task(called(site, body, leave)) for _ in range(7)]
        while endless.accounting().counters.pictures < 4 or len(endless.desk.runner._open) < 7:
            await asyncio.sleep(0.005)
        async with site.client() as client:
            busy = read((await client.get("/metrics")).text)
        leave.set()
        await asyncio.gather(*asking)
        return busy

    busy = asyncio.run(crowd())
    assert busy["num_requests_running",] == 4 and busy["num_requests_waiting",] == 3
    assert busy["kv_cache_usage_perc",] > 0 and busy["http_requests_held",] == 7
    assert busy["kv_cache_usage_perc",] == busy["kv_pages_used",] / busy["kv_pages",]
    idle(endless)
    gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "kv_pages_used", "steps_in_flight")
    until(lambda: not any(scrape(site)[name,] for name in (*gauges, "http_requests_held")), "gauges at 0")
    found = scrape(site)
    assert ended(found) == {"stop": 0, "length": 0, "abort": 7, "timeout": 0, "error": 0}
    assert found["time_to_first_token_seconds_count",] == 4 and found["e2e_request_latency_seconds_count",] == 7
    assert found["http_requests_total", "POST", "/v1/query", "499"] == 7


def test_deadlines_failures_and_refusals_are_counted_once(alone, monkeypatch):
    before = scrape(alone)
    late = ASK | {"settings": {"timeout": 1e-6}}
    assert alone.post("/v1/query", late).status_code == 504
    assert alone.post("/v1/query", {"question": 1}).status_code == 400
    assert alone.ask("GET", "/nothing").status_code == alone.ask("GET", "/nothing/else").status_code == 404
    assert alone.ask("PURGE", "/v1/query").status_code == 405
    assert alone.ask("POST", "/v1/query", content=b"{}").status_code == 415
    alone.gate.places = 0
    assert alone.post("/v1/query", ASK).status_code == 429
    found = since(alone, before)
    assert ended(found) == {"stop": 0, "length": 0, "abort": 0, "timeout": 1, "error": 0}
    assert found["http_requests_total", "GET", "other", "404"] == 2
    refused = {key[1]: count for key, count in found.items() if key[0] == "rejected_requests_total" and count}
    assert refused == {"not_found": 2, "method_not_allowed": 1, "not_json": 1, "too_many_requests": 1}
    assert found["http_requests_total", "POST", "/v1/query", "504"] == 1
    assert ("http_requests_total", "other", "/v1/query", "405") in found


def test_a_dead_engine_is_told_and_its_requests_are_errors(micro_folder, monkeypatch):
    vlm = gapless.load(micro_folder)
    site = Site(vlm)
    monkeypatch.setattr(vlm.desk.runner, "_take_cancels", lambda: 1 / 0)
    assert site.post("/v1/query", ASK).status_code == 503
    until(lambda: site.engine.death() is not None, "the engine's death")
    found = scrape(site)
    assert found["engine_up",] == 0 and ended(found)["error"] == 1 and found["num_requests_running",] == 0


def test_before_there_is_a_model(vlm):
    site = Site(None, keys=("secret",))
    assert site.ask("GET", "/metrics").status_code == 401
    found = scrape(site, headers={"Authorization": "Bearer secret"})
    assert found["engine_up",] == 0 and ("num_requests_running",) not in found
    assert found["rejected_requests_total", "unauthorized"] == 1


def test_each_part_stands_under_its_own_name(vlm):
    """Before an engine has said what it holds, nothing is used."""
    told = vlm.desk.runner.snapshot()
    host = {part.label: 1e3 * (1 + part) for part in Part}
    busy = {"prefill": 2e3, "decode": 4e3, "parked": 8e3}
    fed = replace(told, standing=Standing(), accounting=replace(told.accounting, host=host, busy=busy))
    sheet, shown = Sheet(), []
    for snapshot in (fed, replace(fed, accounting=replace(fed.accounting, busy=dict.fromkeys(busy, 3e3)))):
        samples = [sample for family in sheet.families(snapshot, "m") for sample in family.samples]
        shown.append({(one.name.removeprefix("gapless:"), *one.labels.values()): one.value for one in samples})
    parts = {key[0]: {} for key in shown[0]}
    for name, *labels in shown[0]:
        parts[name][tuple(labels[1:])] = shown[0][name, *labels]
    assert parts["host_wait_seconds_total"] == {("device",): 7.0, ("mask",): 8.0, ("mail",): 9.0}
    works = ("plan", "launch", "finalize", "commit", "admit", "deliver")
    assert parts["host_work_seconds_total"] == {(part,): 1.0 + number for number, part in enumerate(works)}
    assert parts["kv_cache_usage_perc"] == {(): 0.0} == parts["kv_pages"]
    later = [shown[1]["device_busy_seconds_total", "m", kind] for kind in busy]
    assert later == [3.0, 4.0, 8.0], "each goes on from its own last value"


def test_the_door_is_counted_from_the_first_moment_on(alone):
    found = scrape(alone)
    assert found["http_places",] == 64 and found["http_requests_held",] == 0
    refused = {key[1]: count for key, count in found.items() if key[0] == "rejected_requests_total"}
    assert refused == {type_of(kind("")): 0.0 for kind in DoorError.__subclasses__()} and len(refused) > 8


def test_s_met_03_no_counter_goes_back_whatever_it_is_fed(vlm):
    """What is negative or no number is not shown, and raises nowhere."""
    sheet = Sheet()
    shown = [sheet._forward("x", "", value) for value in (1.0, 3.0, 2.0, -5.0, math.nan, 4.0)]
    assert shown == [1.0, 3.0, 3.0, 3.0, 3.0, 4.0]
    meter = vlm.desk.runner._engine.meter
    site = Site(vlm)
    before = scrape(site)
    kept, meter.bubble.idle, meter.counters.zombies = meter.bubble.idle, -1.0, -3
    try:
        assert site.post("/v1/query", ASK).status_code == 200
        assert scrape(Site(vlm))["bubble_seconds_total",] == 0
        assert since(site, before)["bubble_seconds_total",] >= 0
    finally:
        meter.bubble.idle, meter.counters.zombies = kept, 0


def test_a_scrape_waits_for_no_engine_at_a_step(vlm, monkeypatch):
    """It runs beside the event loop, one at a time."""
    site = Site(vlm)
    begun, released = [], []
    real = vlm.desk.runner.snapshot

    async def both():
        loop, gate = asyncio.get_running_loop(), asyncio.Event()

        def slow():
            begun.append(1)
            loop.call_soon_threadsafe(gate.set)
            while not released:
                pass
            return real()

        monkeypatch.setattr(vlm.desk.runner, "snapshot", slow)
        async with site.client() as client:
            scrapes = [asyncio.create_task(client.get("/metrics")) for _ in range(3)]
            await gate.wait()
            health = await client.get("/health")
            answer = await client.post("/v1/query", json=ASK)
            count = len(begun)
            released.append(1)
            return health, answer, count, [one.status_code for one in await asyncio.gather(*scrapes)]

    health, answer, count, told = asyncio.run(both())
    assert (health.status_code, answer.status_code, count, told) == (200, 200, 1, [200] * 3)
