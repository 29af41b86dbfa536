"""Channels of tasks: what is put arrives in order, and an event loop is woken once for all there is."""

import asyncio
import gc
import threading
import weakref
from collections import deque

from gapless.api.channel import AsyncChannel, Channel
from gapless.records import Emission, Finish, FinishReason, Metrics, Token

END = Finish(Metrics(1, 2, 0.0, 0.0, 0.0, 0.0), FinishReason.STOP)


def test_a_whole_answer_is_held_and_a_stream_is_not():
    whole, stream = Channel(whole=True), Channel(whole=False)
    for channel in (whole, stream):
        channel.say(1, Token(4))
        channel.say(1, Token(5))
        channel.put(Emission(1, finish=END))
    assert whole.get() == Emission(1, (Token(4), Token(5)), END)
    assert [stream.get() for _ in range(3)] == [
        Emission(1, (Token(4),)),
        Emission(1, (Token(5),)),
        Emission(1, (), END),
    ]


def test_one_call_wakes_an_event_loop_for_all_its_channels():
    async def main():
        loop = asyncio.get_running_loop()
        channels = [AsyncChannel(whole=False) for _ in range(5)]
        calls, wake = [], loop.call_soon_threadsafe

        def counted(callback, *rest):
            calls.append(callback)
            return wake(callback, *rest)

        loop.call_soon_threadsafe = counted

        def say(tokens):
            for token in tokens:
                for number, channel in enumerate(channels):
                    channel.say(number, Token(token))

        def ride(tokens):  # the event loop stands still meanwhile, so that nothing is delivered in between
            thread = threading.Thread(target=say, args=(tokens,))
            thread.start()
            thread.join()

        for tokens in ([7, 8], [9]):
            ride(tokens)
            assert len(calls) == 1
            calls.clear()
            for number, channel in enumerate(channels):
                heard = [await channel.receive() for _ in tokens]
                assert heard == [Emission(number, (Token(token),)) for token in tokens]

    asyncio.run(main())


def test_letters_that_come_during_a_delivery_are_not_left():
    async def main():
        channel, many = AsyncChannel(whole=False), 3000

        def say():
            for number in range(many):
                channel.say(1, Token(number))

        thread = threading.Thread(target=say)
        thread.start()
        heard = [(await asyncio.wait_for(channel.receive(), 20)).tokens[0].id for _ in range(many)]
        thread.join()
        assert heard == list(range(many))

    asyncio.run(main())


def test_news_for_a_loop_that_is_over_is_dropped():
    async def main():
        return AsyncChannel(whole=False)

    channel = asyncio.run(main())
    channel.say(1, Token(4))
    channel.put(Emission(1, finish=END))
    assert channel.unread


def test_nothing_is_left_of_an_event_loop_that_was_closed_with_news_unread():
    seen, channels = [], []

    async def leave(unheard):
        channel = AsyncChannel(whole=False)
        for token in range(unheard):
            channel.say(1, Token(token))
        seen.append(weakref.ref(asyncio.get_running_loop()))
        return channel

    for unheard in (0, 1, 2):
        channels.append(asyncio.run(leave(unheard)))
    for channel in channels:
        channel.say(1, Token(9))  # the engine may still have news
    channels.clear()
    del channel
    gc.collect()
    assert [loop() for loop in seen] == [None] * 3


def test_a_letter_that_comes_just_after_the_last_look_is_delivered():
    async def main():
        channel, late = AsyncChannel(whole=False), [Token(8)]

        class Letters(deque):
            def __bool__(self):
                full = len(self) > 0
                if not full and late:
                    channel.say(1, late.pop())  # as the engine's thread may, before the delivery returns
                return full

        channel._post.letters = Letters()
        channel.say(1, Token(7))
        return [(await asyncio.wait_for(channel.receive(), 10)).tokens for _ in range(2)]

    assert asyncio.run(main()) == [(Token(7),), (Token(8),)]
