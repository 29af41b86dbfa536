"""`VLM` on a micro model: every method, many callers, many pictures, errors, and nothing left behind."""

import asyncio
import io
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image
from tests.api.asking import REFS, WARM, calls, idle, told
from tests.api.conftest import noise
from tests.api.engine_room import PATIENCE, until

import gapless
from gapless import errors

# -- results ---------------------------------------------------------------------------------------------------------


def test_every_method_returns_the_clients_dict(vlm, pictures):
    results = {name: call() for name, call in calls(vlm, pictures[0], 1).items()}
    keys = {name: set(result) - {"finish_reason", "metrics"} for name, result in results.items()}
    assert keys == {
        "query": {"answer"},
        "refs": {"answer"},
        "reasoning": {"answer", "reasoning"},
        "text": {"answer"},
        "caption": {"caption"},
        "point": {"points"},
        "detect": {"objects"},
        "segment": {"path", "bbox"},
        "gaze": {"gaze"},
    }
    for result in results.values():
        assert result["finish_reason"] in ("stop", "length")
    assert isinstance(results["query"]["answer"], str) and set(results["reasoning"]["reasoning"]) == {
        "text",
        "grounding",
    }


def test_arguments_stand_where_the_client_has_them(vlm, pictures):
    image, cold = pictures[0], {"temperature": 0, "max_tokens": 5}
    assert told(vlm.query(image, "Why?", False, cold, False, REFS)) == told(
        vlm.query(image=image, question="Why?", stream=False, settings=cold, reasoning=False, spatial_refs=REFS)
    )
    assert told(vlm.caption(image, "short", False, cold)) == told(vlm.caption(image, length="short", settings=cold))
    assert told(vlm.detect(image, "dog", cold)) == told(vlm.detect(image, object="dog", settings=cold))
    assert told(vlm.point(image, "dog", cold, REFS)) == told(
        vlm.point(image, object="dog", settings=cold, spatial_refs=REFS)
    )
    assert told(vlm.segment(image, "dog", REFS, False, cold)) == told(
        vlm.segment(image, object="dog", spatial_refs=REFS, stream=False, settings=cold)
    )


@pytest.mark.parametrize("name", ["query", "reasoning", "text", "caption", "segment", "point", "detect"])
def test_the_finish_reason_is_length_where_the_limit_ends_it(endless, pictures, name):
    skill = {"max_tokens": 3, "temperature": 0}
    result = {
        "query": lambda: endless.query(pictures[0], "x", settings=skill),
        "reasoning": lambda: endless.query(pictures[0], "x", settings=skill, reasoning=True),
        "text": lambda: endless.query(question="x", settings=skill),
        "caption": lambda: endless.caption(pictures[0], settings=skill),
        "segment": lambda: endless.segment(pictures[0], "x", settings=skill),
        "point": lambda: endless.point(pictures[0], "x", settings={"max_objects": 2}),
        "detect": lambda: endless.detect(pictures[0], "x", settings={"max_objects": 2}),
    }[name]()
    assert result["finish_reason"] == "length"
    most = {"reasoning": 7, "point": 4, "detect": 6}.get(name, 3)
    least = 4 if name == "reasoning" else most
    assert least <= result["metrics"]["output_tokens"] <= most
    if name in ("point", "detect"):
        assert len(result["points" if name == "point" else "objects"]) == 2


def test_metrics_count_the_picture_and_add_up(vlm, pictures):
    metrics = vlm.query(pictures[0], "abc", settings={"temperature": 0, "max_tokens": 4})["metrics"]
    assert metrics["input_tokens"] == 17 + 3 + 3 + 2  # block, template prefix, letters, doubled suffix
    assert 1 <= metrics["output_tokens"] <= 4
    assert metrics["ttft_ms"] == pytest.approx(metrics["queue_ms"] + metrics["prefill_time_ms"])
    assert metrics["ttft_ms"] > 0 and metrics["decode_time_ms"] >= 0 and metrics["preemptions"] == 0


def test_a_mask_has_the_upright_pictures_size(vlm, pictures):
    mask = vlm.segment(pictures[2], "dog", mask=True)["mask"]
    assert mask.shape == pictures[2].shape[:2] and mask.dtype == np.bool_


def test_boxes_and_points_lie_in_the_picture(endless, pictures):
    settings = {"max_objects": 30}
    for box in endless.detect(pictures[0], "x", settings=settings)["objects"]:
        assert 0 <= box["x_min"] <= box["x_max"] <= 1 and 0 <= box["y_min"] <= box["y_max"] <= 1
    assert all(0 <= v <= 1 for p in endless.point(pictures[0], "x", settings=settings)["points"] for v in p.values())


def test_a_seed_repeats_and_no_seed_does_not(endless, pictures):
    warm = WARM | {"temperature": 3.0}
    once, again = (endless.caption(pictures[0], settings=warm | {"seed": 5})["caption"] for _ in range(2))
    assert once == again
    assert len({endless.caption(pictures[0], settings=warm)["caption"] for _ in range(3)}) == 3


# -- pictures --------------------------------------------------------------------------------------------------------


def test_every_form_of_a_picture_gives_the_same_answer(vlm, tmp_path):
    rgb = noise(7)
    data = io.BytesIO()
    Image.fromarray(rgb).save(data, "PNG")
    (tmp_path / "p.png").write_bytes(data.getvalue())
    forms = [rgb, Image.fromarray(rgb), data.getvalue(), tmp_path / "p.png", str(tmp_path / "p.png")]
    answers = [told(vlm.caption(form, settings=WARM | {"seed": 1})) for form in [*forms, vlm.encode_image(rgb)]]
    assert all(answer == answers[0] for answer in answers)


def test_an_encoded_image_is_not_decoded_again(vlm, monkeypatch):
    encoded = vlm.encode_image(noise(8))
    monkeypatch.setattr(vlm.desk, "_pictures", None)
    assert vlm.encode_image(encoded) is encoded
    assert "caption" in vlm.caption(encoded, settings={"max_tokens": 3})
    assert "130x90" in repr(encoded)


def test_an_image_encoded_for_another_model_is_refused(vlm):
    spec = gapless.api.desk.CropSpec(28, 14, 0, 4)
    foreign = gapless.EncodedImage(vlm.encode_image(noise(8)).picture, spec)
    with pytest.raises(errors.InvalidRequest, match="encode_image"):
        vlm.caption(foreign)


def test_the_accounting_says_where_the_time_went(vlm, pictures):
    before = vlm.accounting()
    metrics = vlm.caption(pictures[0], settings={"temperature": 0, "max_tokens": 6})["metrics"]
    idle(vlm)
    spent = vlm.accounting() - before
    assert spent.counters.tokens == metrics["output_tokens"] and spent.steps["prefill"] == 1
    assert spent.busy_ms > 0 and spent.host["device"] > 0 and spent.host["commit"] > 0 and spent.host["mask"] == 0
    assert 0 <= metrics["idle_ms"] <= spent.idle_ms + 1e-6
    more = {"asked", "decoded", "cut", "evicted", "held", "held_bytes"}
    rules = {"asked", "compiled", "refused", "compile_ms", "kept", "kept_bytes"}
    beside = {f"pictures_{name}" for name in more} | {f"rules_{name}" for name in rules}
    assert set(vlm.stats()) == set(spent.as_dict()) | beside


def test_many_pictures_come_back_in_order_and_were_in_flight_together(micro_folder):
    images = [noise(i) for i in range(16)]
    with gapless.load(micro_folder, max_rows=4) as vlm:
        settings = WARM | {"seed": 3}
        results = vlm.caption(images, settings=settings)
        stats = vlm.stats()
        assert [told(r) for r in results] == [told(vlm.caption(image, settings=settings)) for image in images]
        for skill in (vlm.detect, vlm.point, vlm.segment):
            assert [told(r) for r in skill(images[:3], "dog")] == [told(skill(image, "dog")) for image in images[:3]]
        assert [told(r) for r in vlm.query(tuple(images[:2]), "Why?", settings=settings)] == [
            told(vlm.query(image, "Why?", settings=settings)) for image in images[:2]
        ]
        assert vlm.caption([]) == []
    assert stats["decode_steps"] < stats["tokens"] - len(images), "requests did not share decode steps"


def test_one_bad_picture_among_many(vlm, pictures):
    batch = [pictures[0], b"not a picture", pictures[1]]
    settings = {"temperature": 0, "max_tokens": 4}
    kept = vlm.caption(batch, settings=settings, on_error="return")
    assert isinstance(kept[1], errors.InvalidImage)
    assert [told(kept[i]) for i in (0, 2)] == [told(vlm.caption(batch[i], settings=settings)) for i in (0, 2)]
    with pytest.raises(errors.InvalidImage):
        vlm.caption(batch, settings=settings)
    with pytest.raises(errors.InvalidRequest, match="on_error"):
        vlm.caption(batch, on_error="ignore")
    with pytest.raises(errors.InvalidRequest, match="on_error"):
        vlm.caption(batch, on_error=10**5000)
    idle(vlm)


def test_a_picture_that_fails_in_the_engine_among_many(endless, pictures):
    settings = {"max_tokens": 7000, "timeout": 0.2}
    kept = endless.caption(list(pictures), settings=settings, on_error="return")
    assert all(isinstance(result, errors.RequestTimeout) for result in kept)
    with pytest.raises(errors.RequestTimeout):
        endless.caption(list(pictures), settings=settings)
    idle(endless)


# -- many callers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        {"depth": 2},
        {"depth": 1, "constraints": "host"},
        *(pytest.param(how, marks=pytest.mark.slow) for how in ({"depth": 1}, {"depth": 3, "constraints": "host"})),
    ],
    ids=str,
)
def test_threads_that_share_a_model_get_the_answers_of_one_alone(vlm, micro_folder, pictures, how):
    alone = {(seed, name): told(call()) for seed in range(4) for name, call in calls(vlm, pictures[seed], seed).items()}
    with gapless.load(micro_folder, max_rows=8, **how) as shared, ThreadPoolExecutor(12) as pool:
        asked = {
            (seed, name): pool.submit(call)
            for seed in range(4)
            for name, call in calls(shared, pictures[seed], seed).items()
        }
        together = {key: told(future.result(PATIENCE)) for key, future in asked.items()}
        stats = shared.stats()
    assert together == alone
    assert (stats["overlapped"] > 0) == (how["depth"] > 1)
    assert stats["zombies"] == 0 or how["depth"] > 1
    assert stats["finished"] == len(alone) and stats["failed"] == 0


def test_with_few_pages_requests_are_preempted_and_answer_the_same(endless, endless_folder, pictures):
    settings = WARM | {"seed": 2, "max_tokens": 110}
    alone = [told(endless.caption(image, settings=settings)) for image in pictures]
    with gapless.load(endless_folder, max_rows=4, pages=26) as crowded:
        assert [told(result) for result in crowded.caption(pictures, settings=settings)] == alone
        assert crowded.stats()["preemptions"] > 0


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"temprature": 1}, "temprature"),
        ({"temperature": "0.5"}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 100_000}, "max_tokens"),
        ({"timeout": -1}, "timeout"),
        ("hot", "settings"),
    ],
)
def test_bad_settings_are_named(vlm, pictures, settings, named):
    with pytest.raises(errors.InvalidRequest, match=named):
        vlm.caption(pictures[0], settings=settings)


def test_settings_that_do_nothing_are_harmless(vlm, pictures):
    assert "caption" in vlm.caption(pictures[0], settings={"variant": None, "seed": None, "max_tokens": 2})


@pytest.mark.parametrize("question", [None, 3, ["a"]])
def test_a_query_needs_a_question(vlm, question):
    with pytest.raises(errors.InvalidRequest, match="question"):
        vlm.query("nowhere.png", question)


def test_a_timeout_ends_one_request(endless, pictures):
    with pytest.raises(errors.RequestTimeout, match=r"timeout ran out after .* tokens"):
        endless.caption(pictures[0], settings={"max_tokens": 7000, "timeout": 0.3})
    assert endless.caption(pictures[0], settings={"max_tokens": 3, "timeout": 60})["finish_reason"] == "length"
    idle(endless)


def test_ctrl_c_while_waiting_cancels_the_request(endless, pictures):
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        endless.caption(pictures[0], settings={"max_tokens": 7000})
    idle(endless)
    assert endless.stats()["tokens"] < 6000


def test_each_caller_gets_an_error_of_its_own(endless, pictures):
    caught = []

    def ask():
        try:
            endless.caption(pictures[0], settings={"max_tokens": 7000})
        except errors.RequestFailed as error:
            caught.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: len(endless.desk.runner._engine.roster) == 3, "three running requests")

    def fail(*_):
        raise RuntimeError("injected")

    device = endless.desk.runner._device
    device.launch, right = fail, device.launch
    until(lambda: len(caught) == 3, "three failures")
    device.launch = right
    for thread in threads:
        thread.join(PATIENCE)
    assert len({id(error) for error in caught}) == 3
    assert all(isinstance(error.__cause__, RuntimeError) for error in caught)
    assert endless.caption(pictures[0], settings={"max_tokens": 3})["finish_reason"] == "length"
    idle(endless)


def test_a_lost_device_ends_streams_calls_and_tasks(endless_folder, pictures):
    endless = gapless.load(endless_folder)
    settings = {"max_tokens": 7000}
    stream = endless.caption(pictures[0], stream=True, settings=settings)["caption"]
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(endless.caption, pictures[0], settings=settings)
        until(lambda: len(endless.desk.runner._engine.roster) == 2, "two running requests")

        def lose(*_):
            raise errors.DeviceLost("unplugged")

        endless.desk.runner._device.launch = lose
        for wait in (lambda: future.result(PATIENCE), stream.result, lambda: endless.caption(pictures[0])):
            with pytest.raises(errors.EngineDead, match="unplugged"):
                wait()
    with pytest.raises(errors.EngineDead):
        asyncio.run(gapless.AsyncVLM(endless).caption(pictures[0]))
    endless.close()


# -- closing ---------------------------------------------------------------------------------------------------------


def test_after_close_every_way_of_asking_says_so(micro_folder, pictures):
    with gapless.load(micro_folder) as vlm:
        stream = vlm.caption(pictures[0], stream=True, settings=WARM | {"seed": 1})["caption"]
        right = told(vlm.caption(pictures[0], settings=WARM | {"seed": 1}))
    assert told(stream.result()) == right, "a stream that began before is drained"
    with pytest.raises(errors.EngineClosed):
        vlm.caption(pictures[0])
    with pytest.raises(errors.EngineClosed):
        asyncio.run(gapless.AsyncVLM(vlm).query(question="x"))
    vlm.close()


def test_an_exception_in_the_block_does_not_wait_for_running_requests(endless_folder, pictures):
    with pytest.raises(ZeroDivisionError), gapless.load(endless_folder) as vlm:
        stream = vlm.caption(pictures[0], stream=True, settings={"max_tokens": 7000})["caption"]
        1 / 0  # noqa: B018
    with pytest.raises(errors.EngineClosed, match="closed while this request ran"):
        stream.result()
    assert vlm.stats()["tokens"] < 6000


@pytest.mark.parametrize("stream", [True, False])
def test_closing_at_once_tells_callers_that_it_was_not_they(endless_folder, pictures, stream):
    vlm, heard = gapless.load(endless_folder), []

    def caller():
        try:
            answer = vlm.caption(pictures[0], stream=stream, settings={"max_tokens": 7000})
            list(answer["caption"])
        except errors.GaplessError as error:
            heard.append(error)

    threads = [threading.Thread(target=caller) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len(vlm.desk.runner._open) < 3:
        time.sleep(0.002)
    vlm.close(drain=False)
    for thread in threads:
        thread.join(20)
    assert [type(error) for error in heard] == [errors.EngineClosed] * 3
    assert all("closed while this request ran" in str(error) for error in heard)


# -- loading ---------------------------------------------------------------------------------------------------------


def test_a_request_that_can_never_fit_fails_alone(micro_folder, pictures):
    with gapless.load(micro_folder, pages=5) as vlm:
        with pytest.raises(errors.RequestTooLarge, match="KV pages"):
            vlm.caption(pictures[0], settings={"max_tokens": 100})
        assert "answer" in vlm.query(question="x", settings={"max_tokens": 4})
