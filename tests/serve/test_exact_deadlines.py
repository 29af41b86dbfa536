"""Deadlines that fire at exact steps, and clients that leave at exact turns: application and loop on the fake clock.

Each step takes one simulated second, so it is known beforehand how many tokens a request may say."""

import asyncio
import random
import re

import pytest
from tests.fakes.micro import write_micro
from tests.serve.conftest import png, url
from tests.serve.hash_answers import Oracle
from tests.serve.stepped import Stepped, Visit
from tests.serve.test_load_served import hurry, is_hurried, judge, made

ASK = {"image_url": url(png(1)), "question": "What?"}


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    return Oracle(write_micro(tmp_path_factory.mktemp("models") / "stepped", max_context=256))


@pytest.fixture(autouse=True)
def in_one_thread(monkeypatch):
    """What the application would do in a worker happens at once, so that a scene is a function of its seed."""

    async def at_once(function, *arguments):
        return function(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", at_once)


def asked(timeout, stream, tokens=9):
    settings = {"max_tokens": tokens, "seed": 8, "temperature": 1.0, "timeout": timeout}
    return Visit("query", ASK | {"stream": stream, "settings": settings})


SLOW = pytest.mark.slow
DEPTHS = [pytest.param(1, marks=SLOW), 2, pytest.param(3, marks=SLOW)]


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_deadline_lets_exactly_the_tokens_before_it_through(oracle, depth, caplog):
    """At every half second: told after the first step that ends then or later, with the tokens so far. The log has no
    error for it: nothing of the server went wrong."""
    scene, free = Stepped(oracle, depth), asked(1000, True)
    scene.play([free])
    assert free.reply.status == 200 and free.reply.whole
    total = free.reply.events()[-1]["metrics"]["output_tokens"]
    last = free.times[-1]
    for half in range(1, 2 * int(last) + 3):
        for stream in (False, True):
            visit, began = asked(half / 2, stream), scene.runner.now()
            scene.play([visit])
            assert oracle("query", visit.body)[1] == total
            assert scene.runner.now() - began <= max(half / 2, 1) + depth + 1, "it computed on long after its deadline"
            if half / 2 > last - 1:  # its last token comes with that step or sooner
                assert visit.reply.status == 200 and visit.reply.whole
                continue
            told = visit.reply.events()[-1] if visit.reply.status == 200 else visit.reply.json()
            message = told["error"]["message"]
            found = re.search(r"ran out after (\d+\.\d+) s and (\d+) tokens; allow more time or lower", message)
            after, said = (float(found[1]), int(found[2])) if found else (begun(message), 0)
            assert after - 1 < half / 2 <= after, "not at the step after the deadline"
            assert said == max(0, int(after) - int(last) + total)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def begun(message):
    """How long a request was there that got no token; to lower max_tokens would be no remedy."""
    after = re.search(r"ran out before its first token, (\d+\.\d+) s after", message)
    assert after and message.endswith("; allow more time")
    return float(after[1])


@pytest.mark.parametrize(
    ("depth", "pages"), [(2, 60), *(pytest.param(*p, marks=SLOW) for p in [(1, 60), (1, 400), (2, 400)])]
)
def test_a_crowd_on_the_fake_clock(oracle, depth, pages):
    """Some leave, some have deadlines; whoever does neither hears the whole right answer, at any depth and pool."""
    rng = random.Random(pages)
    scene, visits = Stepped(oracle, depth, rows=6, pages=pages), []
    for number in range(60):
        route, body = made(rng, number)
        visit = Visit(route, body, comes=rng.randrange(120))
        if rng.random() < 0.2:
            visit.leaves = visit.comes + rng.randrange(1, 40)
        elif rng.random() < 0.25:
            hurry(route, body, rng.choice([0.5, 1, 2, 3, 5, 8, 13, 21]))
        visits.append(visit)
    scene.play(visits)
    counts = {True: 0, False: 0}
    for visit in visits:
        if visit.leaves is None:
            right, tokens = scene.oracle(visit.route, visit.body)
            counts[judge(visit.reply, visit.route, visit.body, right, tokens, is_hurried(visit.body))] += 1
    assert counts[True] > 30 and counts[False] > 3
    assert scene.device.referee.tally.most_rows == 5
    assert bool(scene.stage.engine.counters.preemptions) == (pages == 60)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("stream", [pytest.param(False, marks=SLOW), True])
def test_s_con_03_a_client_that_leaves_at_any_turn_frees_its_row_within_depth_and_one_steps(oracle, depth, stream):
    scene = Stepped(oracle, depth)
    for leaves in range(1, 12):
        visit, before = asked(1000, stream, tokens=60), len(scene.device.events)
        visit.comes = scene.runner.turns
        visit.leaves = visit.comes + leaves
        scene.play([visit])
        launches = [event for event in scene.device.events[before:] if event.name == "launch"]
        assert len(launches) <= leaves + depth + 1 < 20, "it computed on for nobody"
