"""Hostile bodies and pictures over HTTP: an error of the client's, told without internals. After each of them the same
ordinary request, with the same answer as before, and nothing left behind."""

import base64
import gzip
import json

import numpy as np
import pytest
from PIL import Image
from tests.api.asking import idle
from tests.api.test_hostile_input import bomb
from tests.serve.conftest import SMALL, encoded, png, url

from gapless.errors import InvalidRequest
from gapless.serve.limits import MOST_COMMAS, parse

PNG = png(2)
JPEG = encoded(Image.fromarray(np.random.default_rng(3).integers(0, 256, (60, 80, 3), dtype=np.uint8)), "JPEG")
ORDINARY = {"image_url": url(PNG), "question": "What is here?", "settings": {"temperature": 1.5, "seed": 1} | SMALL}
INTERNALS = ("Traceback", "gapless/", ".py", " at 0x", "site-packages", "object at")


def ordinary(site):
    said = site.post("/v1/query", ORDINARY)
    assert said.status_code == 200, said.text
    return said.json()["answer"]


@pytest.fixture(scope="module")
def usual(site):
    return ordinary(site)


@pytest.fixture(autouse=True)
def the_next_ordinary_request_succeeds(site, usual):
    yield
    assert ordinary(site) == usual
    assert site.gate.held == 0
    idle(site.vlm)


def refused(said, *words, status=400):
    assert said.status_code == status, said.text
    message = said.json()["error"]["message"]
    assert all(word.lower() in message.lower() for word in words), message
    assert not any(word in said.text for word in INTERNALS), said.text
    return said.json()["error"]


def asked(picture):
    return {"image_url": picture, "question": "What?", "settings": SMALL}


B64 = base64.b64encode(PNG).decode()
GOOD = {
    "S-IMG-08 extra parameter": url(PNG, "data:image/png;charset=utf-8;base64,"),
    "S-IMG-08 upper case": url(PNG, "DATA:image/png;BASE64,"),
    "S-IMG-08 no type": url(PNG, "data:;base64,"),
    "S-IMG-08 newlines and blanks": "data:image/png;base64,\r\n" + B64[:40] + "\n " + B64[40:] + "\n",
    "S-IMG-08 no padding": "data:image/png;base64," + B64.rstrip("="),
    "S-IMG-08 url-safe": "data:image/png;base64," + base64.urlsafe_b64encode(PNG).decode(),
    "S-IMG-08 bare": B64,
    "S-IMG-01 wrong type": url(JPEG, "data:image/png;base64,"),
    "S-IMG-06 1x1": url(png(1, 1, 1)),
    "S-IMG-06 2x3": url(png(1, 2, 3)),
}


@pytest.mark.parametrize("name", GOOD)
def test_forms_that_are_accepted(site, name):
    said = site.post("/v1/query", asked(GOOD[name]))
    assert said.status_code == 200, said.text
    assert said.json()["metrics"]["input_tokens"] > 17  # S-IMG-04: the picture was not dropped


BAD = {
    "S-IMG-08 no comma": ("data:image/png;base64", ["comma"]),
    "S-IMG-08 not base64": ("data:image/png,abc", [";base64"]),
    "S-IMG-08 broken base64": ("data:image/png;base64,@@@@", ["base64"]),
    "S-IMG-08 empty": ("data:image/png;base64,", ["nothing to decode"]),
    "S-IMG-05 1 %": (url(PNG[:60]), ["png"]),
    "S-IMG-05 50 %": (url(PNG[: len(PNG) // 2]), ["damaged"]),
    "S-IMG-05 99 %": (url(JPEG[: len(JPEG) * 98 // 100]), ["damaged"]),
    "S-IMG-07 bomb": (url(bomb()), ["30000", "limit"]),
    "S-IMG-12 HEIC": (url(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"), ["HEIC", "accepted"]),
    "S-IMG-10 http": ("http://127.0.0.1:1/x.png", ["http", "nothing is fetched"]),
    "S-SEC-01 metadata host": ("https://169.254.169.254/latest", ["https", "nothing is fetched"]),
    "S-SEC-02 tricks": ("  HtTp://user@0x7f.1/", ["http", "nothing is fetched"]),
    "S-SEC-04 file": ("file:///etc/passwd", ["file", "nothing is fetched"]),
    "S-SEC-04 path": ("/etc/passwd", ["picture"]),
    "S-SEC-04 relative path": ("../x.png", ["base64"]),
    "S-SEC-04 device": ("/dev/zero", ["picture"]),
    "S-SEC-05 pickle": (url(b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93."), ["accepted"]),
    "S-SEC-08 NUL": ("data:image/png;base64,AAAA\0", ["base64"]),
}


@pytest.mark.parametrize("name", BAD)
def test_pictures_that_are_refused(site, name):
    picture, words = BAD[name]
    assert refused(site.post("/v1/query", asked(picture)), *words)["type"] == "invalid_image"
    streamed = site.post("/v1/caption", {"image_url": picture, "stream": True, "settings": SMALL})
    refused(streamed, *words)


def test_no_path_of_a_request_is_opened(site, tmp_path, monkeypatch):
    """S-SEC-04: a picture that is there is not read when only its path is sent."""
    (tmp_path / "abcd").write_bytes(PNG)
    monkeypatch.chdir(tmp_path)
    for picture in (str(tmp_path / "abcd"), "abcd", "./abcd"):
        refused(site.post("/v1/query", asked(picture)), "picture")


BODIES = {
    "nothing": b"",
    "no object": b"[1]",
    "text": b"hello",
    "half": b'{"question": "a',
    "not UTF-8": b'{"question": "\xff\xfe"}',
    "deep": b"[" * 100_000,
    "long number": b'{"question": ' + b"9" * 5000 + b"}",
    "S-API-06 NaN": b'{"question": "a", "settings": {"temperature": NaN}}',
    "S-API-06 Infinity": b'{"question": "a", "settings": {"temperature": Infinity}}',
    "S-API-06 overflow": b'{"question": "a", "settings": {"temperature": 1e999}}',
    "S-API-06 negative": b'{"question": "a", "settings": {"temperature": -1}}',
    "S-API-06 true": b'{"question": "a", "settings": {"temperature": true}}',
    "S-API-06 top_p": b'{"question": "a", "settings": {"top_p": 1.5}}',
    "S-API-09 no tokens": b'{"question": "a", "settings": {"max_tokens": 0}}',
    "S-API-09 many tokens": b'{"question": "a", "settings": {"max_tokens": 1000000000000}}',
    "a field twice": b'{"question": "a", "question": "b"}',
    "a setting twice": b'{"question": "a", "settings": {"max_tokens": 1, "max_tokens": 1}}',
    "the same name in two spellings": b'{"question": "a", "qu\\u0065stion": "b"}',
    "S-TOK-02 empty": b'{"question": ""}',
    "S-TOK-02 blanks": b'{"question": " \\n "}',
    "S-TOK-02 null": b'{"question": null}',
    "S-TOK-04 surrogate": b'{"question": "a \\ud800 b"}',
    "S-TOK-04 surrogate streamed": b'{"question": "a \\ud800 b", "stream": true}',
    "S-TOK-04 surrogate name": b'{"question": "a", "\\ud800": 1}',
    "S-LOR-03 no such adapter": b'{"question": "a", "settings": {"variant": "nope"}}',
    "S-SEC-06 path as variant": b'{"question": "a", "variant": "../../etc/x"}',
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies_that_are_refused(site, name):
    refused(site.raw("/v1/query", BODIES[name]))


@pytest.mark.parametrize("name", ["", "  ", ["cat", "dog"], None, {"a": 1}, [], 3])
def test_names_that_are_refused(site, name):
    """S-DET-06 and S-DET-08."""
    for route in ("detect", "point", "segment"):
        said = site.post(f"/v1/{route}", {"image_url": url(PNG), "object": name, "settings": SMALL})
        assert refused(said, "object")["param"] == "object"


@pytest.mark.parametrize("characters", [200, 100_000, 1_000_000])
def test_questions_that_do_not_fit(site, characters):
    """S-TOK-03, S-TOK-08: told with numbers, whatever the length."""
    said = site.post("/v1/query", {"question": "word " * (characters // 5), "stream": True})
    assert refused(said, "tokens")["type"] == "prompt_too_long"


@pytest.mark.parametrize("length", range(990, 1011, 4))
def test_text_cut_for_the_log(site, length):
    """S-TOK-07: characters of several bytes, wherever a message or a log line may be cut."""
    refused(site.post("/v1/query", {"question": "a" * length + "漢😀" * 20}))
    refused(site.post("/v1/query", {"question": "a", "a" * length + "漢😀": 1}), "not a field")
    assert site.ask("GET", "/" + "a" * length + "漢😀").status_code == 404


def test_a_request_id_of_the_clients_is_only_an_echo(site):
    """S-CON-09."""
    body = {"question": "Who?", "settings": SMALL}
    found = [site.ask("POST", "/v1/query", json=body, headers={"X-Request-Id": "mine"}) for _ in range(2)]
    assert [said.headers["x-request-id"] for said in found] == ["mine", "mine"]
    assert len({said.json()["request_id"] for said in found}) == 2
    odd = site.ask("POST", "/v1/query", json=body, headers={"X-Request-Id": 'a" b'})
    assert odd.headers["x-request-id"] == odd.json()["request_id"]


def test_other_types_than_json(site):
    """A page in a browser cannot post to a server on the same machine without asking first."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        said = site.ask("POST", "/v1/query", content=json.dumps({"question": "a"}), headers={"content-type": kind})
        refused(said, "application/json", status=415)


def test_a_packed_body(site):
    """Told what it is, not that its bytes are no text; nothing is unpacked."""
    data, headers = json.dumps({"question": "a", "settings": SMALL}).encode(), {"content-type": "application/json"}
    for coding in ("gzip", "br", "identity, deflate"):
        said = site.ask(
            "POST", "/v1/query", content=gzip.compress(data), headers=headers | {"content-encoding": coding}
        )
        refused(said, "Content-Encoding", status=415)
    plain = site.ask("POST", "/v1/query", content=data, headers=headers | {"content-encoding": "identity"})
    assert plain.status_code == 200


def test_a_name_that_is_there_twice_is_named_however_many_there_are():
    names = [b'"%d": 1' % n for n in range(MOST_COMMAS - 1)]
    with pytest.raises(InvalidRequest, match="'7' twice in one object") as caught:
        parse(b"{" + b",".join([*names, b'"7": 2']) + b"}")
    assert caught.value.param == "7"
    assert parse(b'[{"a": 1}, {"a": {"a": 2}}]') == [{"a": 1}, {"a": {"a": 2}}]


@pytest.mark.parametrize("value", [b"[]", b"1", b'{"a":1}', b'"a"'])
def test_a_body_of_very_many_values_is_refused_unread(value, monkeypatch):
    parse(b"[" + b",".join([value] * 100) + b"]")
    body = b"[" + b",".join([value] * (MOST_COMMAS + 2)) + b"]"
    monkeypatch.setattr(json, "loads", None)
    with pytest.raises(InvalidRequest, match="more than 50000 commas"):
        parse(body)
