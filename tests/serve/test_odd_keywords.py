"""Every keyword of JSON schemas with every kind of value, over HTTP: honoured or refused by name, never a failure."""

import asyncio
import json

import jsonschema
import pytest
from tests.api.walking import walking
from tests.serve.conftest import Site

from gapless.constrain import keywords

KEYWORDS = sorted(
    {*keywords.ANNOTATIONS, *keywords.COMBINING, *keywords._GENERAL, *keywords._ABOUT, *keywords._NO_TABLE}
    | {"$id", "$anchor", "$dynamicRef", "contentEncoding", "minContains", "strange", "x-own"}
)
VALUES = [
    None,
    True,
    -1,
    0.5,
    3,
    1e300,
    "a",
    "(",
    "#/x",
    [],
    [1],
    ["a"],
    [{}],
    [None],
    {},
    {"a": 1},
    {"a": {"type": "null"}},
]
AT_ONCE = 8


async def asked(client, keyword, value):
    """The answer to one schema; what it says if it was refused."""
    schema = {keyword: value}
    form = {"type": "json_schema", "json_schema": {"name": "odd", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "What?"}], "max_tokens": 300, "response_format": form}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code in (200, 400), (schema, answer.text)
    if answer.status_code == 400:
        error = answer.json()["error"]
        assert error["param"] == "response_format" and len(error["message"]) < 600, (schema, error)
        assert not any(word in error["message"] for word in ("Traceback", ".py", "Error(", "compiling failed")), error
        return error["message"]
    text = answer.json()["choices"][0]["message"]["content"]
    if keyword not in (
        "nullable",
        "items",
        "id",
        "$id",
    ):  # of other drafts, which may also say what 2020-12 does not allow
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    return None


@pytest.mark.slow
@pytest.mark.parametrize("keyword", KEYWORDS)
def test_any_value_of_any_keyword_is_honoured_or_refused(site_of_walks, keyword):
    async def all_of_them():
        async with site_of_walks.client() as client:
            room = asyncio.Semaphore(AT_ONCE)

            async def one(value):
                async with room:
                    return await asked(client, keyword, value)

            return await asyncio.gather(*map(one, VALUES[:3] if keyword in keywords._HINTS else VALUES))

    told = asyncio.run(all_of_them())
    if keyword in keywords._NO_TABLE or keyword in ("strange", "$anchor", "$dynamicRef"):
        assert all(said is not None and f'"{keyword}" at #/' in said for said in told), told


@pytest.fixture(scope="module")
def site_of_walks():
    with walking() as vlm:
        yield Site(vlm)
