"""Answers as objects: what a caller's `schema` asks of the text, and the object that is made of it.

In: a JSON schema or a Pydantic model class. Out: the setting that rules the text, and at the end the value of the text:
what JSON says, or an instance of the class. Pydantic is not imported here: whoever passes such a class has it. An
answer that is not whole makes no object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, cast

from gapless.errors import InvalidRequest, UnreadableAnswer, shown
from gapless.skills.rules import RULES, rules_of
from gapless.skills.settings import Settings


class _ModelClass(Protocol):
    """What is used of a Pydantic model class."""

    __name__: str

    def model_json_schema(self) -> dict[str, Any]: ...

    def model_validate_json(self, text: str) -> Any: ...


class Shape:
    """What a `schema` is. `schema`: as JSON."""

    def __init__(self, schema: object) -> None:
        """Raises `InvalidRequest` for what is neither a schema nor such a class."""
        self._model: _ModelClass | None = None
        if isinstance(schema, Mapping):
            self.schema: Mapping[str, Any] = schema
        elif isinstance(schema, type) and hasattr(schema, "model_json_schema"):
            self._model = cast(_ModelClass, schema)
            self.schema = self._described(self._model)
        else:
            raise InvalidRequest(
                f"schema must be a JSON schema (a dict) or a Pydantic model class, not {shown(schema)}; of another "
                "type T, pydantic.RootModel[T] is such a class",
                param="schema",
            )

    def ruled(self, settings: Settings) -> Settings:
        """A caller's settings with the rule. Raises `InvalidRequest` for those that say otherwise."""
        for name in (*RULES, "stop"):
            if getattr(settings, name):
                raise InvalidRequest(f"schema says what the whole answer is; leave out the setting {name}", param=name)
        return replace(settings, json_schema=rules_of({"json_schema": self.schema})["json_schema"])

    def read(self, text: str, *, whole: bool) -> Any:
        """The object. Raises `UnreadableAnswer` for an answer that is not `whole`, or that the class itself refuses."""
        if not whole:
            raise UnreadableAnswer(
                f"the answer was cut off at max_tokens before it was a whole object: {shown(text)}; allow more tokens, "
                "or give a schema that has a table (gapless rule tells): its answers are always whole",
                answer=text,
            )
        try:
            return json.loads(text) if self._model is None else self._model.model_validate_json(text)
        except ValueError as error:  # pydantic's ValidationError is one too
            name = "JSON" if self._model is None else self._model.__name__
            raise UnreadableAnswer(f"the answer {shown(text)} is refused by {name}: {error}", answer=text) from error

    @staticmethod
    def _described(model: _ModelClass) -> dict[str, Any]:
        try:
            return model.model_json_schema()
        except Exception as error:  # pydantic's errors have no class that is known here
            raise InvalidRequest(
                f"the class {model.__name__} has no JSON schema: {error}; give a schema as a dict", param="schema"
            ) from error
