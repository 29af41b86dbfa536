"""How often a key may ask: a bucket each, on a clock that the test moves."""

import pytest
from tests.serve.conftest import LIMITS, SMALL, Site

from gapless.serve.app import make_app
from gapless.serve.errors import RateLimited
from gapless.serve.limits import RateLimit

ASK = {"question": "Who?", "settings": SMALL}


class HandClock:
    """Stands still until it is moved."""

    def __init__(self):
        self.time = 100.0

    def now(self):
        return self.time


@pytest.fixture
def clock():
    return HandClock()


def taken(limit, key, tries):
    """How many of so many requests in a row are taken."""
    count = 0
    for _ in range(tries):
        try:
            limit.take(key)
        except RateLimited:
            continue
        count += 1
    return count


def test_a_burst_and_then_the_rate(clock):
    limit = RateLimit(2.0, 5, clock)
    assert taken(limit, "a", 9) == 5
    clock.time += 0.4
    assert taken(limit, "a", 1) == 0
    clock.time += 0.2
    assert taken(limit, "a", 2) == 1
    clock.time += 3600
    assert taken(limit, "a", 99) == 5, "no more is saved up than a burst"
    served = 0
    for _ in range(200):  # 20 seconds of a client that does not wait
        clock.time += 0.1
        served += taken(limit, "a", 3)
    assert served in (39, 40), "refused requests cost nothing"


def test_each_key_has_its_own(clock):
    limit = RateLimit(1.0, 2, clock)
    assert (taken(limit, "a", 5), taken(limit, "b", 5)) == (2, 2)
    clock.time += 1
    assert (taken(limit, "b", 5), taken(limit, "a", 5)) == (1, 1)


@pytest.mark.parametrize(("rate", "waits"), [(10.0, "1"), (0.5, "2"), (0.1, "10"), (1 / 90, "90")])
def test_whoever_waits_as_long_as_is_said_is_taken(clock, rate, waits):
    limit = RateLimit(rate, 1, clock)
    limit.take("a")
    with pytest.raises(RateLimited) as told:
        limit.take("a")
    assert told.value.headers["Retry-After"] == waits
    clock.time += int(waits) + 1e-6
    limit.take("a")


def test_what_a_bucket_holds_already_is_not_waited_for(clock):
    limit = RateLimit(0.1, 1, clock)
    limit.take("a")
    clock.time += 9
    with pytest.raises(RateLimited) as told:
        limit.take("a")
    assert told.value.headers["Retry-After"] == "1"


def limited(vlm, clock, keys):
    site = Site(vlm, keys=keys)
    site.app = make_app(site.engine, site.gate, LIMITS, keys, RateLimit(0.25, 2, clock))
    return site


def test_over_http_it_is_a_429_of_that_key_alone(vlm, clock):
    site = limited(vlm, clock, ("one", "two"))

    def ask(key, path="/v1/query", method="POST"):
        return site.ask(method, path, json=ASK, headers={"X-Moondream-Auth": key})

    assert [ask("one").status_code for _ in range(3)] == [200, 200, 429]
    refused = ask("one")
    assert refused.json()["error"]["type"] == "rate_limited" and refused.headers["retry-after"] == "4"
    assert "one" not in refused.json()["error"]["message"].split(), "a key is not shown"
    assert ask("two").status_code == 200 and ask("three").status_code == 401
    assert ask("one", "/v1/models", "GET").status_code == 200, "looking is not asking"
    told = ask("two", "/metrics", "GET").text
    assert 'gapless:rejected_requests_total{reason="rate_limited"} 2.0' in told
    clock.time += 4
    assert ask("one").status_code == 200 and site.gate.held == 0


def test_without_keys_it_is_for_all(vlm, clock):
    site = limited(vlm, clock, ())
    said = [site.post("/v1/query", ASK) for _ in range(3)]
    assert [one.status_code for one in said] == [200, 200, 429]
    assert "this server" in said[-1].json()["error"]["message"]
