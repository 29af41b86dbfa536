"""HTTP as bytes on a socket: whole responses, broken ones, and clients that leave in the middle."""

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field

PATIENCE = 60.0
DONE = "[DONE]"


@dataclass
class Reply:
    """What came back. `status` 0: nothing did. `whole`: the body ended as it should."""

    status: int = 0
    headers: dict = field(default_factory=dict)
    body: bytes = b""
    whole: bool = False

    def json(self):
        return json.loads(self.body)

    def events(self):
        """Of a stream that failed, what is behind its last event is not one: it ends within a line. OpenAI's last one
        is no JSON, and is left as it is."""
        parts = self.body.decode().split("\n\n")
        assert bool(parts.pop()) == (not self.whole)
        said = [part.removeprefix("data: ") for part in parts]
        return [json.loads(one) if one != DONE else DONE for one in said]


def post(path, body, **headers):
    """The bytes of a request. `body`: bytes, or what is to be JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"Host": "test", "Content-Type": "application/json", "Content-Length": len(data)}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + data


def get(path):
    return f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode()


async def exchange(port, data, leave=None, first=None):
    """Send bytes and read one response. `leave`: seconds after which the client is gone, whatever has come; `first`:
    gone once so many bytes of the body have come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    reply = Reply()
    try:
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(PATIENCE if leave is None else leave):
                writer.write(data)
                with suppress(asyncio.IncompleteReadError):
                    await _read(reader, reply, first)
                return reply
        assert leave is not None or reply.status, "no answer within the time of this test"
        return reply
    finally:
        writer.transport.abort() if leave is not None or first is not None else writer.close()


async def _read(reader, reply, first):
    while (head := await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 "):
        pass  # the server only says that it goes on reading
    lines = head.decode("latin-1").split("\r\n")
    reply.status = int(lines[0].split(" ")[1])
    reply.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:-2])}
    if "content-length" in reply.headers:
        reply.body = await reader.readexactly(int(reply.headers["content-length"]))
    elif reply.headers.get("transfer-encoding") == "chunked":
        while size := int((await reader.readuntil(b"\n")), 16):
            reply.body += (await reader.readexactly(size + 2))[:-2]
            if first is not None and len(reply.body) >= first:
                return
    reply.whole = True
