"""Everything that can be set about a server, in one model: flags, `GAPLESS_*` variables, a YAML file, defaults.

In: flags, the environment, and the file that one of them names. Out: `ServerSettings`, and from it the dataclasses of
the rooms. A flag wins over a variable, a variable over the file. An unknown name is an error, in a variable a warning:
others may call theirs GAPLESS_ too. A wrong value is told by the name under which it was given.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from gapless.api.shelf import adapter_path
from gapless.config import (
    GRAMMAR_MEMORY,
    GRAMMARS,
    PICTURE_CACHE,
    Constraints,
    DType,
    ImageLimits,
    KVDType,
    Opening,
    bytes_of,
    usable_cores,
)
from gapless.errors import InvalidRequest, shown
from gapless.serve.limits import LoopClock, RateLimit, RequestLimits

PREFIX = "GAPLESS_"
FLEET = "fleet"
"""In a file: settings of many engines, which `fleet` reads."""
CONFIG = "config"
FLAGS = {"model": "MODEL", "adapters": "--adapter", "ui": "--no-ui"}
"""Those that are not spelled as their setting."""
ELSEWHERE = (CONFIG, "cache")
"""Variables that are no settings: which file, and `config.cache_folder`."""
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+", re.IGNORECASE)
Seconds = Annotated[float, Field(gt=0, le=7 * 24 * 3600)]
Size = Annotated[int, Field(ge=1)]


class ServerSettings(BaseSettings):
    """One server. Fields that `gapless.load` has too mean the same; it checks them."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    model: str = "glint"
    device: str = "auto"
    dtype: DType = "auto"
    depth: int = 2
    graphs: bool = True
    max_rows: int | None = None
    page_size: int = 16
    pages: int | None = None
    constraints: Constraints = "device"
    threads: int | None = None
    revision: str | None = None
    process: bool = True
    adapters: Annotated[dict[str, str], NoDecode] = {}
    """Paths by name; in a variable NAME=PATH, separated by commas."""
    max_adapters: Size | None = None
    max_adapter_rank: Annotated[int, Field(ge=1, le=64)] | None = None
    max_context: Size | None = None
    kv_memory: int | None = None
    """Bytes; also a text like 8GB, see `config.bytes_of`."""
    prefix_cache: bool = True
    picture_cache_host: int = 0
    """Bytes, as `kv_memory`; 0: none."""
    max_step_ms: Annotated[float, Field(ge=0, le=60_000)] | None = None
    kv_dtype: KVDType = "auto"
    grammars: Annotated[int, Field(ge=0, le=1024)] = GRAMMARS
    grammar_memory: int = GRAMMAR_MEMORY
    """Bytes, as `kv_memory`."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 2020
    api_keys: Annotated[tuple[SecretStr, ...], NoDecode] = ()
    """Separated by commas. Better in the environment or a file than in a command line, which others can read."""
    api_keys_file: Path | None = None
    """One key a line; empty lines and those that begin with # are skipped."""

    ui: bool = True
    """The page for people at /."""
    cors_origins: Annotated[tuple[str, ...], NoDecode] = ()
    """Of pages whose scripts may ask from a browser; "*" is everybody's."""

    max_requests: Size = 128
    """Held at once, running and waiting; one more is told 429."""
    rate_limit: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Requests a second that one key may ask for; without keys, all together."""
    rate_burst: Size | None = None
    decode_threads: Annotated[int, Field(ge=1, le=256)] | None = None
    max_body_bytes: Size = 32 * 2**20
    max_pixels: Size = 100_000_000
    max_pictures: Size = 8
    picture_cache: int = PICTURE_CACHE
    """Bytes, as `kv_memory`; 0: none."""
    header_timeout: Seconds = 10.0
    body_timeout: Seconds = 30.0
    request_timeout: Seconds = 300.0
    send_timeout: Seconds = 30.0
    drain_timeout: Annotated[float, Field(ge=0, le=24 * 3600)] = 30.0

    @field_validator("api_keys", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Keys that were meant to be there and are not must not open the server to everybody. (): none were meant."""
        keys = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        if keys is None or (isinstance(keys, list | tuple) and not all(keys)) or keys == []:
            raise ValueError("holds no key; give one, or leave the setting out to serve everybody")
        return keys

    @field_validator("cors_origins", mode="before")
    @classmethod
    def _origins(cls, value: Any) -> Any:
        """As a browser sends them: it compares letter by letter."""
        origins = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        for origin in origins if isinstance(origins, list | tuple) else ():
            if not isinstance(origin, str) or not (origin == "*" or _ORIGIN.fullmatch(origin)):
                raise ValueError(f"{shown(origin)} is not * or like https://example.org:8443, with nothing behind it")
        return origins

    @field_validator("kv_memory", mode="before")
    @classmethod
    def _bytes(cls, value: Any) -> Any:
        return None if value is None else bytes_of(value)

    @field_validator("picture_cache", "picture_cache_host", "grammar_memory", mode="before")
    @classmethod
    def _bytes_or_none(cls, value: Any) -> Any:
        return bytes_of(value, 0)

    @field_validator("adapters", mode="before")
    @classmethod
    def _pairs(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        words = [word.strip().partition("=") for word in value.split(",") if word.strip()]
        if not all(name and path for name, _, path in words):
            raise ValueError("write NAME=PATH, separated by commas")
        return {name: path for name, _, path in words}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, variables, file. The file comes in beside the flags, under a name that is no field."""
        flags = dict(init_settings())
        file = flags.pop(CONFIG, {})
        return InitSettingsSource(settings_cls, flags), env_settings, InitSettingsSource(settings_cls, file)

    def opening(self) -> Opening:
        """Which model, and how it is put to work."""
        named = tuple((name, adapter_path(path)) for name, path in self.adapters.items())
        return Opening(**{field.name: getattr(self, field.name) for field in fields(Opening)} | {"adapters": named})

    def threads_for_pictures(self) -> int:
        """How many threads read pictures and text."""
        return self.decode_threads or min(8, usable_cores())

    def rate(self) -> RateLimit | None:
        """What one key may ask for; None: anything."""
        if self.rate_limit is None:
            return None
        return RateLimit(self.rate_limit, self.rate_burst or max(1, math.ceil(self.rate_limit)), LoopClock())

    def image_limits(self) -> ImageLimits:
        """What a picture may be."""
        return ImageLimits(max_pixels=self.max_pixels, max_bytes=self.max_body_bytes)

    def request_limits(self) -> RequestLimits:
        """What a request may be."""
        return RequestLimits(
            self.max_body_bytes, self.body_timeout, self.request_timeout, self.send_timeout, self.max_pictures
        )

    def keys(self) -> tuple[str, ...]:
        """All keys; none means that nobody is asked for one. Raises `InvalidRequest` for a file without any."""
        keys = tuple(key.get_secret_value() for key in self.api_keys)
        if self.api_keys_file is None:
            return keys
        lines = [line.strip() for line in _text(self.api_keys_file, "api_keys_file").splitlines()]
        found = tuple(line for line in lines if line and not line.startswith("#"))
        if not found:
            raise InvalidRequest(f"{self.api_keys_file} holds no key; write one a line", param="api_keys_file")
        return keys + found


def read_settings(flags: Mapping[str, Any], config: Path | None = None, beside: str | None = None) -> ServerSettings:
    """Put the sources together. `config`: the YAML file; None: the one that GAPLESS_CONFIG names, if it does.
    `beside`: a name in the file that is not for here, see `read_beside`.

    Raises `InvalidRequest` naming the setting as it was given, and its value; `param` is the setting.
    """
    path = config or _named_file()
    file = {} if path is None else _mapping(path)
    if beside is not None:
        file.pop(beside, None)
    try:
        given: dict[str, Any] = dict(flags) | ({CONFIG: file} if path is not None else {})
        return ServerSettings(**given)
    except ValidationError as error:
        raise _wrong(error, flags, path) from error
    except SettingsError as error:
        raise InvalidRequest(f"a {PREFIX} variable cannot be read: {error}") from error


def read_beside(name: str, config: Path | None = None) -> Any:
    """What the file that `read_settings` reads has under a name that is no setting of a server; None: nothing."""
    path = config or _named_file()
    return None if path is None else _mapping(path).get(name)


def unknown_variables() -> list[str]:
    """Lines about variables that look like settings and are none, each with the nearest name there is."""
    known = {*ServerSettings.model_fields, *ELSEWHERE}
    lines = []
    for variable in sorted(os.environ):
        name = variable.lower().removeprefix(PREFIX.lower())
        if variable.upper().startswith(PREFIX) and name not in known:
            near = _nearest(name, known)
            meant = f"; did you mean {PREFIX}{near.upper()}?" if near else ""
            lines.append(f"the variable {variable} is no setting and is passed over{meant}")
    return lines


def _named_file() -> Path | None:
    named = os.environ.get(PREFIX + CONFIG.upper())
    return Path(named) if named else None


def _nearest(name: str, known: Collection[str]) -> str | None:
    return next(iter(get_close_matches(name, sorted(known), 1)), None)


def _wrong(error: ValidationError, flags: Mapping[str, Any], file: Path | None) -> InvalidRequest:
    found = error.errors(include_url=False)[0]
    name = str(found["loc"][0]) if found["loc"] else "settings"
    if found["type"] == "extra_forbidden":
        known = ServerSettings.model_fields
        near = _nearest(name, known)
        remedy = f"did you mean {near}?" if near else f"there are {', '.join(known)}"
        if name == FLEET:
            remedy = "one server has no fleet; give --ray too, or take it out"
        where = "" if name in flags or file is None else f"{file}: "
        return InvalidRequest(f"{where}there is no setting {shown(name)}; {remedy}", param=name)
    value = "" if name == "api_keys" else f"; got {shown(found['input'])}"
    said = found["msg"].removeprefix("Value error, ")
    return InvalidRequest(f"{_origin(name, flags, file)}: {said[:1].lower()}{said[1:]}{value}", param=name)


def _origin(name: str, flags: Mapping[str, Any], file: Path | None) -> str:
    """How a setting was spelled by whoever set it."""
    if name in flags:
        return FLAGS.get(name, f"--{name.replace('_', '-')}")
    variable = PREFIX + name.upper()
    return variable if variable in map(str.upper, os.environ) else f"{name} in {file}"


def _mapping(path: Path) -> dict[str, Any]:
    """The file's settings. A file of keys that it names lies beside it, unless its path is whole."""
    try:
        found = yaml.safe_load(_text(path, "--config or GAPLESS_CONFIG"))
    except yaml.YAMLError as error:
        raise InvalidRequest(f"{path} is not YAML: {error}", param=CONFIG) from error
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise InvalidRequest(f"{path} must hold settings, one a line, like port: 2020", param=CONFIG)
    if isinstance(keys := found.get("api_keys_file"), str):
        found["api_keys_file"] = path.parent / keys
    return found


def _text(path: Path, named_by: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidRequest(f"cannot read {path}: {reason}; {named_by} must name a file that can be read") from error
