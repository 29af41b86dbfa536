"""Requests that no client should send, from a seed: bodies, pictures, encodings, lengths, chunks, headers gone wrong.

Some turn out to be good after all: a picture may survive a changed byte. What none may do is hurt the server."""

import base64
import io
import json
import random
import zlib

import numpy as np
from PIL import Image
from tests.serve.raw_http import post

ROUTES = {"query": "question", "caption": "length", "detect": "object", "point": "object", "segment": "object"}
CHAT = "chat/completions"
FEW = {"max_tokens": 1, "temperature": 0}


def _pictures():
    pixels = np.random.default_rng(1).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    found = {}
    for kind, options in [
        ("PNG", {}),
        ("JPEG", {}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("GIF", {}),
        ("BMP", {}),
    ]:
        data = io.BytesIO()
        Image.fromarray(pixels).save(data, kind, **options)
        found[f"{kind}{len(found)}"] = data.getvalue()
    return found


PICTURES = _pictures()


def url(data):
    return "data:image/png;base64," + base64.b64encode(data).decode()


def good(rng, route=None):
    """A route and a body that it takes."""
    route = route or rng.choice([*ROUTES, CHAT])
    if route == CHAT:
        return route, chat(rng, url(rng.choice(list(PICTURES.values()))))
    body = {"image_url": url(rng.choice(list(PICTURES.values()))), "settings": dict(FEW)}
    body[ROUTES[route]] = "short" if route == "caption" else "a thing"
    if route in ("query", "caption", "segment"):
        body["stream"] = rng.random() < 0.3
    return route, body


def chat(rng, picture):
    """A body of OpenAI's route."""
    parts = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": picture}}]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    return {"messages": messages, "stream": rng.random() < 0.3, "n": 1, "stop": ["x"]} | FEW


def picture_of(body, picture):
    """Put a picture where a body has its."""
    if "messages" in body:
        body["messages"][-1]["content"][-1]["image_url"]["url"] = picture
    else:
        body["image_url"] = picture


def hostile(seed):
    """The bytes of one request, and its kind."""
    rng = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    return kind(rng), kind.__name__


# -- bodies ----------------------------------------------------------------------------------------------------------


def mutated_json(rng):
    route, body = good(rng)
    if rng.random() < 0.7:
        picture_of(body, "AAAA")
    return post(f"/v1/{route}", mutated(rng, json.dumps(body).encode(), most=6))


def wrong_types(rng):
    route, body = good(rng)
    for _ in range(rng.randrange(1, 3)):
        target = rng.choice([body, *places(body)])
        if isinstance(target, list):
            target[rng.randrange(len(target))] = junk(rng)
        else:
            target[rng.choice([*target, "seed", "top_p", "max_objects", "spatial_refs", "reasoning", "odd"])] = junk(
                rng
            )
    return post(f"/v1/{route}", json.dumps(body).encode())


def places(value):
    """All lists and objects inside a value that hold something."""
    inner = list(value.values()) if isinstance(value, dict) else value
    found = [one for one in inner if isinstance(one, dict | list) and one]
    return found + [deeper for one in found for deeper in places(one)]


def junk(rng, depth=0):
    """Any JSON value, and some that are none."""
    plain = [
        None,
        True,
        False,
        0,
        -1,
        2**31,
        2**63,
        -(2**70),
        1e308,
        -0.0,
        1e-320,
        "",
        " ",
        "\x00",
        "\ud800",
        "漢" * 99,
    ]
    plain += ["NaN", [], {}, float("nan"), float("inf"), int("9" * 400), "http://127.0.0.1/", "../../x", "'; --", 0.5]
    if depth < 3 and rng.random() < 0.3:
        inner = [junk(rng, depth + 1) for _ in range(rng.randrange(4))]
        return inner if rng.random() < 0.5 else {str(i): one for i, one in enumerate(inner)}
    return rng.choice(plain)


def long_numbers(rng):
    digits = rng.choice([b"9" * 4301, b"1e400", b"-1e-400", b"0x10", b"1_000", b"01", b"+1", b"1e", b".5", b"9" * 50])
    name = rng.choice([b"temperature", b"max_tokens", b"seed", b"top_p", b"timeout", b"max_objects"])
    return post("/v1/query", b'{"question": "a", "settings": {"max_tokens": 1, "' + name + b'": ' + digits + b"}}")


def deep(rng):
    levels, opening, closing = rng.randrange(50, 60_000), *rng.choice([(b"[", b"]"), (b'{"a":', b"}")])
    inner = opening * levels + b"1" + closing * (levels if rng.random() < 0.7 else levels // 2)
    return post("/v1/query", rng.choice([inner, b'{"question": ' + inner + b"}", b'{"settings": ' + inner + b"}"]))


def other_encodings(rng):
    route, body = good(rng)
    picture_of(body, "é漢😀")
    text = json.dumps(body, ensure_ascii=False)
    coded = rng.choice(["utf-16", "utf-32", "utf-8-sig", "utf-7", "cp1252", "shift_jis", "utf-16-be"])
    data = text.encode(coded, "replace")
    return post(f"/v1/{route}", zlib.compress(data) if rng.random() < 0.2 else data)


def no_json(rng):
    return post(f"/v1/{rng.choice([*ROUTES, CHAT])}", rng.randbytes(rng.choice([0, 1, 7, 400, 9000])))


# -- pictures --------------------------------------------------------------------------------------------------------


def cut_pictures(rng):
    data = rng.choice(list(PICTURES.values()))
    return with_picture(rng, url(data[: rng.randrange(len(data))]))


def changed_pictures(rng):
    return with_picture(rng, url(mutated(rng, rng.choice(list(PICTURES.values())), most=12)))


def changed_headers(rng):
    """Only the first bytes, where sizes and kinds stand."""
    data = rng.choice(list(PICTURES.values()))
    return with_picture(rng, url(mutated(rng, data[:40], most=4) + data[40:]))


def broken_base64(rng):
    text = url(rng.choice(list(PICTURES.values())))
    return with_picture(rng, mutated(rng, text.encode(), most=5).decode("latin-1"))


def with_picture(rng, text):
    route, body = good(rng)
    picture_of(body, text)
    return post(f"/v1/{route}", body)


# -- lengths, chunks, headers ----------------------------------------------------------------------------------------


def wrong_lengths(rng):
    route, body = good(rng)
    picture_of(body, "AAAA")
    data = json.dumps(body).encode()
    length = rng.choice([0, 1, len(data) - 1, -1, "a", "", 2**70, 10**9, f"{len(data)}, {len(data)}", " 5 5"])
    return post(f"/v1/{route}", data, Content_Length=length)


def chunks(rng):
    _, body = good(rng, "query")
    picture_of(body, "AAAA")
    data = json.dumps(body).encode()
    at = rng.randrange(len(data))
    sizes = [f"{len(part):{rng.choice(['x', 'X', '08x'])}}" for part in (data[:at], data[at:])]
    wrong = rng.choice([None, None, "-1", "g", "ffffffffffffffff", "", "5;a=b"])
    sizes[1] = sizes[1] if wrong is None else wrong
    end = rng.choice([b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b""])
    chunked = b"".join(
        size.encode() + b"\r\n" + part + b"\r\n" for size, part in zip(sizes, (data[:at], data[at:]), strict=True)
    )
    both = rng.random() < 0.2
    return post("/v1/query", chunked + end, Content_Length=len(data) if both else None, Transfer_Encoding="chunked")


def odd_headers(rng):
    route, body = good(rng)
    picture_of(body, "AAAA")
    name, value = rng.choice(
        [
            ("X_A", "b" * 70_000),
            ("Content_Type", rng.choice(["", "text/plain", "application/json; charset=utf-16", "APPLICATION/JSON"])),
            ("X_Request_Id", rng.choice(['"', "é", "a" * 4000, "../..", "\x7f"])),
            ("Authorization", rng.choice(["Bearer", "Bearer " + "a" * 9000, "Basic é:é", "\t"])),
            ("Expect", "100-continue"),
            ("Host", rng.choice(["", "a b", "evil.test:99999"])),
            ("Connection", rng.choice(["Upgrade", "close, close", "keep-alive, é"])),
            ("Content_Encoding", rng.choice(["gzip", "br", "x"])),
            ("Transfer_Encoding", rng.choice(["gzip", "chunked, gzip", "identity"])),
            ("X-A\r\nX-B", "c"),
            ("Bad Name", "c"),
            ("X_N", "a\x00b"),
        ]
    )
    return post(f"/v1/{route}", json.dumps(body).encode(), **{name: value})


def odd_lines(rng):
    method = rng.choice(["GET", "POST", "PUT", "TRACE", "CONNECT", "G\x00T", "", "post", "A" * 9000])
    path = rng.choice(
        ["/v1/query", "*", "", "//", "/%00", "/v1/../../etc/passwd", "/\xff", "http://a/b", "/" + "a" * 20_000]
    )
    version = rng.choice(["HTTP/1.1", "HTTP/1.0", "HTTP/9.9", "HTTP/2.0", "FTP", ""])
    return f"{method} {path} {version}\r\nHost: a\r\nContent-Length: 0\r\n\r\n".encode("latin-1")


def no_http(rng):
    start = rng.choice(
        [b"\x16\x03\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\r\n\r\n", b"POST /v1/query HTTP/1.1\r\n"]
    )
    return start + rng.randbytes(rng.randrange(200))


def mutated(rng, data, most):
    """Bytes changed, taken out, put in, doubled."""
    data = bytearray(data)
    for _ in range(rng.randrange(1, most + 1)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at : at + rng.choice([1, 1, 4, 30])]
            case 2:
                data[at:at] = rng.choice([b'"', b"{", b"\\", b"\x00", b"\xff", b"9" * 9, b"\\u", rng.randbytes(3)])
            case 3:
                data[at:at] = data[at : at + rng.randrange(1, 40)]
            case _:
                data[at : at + 1] = rng.randbytes(1)
    return bytes(data)


KINDS = [
    *(mutated_json, wrong_types, long_numbers, deep, other_encodings, no_json),
    *(cut_pictures, changed_pictures, changed_headers, broken_base64, changed_pictures),
    *(wrong_lengths, chunks, odd_headers, odd_lines, no_http),
]
CUT_OFF = ("wrong_lengths", "chunks", "odd_headers", "odd_lines", "no_http")
"""Kinds of which some never end: the client leaves when nothing comes back."""
