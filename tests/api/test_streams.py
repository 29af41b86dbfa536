"""Streams: the same answer in pieces, and a reader who goes away ends the request."""

import gc
from itertools import islice

import pytest
from tests.api.asking import idle, told
from tests.api.engine_room import engine_threads, until, within

import gapless
from gapless import errors
from gapless.api.stream import Stream

HOT = {"temperature": 4.0, "top_p": 1.0}
LONG = HOT | {"max_tokens": 7000}


def open_stream(vlm, image) -> Stream:
    return vlm.caption(image, stream=True, settings=LONG)["caption"]


def asks(vlm, image, seed):
    """(streamed, whole) of one request, each skill that streams."""
    settings = HOT | {"max_tokens": 60, "seed": seed}
    yield (
        vlm.caption(image, stream=True, settings=settings)["caption"],
        vlm.caption(image, settings=settings),
    )
    yield (
        vlm.query(image, "Why?", stream=True, settings=settings)["answer"],
        vlm.query(image, "Why?", settings=settings),
    )
    yield (
        vlm.query(question="Why?", stream=True, settings=settings)["answer"],
        vlm.query(question="Why?", settings=settings),
    )


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_pieces_joined_are_the_whole_answer(endless, vlm, pictures, seed):
    for model in (endless, vlm):
        for stream, whole in asks(model, pictures[seed], seed):
            pieces = list(stream)
            assert "".join(pieces) == (whole.get("caption") or whole.get("answer"))
            assert stream.finish_reason == whole["finish_reason"]
            assert stream.metrics["output_tokens"] == whole["metrics"]["output_tokens"]
            assert told(stream.result()) == told(whole)
            if model is endless:
                assert len(pieces) > 1
        idle(model)


def test_segment_streams_dicts(endless, pictures):
    settings = {"max_tokens": 40}
    whole = endless.segment(pictures[0], "dog", settings=settings)
    pieces = list(endless.segment(pictures[0], "dog", stream=True, settings=settings))
    assert pieces[0] == {"bbox": whole["bbox"]}
    assert pieces[-1] == {"path": whole["path"], "bbox": whole["bbox"], "completed": True}
    assert "".join(piece["chunk"] for piece in pieces[1:-1]) == whole["path"]


def test_a_reasoning_is_there_before_the_answer_streams(endless, pictures):
    settings = HOT | {"max_tokens": 30, "seed": 3}
    whole = endless.query(pictures[0], "Why?", reasoning=True, settings=settings)
    result = endless.query(pictures[0], "Why?", reasoning=True, stream=True, settings=settings)
    assert result["reasoning"] == whole["reasoning"]
    assert "".join(result["answer"]) == whole["answer"]


def test_errors_come_before_the_stream_or_in_it(endless, pictures):
    with pytest.raises(errors.InvalidImage):
        endless.caption(b"", stream=True)
    with pytest.raises(errors.InvalidRequest, match="one picture"):
        endless.caption(list(pictures), stream=True)
    stream = endless.caption(pictures[0], stream=True, settings=LONG | {"timeout": 1.0})["caption"]
    with pytest.raises(errors.RequestTimeout):
        list(stream)
    assert list(stream) == [] and stream.finish_reason is None and stream.metrics["input_tokens"] > 17
    with pytest.raises(errors.RequestTimeout):
        stream.result()
    idle(endless)


def test_a_reasoning_that_never_ends_is_told_each_time_it_is_asked_for(endless):
    """Nobody waits for news of a request that is over, whether it failed or its stream was closed."""
    messages, settings = [{"role": "user", "content": "Why?"}], {"temperature": 0, "max_tokens": 3000}
    late, closed = (
        endless.chat(messages, stream=True, reasoning=True, settings=settings | more)["message"]
        for more in ({"timeout": 1e-6}, {})
    )
    closed.close()
    for stream, error in ((late, errors.RequestTimeout), (closed, errors.RequestCancelled)):
        for _ in range(2):
            with pytest.raises(error):
                within(stream.reasoning, 10)
    idle(endless)


# -- going away ------------------------------------------------------------------------------------------------------


def stop_looping(stream):
    for _ in stream:
        break


def stop_an_outer_loop(stream):
    for count, _ in enumerate(stream):
        if count == 2:
            return


def raise_in_the_loop(stream):
    try:
        for _ in stream:
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass


def close_it(stream):
    next(stream)
    stream.close()


@pytest.mark.parametrize("go_away", [stop_looping, stop_an_outer_loop, raise_in_the_loop, close_it])
def test_going_away_cancels_while_the_stream_still_has_a_name(endless, pictures, go_away):
    streams = [open_stream(endless, picture) for picture in pictures]
    for stream in streams:
        within(lambda stream=stream: go_away(stream), 10)
    idle(endless)
    assert endless.stats()["failed"] == len(streams) and endless.stats()["tokens"] < 6000
    assert "caption" in endless.caption(pictures[0], settings={"max_tokens": 3})


def test_dropping_the_last_name_cancels(endless, pictures):
    stream = open_stream(endless, pictures[0])
    next(stream)
    del stream
    idle(endless)
    next(iter(open_stream(endless, pictures[0])))
    idle(endless)
    assert endless.stats()["failed"] == 2


def test_a_stream_in_a_cycle_is_cancelled_by_the_collector(endless, pictures):
    stream = open_stream(endless, pictures[0])
    knot = [stream]
    knot.append(knot)
    del stream, knot
    gc.collect()
    idle(endless)


def test_one_reader_goes_the_other_stays(endless, pictures):
    settings = HOT | {"max_tokens": 80, "seed": 1}
    right = told(endless.caption(pictures[1], settings=settings))
    gone, stays = open_stream(endless, pictures[0]), endless.caption(pictures[1], stream=True, settings=settings)
    stop_looping(gone)
    assert told(stays["caption"].result()) == right


def test_a_stream_that_was_left_says_so_and_a_closed_one_is_over(endless, pictures):
    left, closed = open_stream(endless, pictures[0]), open_stream(endless, pictures[1])
    stop_looping(left)
    with pytest.raises(errors.RequestCancelled, match=r"next\(stream\)"):
        list(left)
    closed.close()
    closed.close()
    assert list(closed) == []
    for stream in (left, closed):
        with pytest.raises(errors.RequestCancelled):
            stream.result()


def test_next_reads_in_parts(endless, pictures):
    settings = HOT | {"max_tokens": 60, "seed": 2}
    whole = endless.caption(pictures[0], settings=settings)["caption"]
    stream = endless.caption(pictures[0], stream=True, settings=settings)["caption"]
    first = next(stream)
    assert first + "".join(stream) == whole
    ended = endless.caption(pictures[0], stream=True, settings=settings)["caption"]
    assert "".join(ended) == whole and next(ended, None) is None


def test_a_stream_keeps_its_engine_until_it_is_read(endless_folder, pictures):
    before = set(engine_threads())
    settings = HOT | {"max_tokens": 60, "seed": 2}
    stream = gapless.load(endless_folder).caption(pictures[0], stream=True, settings=settings)["caption"]
    gc.collect()
    assert len(list(islice(iter(stream.__next__, None), 3))) == 3
    assert stream.result()["metrics"]["output_tokens"] == 60
    del stream
    until(lambda: set(engine_threads()) == before, "the end of the engine's threads")


def test_a_dropped_model_ends_its_threads(endless_folder, pictures):
    before = set(engine_threads())
    vlm = gapless.load(endless_folder)
    stream = open_stream(vlm, pictures[0])
    assert len(engine_threads()) > len(before)
    del vlm, stream
    until(lambda: set(engine_threads()) == before, "the end of the engine's threads")
