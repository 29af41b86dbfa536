"""How events are sent, whatever becomes of the stream and of who reads it."""

import asyncio

import pytest

from gapless.errors import InvalidRequest
from gapless.serve.events import EventStream

PATIENCE = 20.0


class Failing(EventStream):
    """Two events and an error."""

    closed = 0

    async def events(self):
        yield b"one"
        yield b"two"
        raise InvalidRequest("no third")

    def failed(self, error):
        return {"error": str(error)}

    async def close(self):
        self.closed += 1


@pytest.mark.parametrize("takes", [1, 2, 3, 4])
def test_who_reads_no_more_is_broken_off_without_an_error_of_the_server(takes):
    """`takes`: messages after which the client reads nothing; at 4 it has had all of them."""

    async def scene():
        sent, stream, scope = [], Failing("r", 0.01), {"state": {}}

        async def send(message):
            if len(sent) == takes:
                await asyncio.Event().wait()
            sent.append(message)

        await asyncio.wait_for(stream(scope, asyncio.Event().wait, send), PATIENCE)
        assert len(sent) == takes and stream.closed == 1
        assert isinstance(scope["state"].get("error"), InvalidRequest) == (takes >= 3)

    asyncio.run(scene())
