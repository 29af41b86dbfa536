"""Schemas the way pydantic writes them: whatever a table lets a model say is an object of the class."""

import datetime
import enum
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, Literal
from uuid import UUID

import numpy as np
import pytest
from tests.constrain.walks import glint, walk

from gapless.constrain.grammar import Grammar, compile_grammar

pydantic = pytest.importorskip("pydantic")
Field = pydantic.Field


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Circle(pydantic.BaseModel):
    kind: Literal["circle"]
    radius: Annotated[float, Field(gt=0, le=10)]


class Box(pydantic.BaseModel):
    """A box, with a description."""

    kind: Literal["box"]
    corners: tuple[int, int, int, int]
    color: Color = Color.RED


class Scene(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    title: Annotated[str, Field(min_length=1, max_length=12, description="what it is called")]
    shapes: Annotated[list[Annotated[Circle | Box, Field(discriminator="kind")]], Field(max_length=3)]
    taken: datetime.date | None = None
    count: Annotated[int, Field(ge=0, multiple_of=5)] = 0
    id: UUID | None = None
    notes: dict[str, bool] = Field(default_factory=dict)


class Bill(pydantic.BaseModel):
    price: Annotated[float, Field(ge=0, le=1000, multiple_of=0.01)]
    tip: Annotated[float, Field(gt=0, lt=100, multiple_of=0.1)] | None


@pytest.mark.parametrize("model", [Circle, Box, Scene, Bill])
def test_what_a_table_allows_is_an_object_of_the_class(model):
    table, rng = compile_grammar(Grammar.json_schema(model.model_json_schema()), glint()), np.random.default_rng(5)
    for budget in range(5, 125, 24):
        text, _ = walk(table, glint().pieces, rng, budget)
        model.model_validate_json(text)


class Contact(pydantic.BaseModel):
    """Long bounds on formats, which say themselves how long they are, or are counted in their open parts alone."""

    site: pydantic.HttpUrl
    mail: Annotated[str, Field(min_length=3, max_length=254, json_schema_extra={"format": "email"})]
    short: Annotated[str, Field(max_length=180, json_schema_extra={"format": "uri"})]
    wait: datetime.timedelta
    address: IPv6Address | IPv4Address
    host: Annotated[str, Field(max_length=6, json_schema_extra={"format": "hostname"})]


def test_formats_of_a_bounded_length_have_tables_and_keep_their_bounds():
    schema = Contact.model_json_schema()
    schema["properties"]["host"] |= {"minLength": 4, "pattern": "a"}
    table, rng = compile_grammar(Grammar.json_schema(schema), glint()), np.random.default_rng(3)
    assert table.states < 4000
    lengths = []
    for budget in range(100, 700, 60):
        found = Contact.model_validate_json(walk(table, glint().pieces, rng, budget)[0])
        assert len(found.mail) <= 174 and len(found.short) <= 180 and 4 <= len(found.host) <= 6 and "a" in found.host
        lengths.append(len(found.short))
    assert max(lengths) > 30
