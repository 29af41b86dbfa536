"""Messages between the two processes: what is said is what is heard, and noise is no message."""

from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless import errors
from gapless.api import wire
from gapless.api.arena import Region
from gapless.api.opening import Opening
from gapless.errors import GaplessError
from gapless.observe.accounting import Accounting, Standing
from gapless.observe.counters import Counters
from gapless.records import Emission, Finish, FinishReason, Metrics, Sampling, Talk, Token

TREE = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GaplessError)]
PYTHONS = [ValueError, KeyError, RuntimeError, MemoryError, ChildProcessError, ZeroDivisionError]

counts = st.integers(0, 2**40)
ids = st.integers(0, 2**17)
numbers = st.floats(allow_nan=False)
parts = st.floats(0, 1)
values = st.one_of(st.just(()), st.tuples(parts), st.tuples(parts, parts))
texts = st.text(max_size=30)
tokens = st.builds(
    Token, ids, values=values, logprob=numbers, top=st.lists(st.tuples(ids, numbers), max_size=4).map(tuple)
)
metrics = st.builds(Metrics, counts, counts, numbers, numbers, numbers, numbers, counts, counts, numbers)
samplings = st.builds(Sampling, numbers, numbers, counts, counts, st.integers(0, 2**63 - 1), st.integers(-1, 20))
accountings = st.builds(
    Accounting,
    counters=st.builds(Counters, **{field.name: counts for field in fields(Counters)}),
    steps=st.dictionaries(texts, counts, max_size=3),
    busy=st.dictionaries(texts, numbers, max_size=3),
    idle_ms=numbers,
    host=st.dictionaries(texts, numbers, max_size=3),
    in_flight=st.lists(numbers, max_size=4).map(tuple),
)
standings = st.builds(Standing, counts, counts, counts, counts)
ours = st.builds(lambda kind, text, param: kind(text, param=param), st.sampled_from(TREE), texts, st.none() | texts)
pythons = st.builds(lambda kind, text: kind(text), st.sampled_from(PYTHONS), texts)


def caused(error, cause):
    error.__cause__ = cause
    return error


failures = st.builds(caused, ours | pythons, st.none() | pythons | st.builds(caused, ours, st.none() | pythons))
finishes = st.builds(Finish, metrics, st.none() | st.sampled_from(FinishReason), st.none() | failures)
emissions = st.builds(Emission, counts, st.lists(tokens, max_size=5).map(tuple), st.none() | finishes)
shapes = st.tuples(*[ids] * 3) | st.tuples(*[ids] * 4)  # of pixels, of crops
regions = st.builds(Region, counts, shapes, texts, st.tuples(ids, ids), ids, ids)
notes = failures.map(wire.ErrorNote.of)
downward = st.one_of(
    st.builds(wire.Open, st.builds(Opening, texts, threads=st.none() | ids, pages=st.none() | ids)),
    st.builds(
        wire.Submit,
        counts,
        st.lists(ids, max_size=9).map(tuple),
        st.lists(values, max_size=9).map(tuple),
        texts,
        samplings,
        st.booleans(),
        st.none() | numbers,
        numbers,
        st.none() | regions,
        st.lists(st.tuples(ids, regions), max_size=2).map(tuple),
    ),
    st.builds(wire.Cancel, counts),
    st.just(wire.Tell()),
    st.builds(wire.Close, st.booleans()),
)
upward = st.one_of(
    st.just(wire.Hello()),
    st.builds(wire.Progressed, texts, ids, ids),
    st.builds(wire.Refused, notes),
    st.builds(wire.Ready, ids, ids, ids, accountings, st.none() | st.dictionaries(texts, ids | texts, max_size=3)),
    st.builds(wire.Totals, accountings, standings),
    st.builds(wire.Bye, accountings),
    st.builds(wire.Died, notes),
)
often = settings(derandomize=True, deadline=None, max_examples=40)


def said(error):
    """All of an error that is to survive."""
    return error and (type(error), error.args, getattr(error, "param", None), said(error.__cause__))


@often
@given(downward)
def test_what_the_caller_says_is_heard(message):
    assert wire.decode_downward(wire.encode(message)) == message


@often
@given(upward)
def test_what_the_engine_says_is_heard(message):
    assert wire.decode_upward(wire.encode(message)) == message


@often
@given(st.lists(st.tuples(counts, tokens), max_size=3), st.lists(counts, max_size=3).map(tuple))
def test_talk_arrives_as_it_was(sent, freed):
    talk = Talk(tuple(number for number, _ in sent), tuple(token for _, token in sent))
    report = wire.decode_upward(wire.encode(wire.Report((), freed, (talk,))))
    assert report == wire.Report((), freed, (talk,))
    assert [(one.request_id, *one.tokens) for one in report.talk[0].emissions()] == sent


@often
@given(st.lists(emissions, max_size=3), st.lists(counts, max_size=3).map(tuple))
def test_emissions_arrive_as_they_were(sent, freed):
    report = wire.decode_upward(wire.encode(wire.Report(tuple(map(wire.News.of, sent)), freed)))
    heard = [news.emission() for news in report.news]
    assert report.freed == freed
    for one, other in zip(sent, heard, strict=True):
        assert (one.request_id, one.tokens) == (other.request_id, other.tokens)
        assert all(type(value) is float for token in other.tokens for value in token.values)
        assert (one.finish is None) == (other.finish is None)
        if one.finish is not None:
            assert (one.finish.metrics, one.finish.reason) == (other.finish.metrics, other.finish.reason)
            assert said(one.finish.error) == said(other.finish.error)


def test_errors_of_other_classes_keep_their_name_and_text():
    class Odd(Exception):
        pass

    undecodable = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    for error, text in [(Odd("so"), "Odd: so"), (undecodable, f"UnicodeDecodeError: {undecodable}")]:
        heard = wire.ErrorNote.of(error).error()
        assert said(heard) == (errors.RequestFailed, (text,), None, None)
        death = wire.ErrorNote.of(caused(errors.DeviceLost("lost"), error)).error()
        assert said(death.__cause__) == (RuntimeError, (text,), None, None)
    assert isinstance(wire.ErrorNote("KeyboardInterrupt", "").error(RuntimeError), RuntimeError)
    assert isinstance(wire.ErrorNote("shown", "").error(RuntimeError), RuntimeError), "not a class of errors"


def test_any_error_can_be_told_whatever_its_text_and_its_causes_are():
    class Mute(Exception):
        __hash__ = Exception.__hash__

        def __str__(self):
            raise ValueError("no words")

        def __eq__(self, other):
            raise ValueError("not comparable either")

    odd = errors.InvalidRequest("a \ud800 b", param="\udcff")
    round_about = [ValueError("a"), Mute(), odd]
    for one, behind in zip(round_about, [*round_about[1:], round_about[0]], strict=True):
        one.__cause__ = behind
    long = ValueError("0")
    for n in range(3000):
        long = caused(ValueError(str(n)), long)
    alone = ValueError("alone")
    alone.__cause__ = alone
    heard = []
    for error in (odd, long, alone):
        died = wire.decode_upward(wire.encode(wire.Died(wire.ErrorNote.of(error))))
        heard.append(chain(died.error))
    assert heard[0] == [
        ("InvalidRequest", "a \\ud800 b"),
        ("ValueError", "a"),
        ("Mute", "an error that cannot be shown"),
    ]
    assert wire.ErrorNote.of(odd).param == "\\udcff"
    assert heard[1] == [("ValueError", str(n)) for n in range(2999, 2999 - wire.CAUSES, -1)]
    assert heard[2] == [("ValueError", "alone")]


def chain(note):
    return [] if note is None else [(note.name, note.text), *chain(note.cause)]


@often
@given(st.binary(max_size=40), st.booleans())
def test_noise_is_no_message(noise, down):
    with pytest.raises(ValueError):
        (wire.decode_downward if down else wire.decode_upward)(noise)


@often
@given(downward, st.data())
def test_a_message_cut_short_is_none(message, data):
    frame = wire.encode(message)
    with pytest.raises(ValueError):
        wire.decode_downward(frame[: data.draw(st.integers(0, len(frame) - 1))])
