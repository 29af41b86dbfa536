"""The skills as commands. Each turns its words and options into an `Ask` and hands it to `answer`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from gapless.bench.asks import Ask
from gapless.cli.answer import answer
from gapless.cli.likely_options import (
    BannedOption,
    FrequencyOption,
    LogitBiasOption,
    MinTokensOption,
    PresenceOption,
    RepetitionOption,
    likely_from,
)
from gapless.cli.options import (
    AdapterOption,
    DepthOption,
    DeviceOption,
    DrawOption,
    DTypeChoice,
    DTypeOption,
    Engine,
    FaceOption,
    ForceOption,
    GazeSeedOption,
    GraphsOption,
    JsonOption,
    KVDTypeChoice,
    KVDTypeOption,
    KvMemoryOption,
    LengthChoice,
    LengthOption,
    LogprobsOption,
    MaxContextOption,
    MaxObjectsOption,
    MaxRowsOption,
    MaxStepOption,
    MaxTokensOption,
    ModelOption,
    Output,
    PagesOption,
    PrefixCacheOption,
    ReasoningOption,
    SeedOption,
    SpatialRefOption,
    StopOption,
    StreamOption,
    Switch,
    TemperatureOption,
    TimeoutOption,
    TopPOption,
    UseAdapterOption,
    check_scored,
    checked_settings,
    chosen_adapter,
    gaze_from,
    read_adapters,
    spatial_refs,
)
from gapless.cli.rule_options import ChoiceOption, JsonObjectOption, RegexOption, SchemaOption, rule_from
from gapless.cli.words import check_words, read_pictures

Pictures = Annotated[list[str] | None, typer.Argument(metavar="IMG", help="Pictures; - is standard input.")]
QUESTION: str = typer.Argument(..., metavar="QUESTION", help="What you want to know, in quotes.")
OBJECT: str = typer.Argument(..., metavar="OBJECT", help="What to look for, in quotes if it is several words.")

PICTURE: str = typer.Argument(..., metavar="IMG", help="The picture; - is standard input.")
EYE_X: float | None = typer.Argument(None, metavar="[X]", help="The eye, from 0 (left) to 1 of the width.")
EYE_Y: float | None = typer.Argument(None, metavar="[Y]", help="The eye, from 0 (top) to 1 of the height.")

DEFAULT_MODEL, DEFAULT_DEVICE, DEFAULT_DEPTH = "glint", "auto", 2


def query(
    pictures: Pictures = None,
    question: str = QUESTION,
    reasoning: ReasoningOption = False,
    spatial_ref: SpatialRefOption = None,
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    top_p: TopPOption = None,
    seed: SeedOption = None,
    stop: StopOption = None,
    logprobs: LogprobsOption = None,
    choice: ChoiceOption = None,
    regex: RegexOption = None,
    schema: SchemaOption = None,
    json_object: JsonObjectOption = False,
    repetition: RepetitionOption = None,
    presence: PresenceOption = None,
    frequency: FrequencyOption = None,
    min_tokens: MinTokensOption = None,
    banned: BannedOption = None,
    logit_bias: LogitBiasOption = None,
    stream: StreamOption = False,
    json: JsonOption = False,
    draw: DrawOption = None,
    model: ModelOption = DEFAULT_MODEL,
    device: DeviceOption = DEFAULT_DEVICE,
    dtype: DTypeOption = DTypeChoice.AUTO,
    depth: DepthOption = DEFAULT_DEPTH,
    graphs: GraphsOption = Switch.ON,
    max_rows: MaxRowsOption = None,
    pages: PagesOption = None,
    kv_memory: KvMemoryOption = None,
    kv_dtype: KVDTypeOption = KVDTypeChoice.AUTO,
    max_context: MaxContextOption = None,
    prefix_cache: PrefixCacheOption = Switch.ON,
    max_step_ms: MaxStepOption = None,
    adapter: AdapterOption = None,
    use_adapter: UseAdapterOption = None,
    timeout: TimeoutOption = None,
) -> int:
    """Answer a question about each picture, or a question without a picture."""
    check_words(pictures or [], question, "question")
    adapters = read_adapters(adapter)
    settings = checked_settings(
        adapter=chosen_adapter(adapters, use_adapter),
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        stop=stop,
        logprobs=logprobs,
        timeout=timeout,
    ) | likely_from(repetition, presence, frequency, min_tokens, banned, logit_bias, max_tokens)
    rule = rule_from(choice, regex, schema, json_object)
    output = Output(json, draw, stream)
    check_scored(logprobs, output)
    shape = rule.pop("json_schema", None)
    ask = Ask("query", question, settings | rule, reasoning, spatial_refs(spatial_ref), schema=shape)
    sizes = max_rows, pages, adapters, kv_memory, max_context, prefix_cache, kv_dtype, max_step_ms
    return answer(ask, read_pictures(pictures or []), Engine(model, device, dtype, depth, graphs, *sizes), output)


def caption(
    pictures: Pictures = None,
    length: LengthOption = LengthChoice.NORMAL,
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    top_p: TopPOption = None,
    seed: SeedOption = None,
    stop: StopOption = None,
    logprobs: LogprobsOption = None,
    choice: ChoiceOption = None,
    regex: RegexOption = None,
    schema: SchemaOption = None,
    json_object: JsonObjectOption = False,
    repetition: RepetitionOption = None,
    presence: PresenceOption = None,
    frequency: FrequencyOption = None,
    min_tokens: MinTokensOption = None,
    banned: BannedOption = None,
    logit_bias: LogitBiasOption = None,
    stream: StreamOption = False,
    json: JsonOption = False,
    draw: DrawOption = None,
    model: ModelOption = DEFAULT_MODEL,
    device: DeviceOption = DEFAULT_DEVICE,
    dtype: DTypeOption = DTypeChoice.AUTO,
    depth: DepthOption = DEFAULT_DEPTH,
    graphs: GraphsOption = Switch.ON,
    max_rows: MaxRowsOption = None,
    pages: PagesOption = None,
    kv_memory: KvMemoryOption = None,
    kv_dtype: KVDTypeOption = KVDTypeChoice.AUTO,
    max_context: MaxContextOption = None,
    prefix_cache: PrefixCacheOption = Switch.ON,
    max_step_ms: MaxStepOption = None,
    adapter: AdapterOption = None,
    use_adapter: UseAdapterOption = None,
    timeout: TimeoutOption = None,
) -> int:
    """Describe each picture."""
    adapters = read_adapters(adapter)
    settings = checked_settings(
        adapter=chosen_adapter(adapters, use_adapter),
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        stop=stop,
        logprobs=logprobs,
        timeout=timeout,
    )
    settings |= likely_from(repetition, presence, frequency, min_tokens, banned, logit_bias, max_tokens)
    output = Output(json, draw, stream)
    check_scored(logprobs, output)
    ask = Ask("caption", length.value, settings | rule_from(choice, regex, schema, json_object))
    sizes = max_rows, pages, adapters, kv_memory, max_context, prefix_cache, kv_dtype, max_step_ms
    engine = Engine(model, device, dtype, depth, graphs, *sizes)
    return answer(ask, read_pictures(_some(pictures)), engine, output)


def point(
    pictures: Pictures = None,
    object: str = OBJECT,
    spatial_ref: SpatialRefOption = None,
    max_objects: MaxObjectsOption = None,
    max_tokens: MaxTokensOption = None,
    json: JsonOption = False,
    draw: DrawOption = None,
    model: ModelOption = DEFAULT_MODEL,
    device: DeviceOption = DEFAULT_DEVICE,
    dtype: DTypeOption = DTypeChoice.AUTO,
    depth: DepthOption = DEFAULT_DEPTH,
    graphs: GraphsOption = Switch.ON,
    max_rows: MaxRowsOption = None,
    pages: PagesOption = None,
    kv_memory: KvMemoryOption = None,
    kv_dtype: KVDTypeOption = KVDTypeChoice.AUTO,
    max_context: MaxContextOption = None,
    prefix_cache: PrefixCacheOption = Switch.ON,
    max_step_ms: MaxStepOption = None,
    adapter: AdapterOption = None,
    use_adapter: UseAdapterOption = None,
    timeout: TimeoutOption = None,
) -> int:
    """Find the middle of each object of a kind."""
    check_words(pictures or [], object, "object")
    adapters = read_adapters(adapter)
    settings = checked_settings(
        adapter=chosen_adapter(adapters, use_adapter), max_objects=max_objects, max_tokens=max_tokens, timeout=timeout
    )
    ask = Ask("point", object, settings, spatial_refs=spatial_refs(spatial_ref))
    sizes = max_rows, pages, adapters, kv_memory, max_context, prefix_cache, kv_dtype, max_step_ms
    engine = Engine(model, device, dtype, depth, graphs, *sizes)
    return answer(ask, read_pictures(_some(pictures)), engine, Output(json, draw))


def detect(
    pictures: Pictures = None,
    object: str = OBJECT,
    max_objects: MaxObjectsOption = None,
    max_tokens: MaxTokensOption = None,
    json: JsonOption = False,
    draw: DrawOption = None,
    model: ModelOption = DEFAULT_MODEL,
    device: DeviceOption = DEFAULT_DEVICE,
    dtype: DTypeOption = DTypeChoice.AUTO,
    depth: DepthOption = DEFAULT_DEPTH,
    graphs: GraphsOption = Switch.ON,
    max_rows: MaxRowsOption = None,
    pages: PagesOption = None,
    kv_memory: KvMemoryOption = None,
    kv_dtype: KVDTypeOption = KVDTypeChoice.AUTO,
    max_context: MaxContextOption = None,
    prefix_cache: PrefixCacheOption = Switch.ON,
    max_step_ms: MaxStepOption = None,
    adapter: AdapterOption = None,
    use_adapter: UseAdapterOption = None,
    timeout: TimeoutOption = None,
) -> int:
    """Find a box around each object of a kind."""
    check_words(pictures or [], object, "object")
    adapters = read_adapters(adapter)
    settings = checked_settings(
        adapter=chosen_adapter(adapters, use_adapter), max_objects=max_objects, max_tokens=max_tokens, timeout=timeout
    )
    ask = Ask("detect", object, settings)
    sizes = max_rows, pages, adapters, kv_memory, max_context, prefix_cache, kv_dtype, max_step_ms
    engine = Engine(model, device, dtype, depth, graphs, *sizes)
    return answer(ask, read_pictures(_some(pictures)), engine, Output(json, draw))


def segment(
    pictures: Pictures = None,
    object: str = OBJECT,
    spatial_ref: SpatialRefOption = None,
    max_tokens: MaxTokensOption = None,
    stream: StreamOption = False,
    json: JsonOption = False,
    draw: DrawOption = None,
    model: ModelOption = DEFAULT_MODEL,
    device: DeviceOption = DEFAULT_DEVICE,
    dtype: DTypeOption = DTypeChoice.AUTO,
    depth: DepthOption = DEFAULT_DEPTH,
    graphs: GraphsOption = Switch.ON,
    max_rows: MaxRowsOption = None,
    pages: PagesOption = None,
    kv_memory: KvMemoryOption = None,
    kv_dtype: KVDTypeOption = KVDTypeChoice.AUTO,
    max_context: MaxContextOption = None,
    prefix_cache: PrefixCacheOption = Switch.ON,
    max_step_ms: MaxStepOption = None,
    adapter: AdapterOption = None,
    use_adapter: UseAdapterOption = None,
    timeout: TimeoutOption = None,
) -> int:
    """Outline one object: its box, and an SVG path inside the box."""
    check_words(pictures or [], object, "object")
    adapters = read_adapters(adapter)
    settings = checked_settings(adapter=chosen_adapter(adapters, use_adapter), max_tokens=max_tokens, timeout=timeout)
    ask = Ask("segment", object, settings, spatial_refs=spatial_refs(spatial_ref))
    sizes = max_rows, pages, adapters, kv_memory, max_context, prefix_cache, kv_dtype, max_step_ms
    engine = Engine(model, device, dtype, depth, graphs, *sizes)
    return answer(ask, read_pictures(_some(pictures)), engine, Output(json, draw, stream))


def gaze(
    picture: str = PICTURE,
    x: float | None = EYE_X,
    y: float | None = EYE_Y,
    face: FaceOption = None,
    force: ForceOption = False,
    seed: GazeSeedOption = None,
    json: JsonOption = False,
    draw: DrawOption = None,
    model: ModelOption = DEFAULT_MODEL,
    device: DeviceOption = DEFAULT_DEVICE,
    dtype: DTypeOption = DTypeChoice.AUTO,
    depth: DepthOption = DEFAULT_DEPTH,
    graphs: GraphsOption = Switch.ON,
    max_rows: MaxRowsOption = None,
    pages: PagesOption = None,
    kv_memory: KvMemoryOption = None,
    kv_dtype: KVDTypeOption = KVDTypeChoice.AUTO,
    max_context: MaxContextOption = None,
    prefix_cache: PrefixCacheOption = Switch.ON,
    max_step_ms: MaxStepOption = None,
    adapter: AdapterOption = None,
    use_adapter: UseAdapterOption = None,
    timeout: TimeoutOption = None,
) -> int:
    """Find where a person looks: their eye is at X Y, or somewhere in --face. The bundled model never learned it."""
    place = gaze_from(x, y, face)
    adapters = read_adapters(adapter)
    settings = checked_settings(adapter=chosen_adapter(adapters, use_adapter), seed=seed, timeout=timeout)
    ask = Ask("gaze", "gaze", settings, spatial_refs=[place], force=force)
    sizes = max_rows, pages, adapters, kv_memory, max_context, prefix_cache, kv_dtype, max_step_ms
    engine = Engine(model, device, dtype, depth, graphs, *sizes)
    return answer(ask, read_pictures([picture]), engine, Output(json, draw))


def _some(pictures: list[str] | None) -> list[str]:
    if not pictures:
        raise typer.BadParameter("which picture? Name a file, or - for standard input")
    return pictures


COMMANDS: dict[str, Callable[..., int]] = {
    "query": query,
    "caption": caption,
    "point": point,
    "detect": detect,
    "segment": segment,
    "gaze": gaze,
}
