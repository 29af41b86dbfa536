"""What chat completions make of fields that adjust logits: each is honoured, or refused by name."""

import pytest
from tests.serve.conftest import LIMITS
from tests.serve.test_openai_requests import FEW, answer, refused
from tests.serve.test_openai_routes import CHAT, PICTURE, asks

from gapless.serve.openai_body import ChatBody, understood


@pytest.fixture(scope="module")
def usual(site):
    return answer(site)


@pytest.mark.parametrize("bias", [{"-1": 1}, {"51200": -100}, {"51201": 1}, {str(2**40): 1e300}, {"x": True}], ids=repr)
def test_s_api_04_logit_bias_is_refused(site, usual, bias):
    """S-API-04: never an index of the sampler."""
    refused(site, usual, {"logit_bias": bias}, "logit_bias")


def test_s_api_04_ten_thousand_of_them_and_none(site, usual):
    refused(site, usual, {"logit_bias": {str(n): 1 for n in range(10_000)}}, "logit_bias")
    assert site.post(CHAT, {"messages": asks("Why?"), "logit_bias": {}} | FEW).status_code == 200


@pytest.mark.parametrize(
    ("name", "value", "neutral", "wrong"),
    [
        ("logit_bias", {"7": 5, "9": -100}, {}, {"7": 101}),
        ("frequency_penalty", 0.5, 0, 2.5),
        ("presence_penalty", -1, 0.0, "1"),
        ("repetition_penalty", 1.5, 1.0, 0),
        ("min_tokens", 4, 0, 5),
        ("banned", [7, 8], [], [10**6]),
    ],
)
def test_fields_that_adjust_logits_are_honoured(site, usual, name, value, neutral, wrong):
    wanted = understood(ChatBody.model_validate({"messages": asks("Why?"), name: value}), LIMITS)
    assert wanted.settings[name] == value
    assert site.post(CHAT, {"messages": asks("Why?"), name: value} | FEW).status_code == 200
    refused(site, usual, {name: wrong}, name)
    refused(site, usual, {name: value, "skill": "detect"}, name, messages=asks("cat", PICTURE))
    for nothing in (neutral, None):
        assert site.post(CHAT, {"messages": asks("Why?"), name: nothing} | FEW).json()["choices"][0]["message"] == usual
