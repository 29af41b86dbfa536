"""Adjusted answers of a running engine, in a thread and in a process of its own."""

from __future__ import annotations

import pytest
from tests.api.asking import told

import gapless

HOT = {"temperature": 3.0, "top_p": 1.0, "seed": 3, "max_tokens": 30, "logprobs": 0}


def test_a_banned_text_is_not_said_and_a_favoured_one_alone(endless, pictures):
    free = endless.caption(pictures[0], settings=HOT)
    said = [token["token"] for token in free["logprobs"]]
    tokenizer = endless.desk.context.tokenizer
    single = sorted({token for token in said if len(tokenizer.encode(token)) == 1 and "\ufffd" not in token})
    assert len(single) >= 5
    found = endless.caption(pictures[0], settings=HOT | {"banned": single})
    assert not {token["token"] for token in found["logprobs"]} & set(single)
    only = single[0]
    forced = {"logit_bias": {str(tokenizer.encode(only)[0]): 100}, "temperature": 0}
    favoured = endless.caption(pictures[0], settings=HOT | forced)
    assert favoured["caption"] == (only * 30).strip() or {t["token"] for t in favoured["logprobs"]} == {only}
    once = endless.caption(pictures[0], settings=HOT | forced | {"frequency_penalty": 2.0, "max_tokens": 100})
    assert 49 <= [t["token"] for t in once["logprobs"]].count(only) < 80, "each time costs 2 of 100"


def test_an_answer_has_its_fewest_tokens(vlm, pictures):
    settings = {"temperature": 0, "max_tokens": 60}
    short = vlm.query(pictures[0], "Why?", settings=settings)
    assert short["finish_reason"] == "stop" or short["metrics"]["output_tokens"] == 60
    ended = short["metrics"]["output_tokens"]
    long = vlm.query(pictures[0], "Why?", settings=settings | {"min_tokens": min(60, ended + 10)})
    assert long["metrics"]["output_tokens"] >= min(60, ended + 10)
    assert long["answer"].startswith(short["answer"]) or ended == 60


@pytest.mark.slow
def test_a_process_of_its_own_adjusts_alike(micro_folder, pictures):
    settings = HOT | {"logit_bias": {11: 4, "12": -3}, "banned": [15, 16], "min_tokens": 12}
    settings |= {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.25}
    answers = []
    for process in (False, True):
        with gapless.load(micro_folder, max_rows=2, process=process) as one:
            answers.append(told(one.query(pictures[0], "Why?", reasoning=True, settings=settings)))
    assert answers[0] == answers[1]
