"""Several streams read at once: their news in the order in which it comes, and an end that leaves nobody reading."""

import asyncio

import pytest

from gapless.serve.openai_events import Gathering

PATIENCE = 20.0


class Spoken:
    """A stream that says what it is told to, `None` for its end."""

    def __init__(self):
        self.pieces, self.closed, self.left = asyncio.Queue(), 0, False

    async def reasoning(self):
        return None

    def __aiter__(self):
        return self

    async def __anext__(self):
        try:
            piece = await self.pieces.get()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # to leave takes it a moment
            self.left = True
            raise
        if isinstance(piece, Exception):
            raise piece
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def aclose(self):
        assert self.left or self.pieces.empty(), "it is closed while somebody reads it"
        self.closed += 1


def test_news_come_in_order_and_an_error_is_raised_in_its_turn():
    async def scene():
        one, other = Spoken(), Spoken()
        gathering = Gathering([one, other], scored=False)
        found = []
        for stream, piece in ((other, "b"), (one, "a"), (other, None), (one, ValueError("broken"))):
            stream.pieces.put_nowait(piece)
            if isinstance(piece, Exception):
                with pytest.raises(ValueError, match="broken"):
                    await gathering.next()
            else:
                news = await gathering.next()
                found.append((news.index, news.delta))
        assert found == [(1, {"content": "b"}), (0, {"content": "a"}), (1, None)]
        await gathering.close()
        assert (one.closed, other.closed) == (1, 1)

    asyncio.run(asyncio.wait_for(scene(), PATIENCE))


@pytest.mark.parametrize("begun", [False, True])
def test_closed_in_the_middle_nobody_reads_and_every_stream_is_closed(begun):
    """Streams that would never say another word are not waited for."""

    async def scene():
        streams = [Spoken() for _ in range(3)]
        gathering = Gathering(streams, scored=False)
        if begun:
            await asyncio.sleep(0.01)
        await gathering.close()
        assert all(reader.done() for reader in gathering._readers)
        assert [(stream.closed, stream.left) for stream in streams] == [(1, begun)] * 3

    asyncio.run(asyncio.wait_for(scene(), PATIENCE))
