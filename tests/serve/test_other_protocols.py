"""Clients that ask for another protocol, or speak an older one: they get what they asked about, in words they know."""

import json
import socket

import pytest
from tests.serve.conftest import events

PATIENCE = 30.0
QUESTION = {"question": "Who are you?", "settings": {"max_tokens": 3, "temperature": 0}}
UPGRADE = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
WEBSOCKET = "connection: keep-alive\r\nConnection:  UPGRADE \r\nupgrade: websocket\r\n"


def request(body, lines="", version="1.1", path="/v1/query"):
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/{version}\r\nHost: a\r\nContent-Type: application/json\r\n{lines}"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def connected(endpoint):
    return socket.create_connection(("127.0.0.1", int(endpoint.rpartition(":")[2].partition("/")[0])), PATIENCE)


def reply(file):
    """Status, headers and body of the next response with a length."""
    status = int(file.readline().split()[1])
    headers = dict(line.decode().strip().lower().split(": ", 1) for line in iter(file.readline, b"\r\n"))
    return status, headers, file.read(int(headers["content-length"]))


def answer(file):
    status, _, body = reply(file)
    assert status == 200, body
    return json.loads(body)["answer"]


@pytest.mark.parametrize("lines", [UPGRADE, WEBSOCKET], ids=["h2c", "websocket"])
def test_a_wish_for_another_protocol_takes_nothing_of_the_request_away(endpoint, lines):
    """Java's own client wishes for HTTP/2 with each first request. Those behind it on the connection are read too."""
    plain, wishing = request(QUESTION), request(QUESTION, lines)
    with connected(endpoint) as wire, wire.makefile("rb") as file:
        wire.sendall(plain)
        right = answer(file)
        wire.sendall(wishing)
        assert answer(file) == right
        wire.sendall(wishing + plain + wishing)
        assert [answer(file) for _ in range(3)] == [right] * 3
        for byte in wishing:
            wire.sendall(bytes([byte]))
        assert answer(file) == right
        wire.sendall(request({"question": "a" * 100_000}, lines))
        assert reply(file)[0] == 400
        wire.sendall(wishing)
        assert answer(file) == right


@pytest.mark.parametrize("path", ["/v1/query", "/v1/chat/completions"])
def test_a_stream_for_http_1_0_has_no_chunks_and_ends_with_its_connection(endpoint, path):
    chat = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 3}
    with connected(endpoint) as wire, wire.makefile("rb") as file:
        wire.sendall(request((chat if "chat" in path else QUESTION) | {"stream": True}, version="1.0", path=path))
        head, _, body = file.read().partition(b"\r\n\r\n")
    assert b" 200 " in head and b"transfer-encoding" not in head.lower() and b"content-length" not in head.lower()
    text = body.decode().replace("data: [DONE]", 'data: {"completed": true}')
    assert events(text)[-1]["completed"]


def test_an_answer_for_http_1_0_has_its_length_and_its_end(endpoint):
    with connected(endpoint) as wire, wire.makefile("rb") as file:
        wire.sendall(request(QUESTION, version="1.0"))
        status, headers, body = reply(file)
        assert status == 200 and headers["connection"] == "close" and json.loads(body)["answer"]
        assert file.read() == b""
