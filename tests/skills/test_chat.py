"""Conversations: how they are laid out, and which are refused."""

import numpy as np
import pytest

from gapless.errors import InvalidRequest, PromptTooLong, UnsupportedSkill
from gapless.records import Picture, Token
from gapless.skills.chat import chat, check_chat
from gapless.skills.messages import read_messages
from gapless.skills.query import query

SHOWN = {"type": "image_url", "image_url": {"url": "data:,", "detail": "low"}}


def user(*parts):
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"role": "user", "content": parts}


def assistant(text):
    return {"role": "assistant", "content": text}


def asked(context, messages, pictures=(), **options):
    return chat(context, read_messages(messages), pictures, **options)


def picture_of(seed):
    return Picture(str(seed) * 64, np.zeros((2, 378, 378, 3), np.uint8), (1, 1), 40, 20)


def test_one_turn_is_a_query(md2, md3, picture):
    for context in (md2, md3):
        for reasoning in (False, True):
            alone = asked(context, [{"role": "user", "content": " why? "}], reasoning=reasoning)
            assert alone.prompt == query(context, None, "why?", reasoning=reasoning).prompt
            shown = asked(context, [user("why?", SHOWN)], [picture], reasoning=reasoning)
            same = query(context, picture, "why?", reasoning=reasoning)
            assert (shown.prompt, shown.program) == (same.prompt, same.program)


def test_turns_stand_behind_one_another_with_their_answers(md2, md3):
    """Past turns end with the answer's template, the last one with its own; nothing is added to what was said."""
    messages = [user("What?"), assistant(" A cat."), user("Why?")]
    for context, past in ((md2, [3, 3]), (md3, [3])):
        encode, wrap = context.tokenizer.encode, [1, 15381, 2]
        if context.templates.query.prefix != tuple(wrap):
            wrap = list(context.templates.query.prefix)
        first = [0, *wrap, *encode("What?"), *past, *encode(" A cat."), *wrap, *encode("Why?")]
        assert list(asked(context, messages).prompt.ids) == [*first, *context.templates.query.suffix]
        reasoned = asked(context, messages, reasoning=True)
        assert list(reasoned.prompt.ids) == [*first, *context.templates.reason.suffix]
        assert reasoned.program == "reason"


def test_a_system_message_is_put_before_the_first_text(md3):
    for role in ("system", "developer"):
        messages = [{"role": role, "content": "Be brief."}, user("What?"), assistant("A"), user("Why?")]
        same = [user("Be brief.\n\nWhat?"), assistant("A"), user("Why?")]
        assert asked(md3, messages).prompt == asked(md3, same).prompt
    both = [{"role": "system", "content": "a"}, {"role": "developer", "content": [{"type": "text", "text": "b"}]}]
    assert asked(md3, [*both, user("c")]).prompt == asked(md3, [user("a\nb\n\nc")]).prompt
    assert asked(md3, [{"role": "system", "content": ""}, user("c")]).prompt == asked(md3, [user("c")]).prompt


def test_pictures_stand_before_the_text_of_their_turn(md3):
    """The first one at the very front is the prompt's own, all others are insets over filler."""
    pictures = [picture_of(n) for n in range(4)]
    block = md3.prefix - 1
    messages = [user("What?", SHOWN, SHOWN), assistant("A"), user(SHOWN, "Why?")]
    prompt = asked(md3, messages, pictures[:3]).prompt
    assert prompt.picture is pictures[0]
    assert [inset.picture for inset in prompt.insets] == pictures[1:3]
    plain = asked(md3, [user("What?"), assistant("A"), user("Why?")]).prompt.ids
    turn = len(asked(md3, [user("What?")]).prompt.ids) - 1 + len(md3.tokenizer.encode("A"))
    assert [inset.at for inset in prompt.insets] == [0, block + turn]
    left = [i for n, i in enumerate(prompt.ids) if not any(s.at <= n < s.at + block for s in prompt.insets)]
    assert left == list(plain[1:]) and len(prompt.values) == len(prompt.ids)
    for inset in prompt.insets:
        assert set(prompt.ids[inset.at : inset.at + block]) == {md3.templates.ids.bos}

    late = asked(md3, [user("What?"), assistant("A"), user(SHOWN, "Why?")], pictures[:1]).prompt
    assert late.picture is None and late.insets[0].at == turn + 1 and late.ids[0] == md3.templates.ids.bos


def test_messages_of_one_role_in_a_row_are_one(md3):
    messages = [user("a", SHOWN), user("b"), assistant("c"), assistant("d"), user("e")]
    said = read_messages(messages)
    assert [(t.text, t.answer, len(t.pictures)) for t in said.turns] == [("a\nb", "c\nd", 1), ("e", None, 0)]


def test_pictures_of_messages_in_a_row_come_in_order():
    messages = [user("a", SHOWN), user(SHOWN, "b", SHOWN), {"role": "user", "content": "c"}]
    (turn,) = read_messages(messages).turns
    assert [part.where for part in turn.pictures] == [
        f"messages[{n}].content[{i}]" for n, i in ((0, 1), (1, 0), (1, 2))
    ]
    assert (turn.text, turn.where) == ("a\nb\nc", "messages[2]")


def test_white_space_around_a_system_message_is_none_of_it():
    said = read_messages([{"role": "system", "content": " \nBe brief.\n"}, user("a")])
    assert said.system == "Be brief."
    assert read_messages([{"role": "system", "content": " "}, user("a")]).system == ""


def test_only_the_last_message_may_be_without_words():
    """And only where a skill needs none."""
    last = read_messages([user("a"), assistant("b"), user(SHOWN)], wordless=True)
    assert last.turns[-1].text == "" and len(last.turns[-1].pictures) == 1
    with pytest.raises(InvalidRequest, match="has no text") as caught:
        read_messages([user(SHOWN), assistant("b"), user("a")], wordless=True)
    assert caught.value.param == "messages[0]"


def test_very_many_messages_in_a_row_take_no_longer_than_their_number():
    said = read_messages([user("a")] * 50_000 + [assistant("b")] * 2 + [user("c")])
    assert said.turns[0].text == "\n".join(["a"] * 50_000) and said.turns[0].where == "messages[49999]"
    assert said.turns[0].answer == "b\nb" and said.turns[1].text == "c"


def test_s_tok_01_no_text_of_a_conversation_becomes_a_special_id(md2):
    """S-TOK-01: in a system message, a question, an answer."""
    special = [f"<|md_reserved_{n}|>" for n in range(20)] + ["<|endoftext|>"]
    plain = [{"role": "system", "content": "x"}, user("x"), assistant("x"), user("x")]
    expected = sorted(i for i in asked(md2, plain).prompt.ids if i <= 20)
    for text in special:
        for number in range(4):
            said = [dict(message) for message in plain]
            said[number]["content"] = f"{text} x {text}"
            assert sorted(i for i in asked(md2, said).prompt.ids if i <= 20) == expected


def test_s_tok_06_bos_stands_once_at_the_front(md2, md3, picture):
    """S-TOK-06, S-TOK-05: with a picture it belongs to the block, without one it leads the ids."""
    for context in (md2, md3):
        messages = [user("a"), assistant("b"), user("c")]
        bos = context.templates.ids.bos
        ids = asked(context, messages).prompt.ids
        assert ids[0] == bos and ids.count(bos) == 1
        messages[0] = user("a", SHOWN)
        assert bos not in asked(context, messages, [picture]).prompt.ids


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ({}, "messages"),
        ("hi", "messages"),
        (["hi"], "messages[0]"),
        ([{}], "messages[0].role"),
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "user", "content": {}}], "messages[0].content"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": ""}], "messages[0]"),
        ([{"role": "user", "content": " \n"}], "messages[0]"),
        ([user(SHOWN)], "messages[0]"),
        ([user("a"), assistant("b"), user(SHOWN)], "messages[2]"),
        ([user("a"), assistant("b")], "messages"),
        ([{"role": "system", "content": "a"}], "messages"),
        ([assistant("b"), user("a")], "messages[0]"),
        ([user("a"), {"role": "system", "content": "b"}, user("c")], "messages[1]"),
        ([user("a"), {"role": "assistant", "content": None, "tool_calls": [{}]}, user("c")], "messages[1].tool_calls"),
        ([user("a"), {"role": "assistant", "content": [SHOWN]}, user("c")], "messages[1].content[0]"),
        ([user({"type": "input_audio"})], "messages[0].content[0].type"),
        ([user({"type": "text"})], "messages[0].content[0].text"),
        ([user({"type": "image_url"})], "messages[0].content[0].image_url"),
        ([user({"type": "image_url", "image_url": {"url": 3}})], "messages[0].content[0].image_url"),
        ([user({})], "messages[0].content[0]"),
        ([{"role": "user", "content": ["a"]}], "messages[0].content[0]"),
    ],
    ids=repr,
)
def test_s_tok_02_messages_that_are_refused(messages, param):
    """S-TOK-02: empty ones first of all. The error names the place."""
    with pytest.raises(InvalidRequest) as caught:
        read_messages(messages)
    assert caught.value.param == param and len(str(caught.value)) < 400


def test_what_other_clients_leave_in_a_message_is_no_trouble():
    said = {"role": "assistant", "content": "b", "refusal": None, "annotations": [], "tool_calls": None, "name": "x"}
    url = {"type": "image_url", "image_url": "data:,"}
    assert read_messages([user("a", url), said, user("c")]).turns[0].answer == "b"
    assert read_messages([user("a"), assistant(""), user("c")]).turns[0].answer == ""


@pytest.mark.parametrize("number", range(4))
def test_s_tok_04_half_a_surrogate_pair_is_refused_wherever_it_stands(md3, number):
    """S-TOK-04: in a system message, a question, an answer."""
    messages = [{"role": "system", "content": "x"}, user("x"), assistant("x"), user("x")]
    messages[number] = messages[number] | {"content": "a \ud800"}
    with pytest.raises(InvalidRequest, match="surrogate") as caught:
        asked(md3, messages)
    assert caught.value.param.startswith("messages[")


def test_s_tok_03_the_context_is_counted_with_all_pictures(md2, picture):
    """S-TOK-03: exactly at the limit works, one more is refused with the numbers."""
    fixed = len(asked(md2, [user("!", SHOWN)], [picture]).prompt.ids) - 1
    room = md2.max_context - md2.prefix - fixed - 1
    assert asked(md2, [user("!" * room, SHOWN)], [picture]).sampling.max_tokens == 1
    with pytest.raises(PromptTooLong, match=f"{md2.max_context + 1} in all"):
        asked(md2, [user("!" * (room + 1), SHOWN)], [picture])
    many = md2.max_context // (md2.prefix - 1) + 1
    with pytest.raises(PromptTooLong, match=f"for {many} pictures") as caught:
        check_chat(md2, read_messages([user("a", *[SHOWN] * many)]), False)
    assert caught.value.param == "messages"


def test_s_tok_03_several_pictures_are_counted_exactly_before_anything_is_decoded(md2):
    """S-TOK-03: each takes a block without its BOS; what may just fit is not refused unseen."""
    for shown in (1, 2):
        block = shown * (md2.prefix - 1)
        token = "a" * (md2.tokenizer._longest * md2.tokenizer._shrink)
        text = token * (md2.max_context - block)
        check_chat(md2, read_messages([user(text, *[SHOWN] * shown)]), False)
        remedy = "leave some out" if shown > 1 else "shorten the text"
        told = f"at least {md2.max_context + 1} tokens, {block} of them for {shown} .*; {remedy}"
        with pytest.raises(PromptTooLong, match=told):
            check_chat(md2, read_messages([user(text + token, *[SHOWN] * shown)]), False)


def test_s_tok_08_a_huge_conversation_is_refused_without_tokenising(md2, monkeypatch):
    """S-TOK-08: many long messages, none of which is too long by itself."""
    monkeypatch.setattr(type(md2.tokenizer), "encode", None)
    text = "a" * (md2.tokenizer._longest * md2.max_context // 2)
    with pytest.raises(PromptTooLong, match=r"at least \d+ tokens.*; leave some out"):
        check_chat(md2, read_messages([user(text), assistant(text), user(text)]), False)


def test_a_message_comes_back(md3):
    ask = asked(md3, [user("why?")], settings={"logprobs": 0})
    ask.reader.feed([Token(i) for i in md3.tokenizer.encode("A cat.")])
    ask.reader.finish()
    found = ask.reader.result()
    assert found["message"] == {"role": "assistant", "content": "A cat."} and found["logprobs"]
    reasoned = asked(md3, [user("why?")], reasoning=True)
    reasoned.reader.feed([Token(i) for i in (*md3.tokenizer.encode("So."), 3, *md3.tokenizer.encode("A"))])
    reasoned.reader.finish()
    message = reasoned.reader.result()["message"]
    assert message["content"] == "A" and message["reasoning"] == "So."
    assert message["reasoning_details"] == {"grounding": []}


def test_a_model_without_queries_has_no_chat(md3):
    from dataclasses import replace

    lacking = replace(md3, templates=replace(md3.templates, query=None))
    with pytest.raises(UnsupportedSkill, match="'chat'"):
        asked(lacking, [user("a")])
    with pytest.raises(UnsupportedSkill, match="'reasoning'"):
        asked(replace(md3, templates=replace(md3.templates, reason=None)), [user("a")], reasoning=True)


def test_a_part_of_no_known_type_is_told_all_that_there_are():
    with pytest.raises(InvalidRequest, match="must be text, image_url or image; got 'input_audio'"):
        read_messages([user({"type": "input_audio"})])
