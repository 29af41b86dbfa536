"""S-IMG-10, S-SEC-01, S-SEC-02: addresses of pictures. Whatever they look like, nobody is asked: a listener on this
machine waits in vain, and the request is told 400, never answered as if there had been no picture."""

import socket

import pytest
from tests.serve.conftest import SMALL


@pytest.fixture(scope="module")
def listener():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        yield listening
        with pytest.raises(BlockingIOError):
            listening.accept()  # nobody came


HOSTS = [
    *("127.0.0.1", "localhost", "2130706433", "0177.0.0.1", "0x7f.0.0.1", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0"),
    *("127.1", "user@127.0.0.1", "127.0.0.1.", "localhost.", "ⓛocalhost", "127.0.0.1#@example.com", "100.64.0.1"),
]
SCHEMES = ["http", "HTTPS", " http", "ftp", "file", "gopher", "blob:http"]


@pytest.mark.parametrize("host", HOSTS)
def test_s_sec_02_no_spelling_of_an_address_is_fetched(site, listener, host):
    port = listener.getsockname()[1]
    for scheme in SCHEMES if host == HOSTS[0] else SCHEMES[:2]:
        address = f"{scheme}://{host}:{port}/picture.png"
        said = site.post("/v1/query", {"image_url": address, "question": "What?", "settings": SMALL})
        assert said.status_code == 400 and said.json()["error"]["param"] == "image_url", said.text
    parts = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": f"http://{host}:{port}/a"}}]
    said = site.post("/v1/chat/completions", {"messages": [{"role": "user", "content": parts}], "max_tokens": 1})
    assert said.status_code == 400 and "choices" not in said.json(), said.text


@pytest.mark.parametrize("answer", ["404", "500", "page", "nothing"])
def test_s_img_10_and_s_sec_01_no_answer_of_a_remote_server_matters(site, listener, answer):
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/{answer}"
    for route, body in (("query", {"question": "What?"}), ("caption", {"stream": True}), ("point", {"object": "dog"})):
        said = site.post(f"/v1/{route}", body | {"image_url": address})
        assert said.status_code == 400 and "nothing is fetched" in said.json()["error"]["message"]
    assert site.post("/v1/query", {"question": "Who?", "settings": SMALL}).status_code == 200
