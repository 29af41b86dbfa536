"""The values that travel between rooms: frozen dataclasses and small protocols, no torch.

A `Request` goes down (api -> engine), a `Step` goes down (engine -> device), an `Arrival` comes back up as the return
value of `Device.wait`, and `Emission`s and `Talk` come back up as the return value of `Book.take_news`. Nothing here
knows how any of it is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Protocol

from gapless.columns import Flags, Ints, Mask, Records, RowRecord, RowRef, Rows, Token
from gapless.host_grammar import HostGrammar
from gapless.prompt import Crops, Inset, Look, Picture, Prompt
from gapless.sampling import MAX_BIASED, MAX_TOP_LOGPROBS, Adjustment, Sampling
from gapless.token_table import TokenTable

__all__ = [
    "MAX_BIASED",
    "MAX_TOP_LOGPROBS",
    "POISON",
    "Adapter",
    "Adjustment",
    "Arrival",
    "Clock",
    "Crops",
    "DeviceLimits",
    "DeviceSpan",
    "Emission",
    "Finish",
    "FinishReason",
    "Flags",
    "GrammarLoad",
    "HostGrammar",
    "HostPlace",
    "Inset",
    "Ints",
    "Lane",
    "Look",
    "Mask",
    "Metrics",
    "PageGrant",
    "Picture",
    "Prefill",
    "Prompt",
    "Records",
    "Request",
    "RowRecord",
    "RowRef",
    "RowStart",
    "Rows",
    "Sampling",
    "Step",
    "StepKind",
    "Talk",
    "Token",
    "TokenTable",
    "ValueHead",
]

POISON = -1
"""What unread landing buffers and handed-over token cells hold in tests and rehearsals; never a legal value."""


class ValueHead(IntEnum):
    """Which head gives the value that rides on a sampled token."""

    NONE = 0
    COORD = 1
    SIZE = 2


class FinishReason(StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """A LoRA adapter, ready for a slot of the device. What is loaded under one name has a version each time.

    `weights` is what its model made of the file; only the model looks inside.
    """

    name: str
    version: int
    weights: object

    @property
    def key(self) -> str:
        """Tells it apart from all others, and from what was loaded under its name before or after."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class Request:
    """One question, ready for the engine. `id` is the engine's own and never reused; `program` names its rule.

    `host_masked`: the masks of the same program are built on the host after each commit instead of on the device.
    `submitted` and `deadline`: seconds on the loop's clock; None: when the loop first sees it, and no deadline.
    """

    id: int
    prompt: Prompt
    program: str
    sampling: Sampling
    host_masked: bool = False
    deadline: float | None = None
    submitted: float | None = None
    adapter: Adapter | None = None
    """What it is answered with, whatever is loaded under that name since."""
    grammar: TokenTable | None = None
    """What its answer may be, on top of its program, which then is one that answers in text; its reasoning is free."""
    guide: HostGrammar | None = None
    """The same where it has no table: then it is `host_masked`."""


class StepKind(StrEnum):
    """What a step computes. PARKED has no forward: it samples one row whose logits were set aside."""

    PREFILL = "prefill"
    DECODE = "decode"
    PARKED = "parked"


@dataclass(frozen=True, slots=True)
class RowStart:
    """All a row begins with, or continues with after preemption. Applied on the compute stream before the forward.

    The device then advances token, position, state and counters by itself. `state` is an absolute state number of the
    constraint table; `left` tokens remain in the present phase, `left_next` is what a phase change resets it to,
    `objects_left` counts down completed objects. Samples depend on (`seed`, absolute position) alone.
    """

    ref: RowRef
    state: int
    left: int
    left_next: int
    objects_left: int
    temperature: float
    top_p: float
    seed: int
    top_logprobs: int
    host_masked: bool
    adapter: int = 0
    """Slot of its adapter, 0 for none."""
    grammar: int = 0
    """Slot of its token table, 0 for none; and the state it stands in there."""
    grammar_state: int = 0
    adjustment: Adjustment | None = None


@dataclass(frozen=True, slots=True)
class PageGrant:
    """Pages that extend a row's page table, from table index `first` on."""

    row: int
    first: int
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HostPlace:
    """Slot of a picture's embeddings in host memory, from which they are brought if they are `there`, else kept in."""

    slot: int
    there: bool


@dataclass(frozen=True, slots=True)
class GrammarLoad:
    """A table on its way to a slot of the device; its numbers (see `TokenTable.numbers`) go to `first` and behind."""

    table: TokenTable
    first: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """The prompt side of one sequence in a prefill step.

    The sequence is [BOS + picture block] when there is a picture, and a prompt, which without a picture begins with
    BOS. `position` is that of ids[0]: what is before it is computed here, if it is the block, or there already in pages
    that are shared, which may be the block and any number of whole pages behind it, or whole pages alone. `picture` is
    given when the block must be computed; `prefix_pages` is then the table of the block's own pages. `tail` = (from,
    to) copies the block's last, partly filled page into the sequence's own page after the block is there and before
    `ids` are fed, on the compute stream; shared pages are never written. `insets`: see `Prompt`, counted from ids[0];
    each is computed whole, when all before it has been fed. `adapter`: what is put into the slot `start.adapter` before
    anything is computed; None if it is there already, or there is none; `grammar` likewise. `places`: of the pictures
    it shows, or ().

    Of a prompt that is cut, each step has a part: `position` and `ids` are the part's own, `tail`, `adapter` and
    `grammar` come with the first, and a part may be a picture's block without ids. `looked`: how many crops of the
    first picture were encoded by the looks before it.
    """

    start: RowStart
    ids: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]
    position: int
    pages: tuple[int, ...]
    picture: Picture | None = None
    prefix_pages: tuple[int, ...] = ()
    tail: tuple[int, int] | None = None
    insets: tuple[Inset, ...] = ()
    adapter: Adapter | None = None
    places: tuple[HostPlace | None, ...] = ()
    looked: int = 0
    grammar: GrammarLoad | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One launch. `rows` are what it computes, in order (any refs will do); `unsampled` wait for a host mask; `fed`
    get no token yet, since their prompts go on in a later step. `look`: crops of the picture that comes next in the
    prompt of the last row, which may have no prefill in this step.

    `slot` is the working set it holds (PARKED holds a parking lane instead, in `lane`). `freed` are pages that came
    back since the last launch: nothing in flight reads them, a rehearsing device may poison them before anything else.
    """

    id: int
    kind: StepKind
    rows: Rows
    slot: int
    unsampled: frozenset[int] = frozenset()
    prefills: tuple[Prefill, ...] = ()
    grants: tuple[PageGrant, ...] = ()
    freed: tuple[int, ...] = ()
    lane: int = -1
    fed: frozenset[int] = frozenset()
    look: Look | None = None

    def __post_init__(self) -> None:
        if type(self.rows) is not Rows:
            object.__setattr__(self, "rows", Rows(self.rows))


class Lane(StrEnum):
    """A stream of the device, in whose order things happen on it."""

    COMPUTE = "compute"
    COPY = "copy"
    UPLOAD = "upload"


@dataclass(frozen=True, slots=True)
class DeviceSpan:
    """What a stream did for a step, for the timeline: forward, sampling, copy, upload. Seconds on the host's clock."""

    lane: Lane
    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """One step's results, owned by the receiver (copies, never views of landing buffers: I4). Any records will do.

    `started`/`ended`: when the device began and finished computing it, seconds on the device's own clock; for `paused`
    of them it computed nothing, since rows waited for host masks between forward and sampling. `landed`: when the
    host's wait for it was over and reading it began, on the loop's clock. `spans`: what each stream did for it, from a
    device that was made while a timeline is recorded.
    """

    step_id: int
    records: Records
    started: float
    ended: float
    paused: float = 0.0
    landed: float = 0.0
    spans: tuple[DeviceSpan, ...] = ()

    def __post_init__(self) -> None:
        if type(self.records) is not Records:
            object.__setattr__(self, "records", Records.of(self.records))


@dataclass(frozen=True, slots=True)
class Metrics:
    """Counts and times of one request; times in milliseconds.

    `queue_ms` waiting for a row, `prefill_ms` from admission to the first token, `ttft_ms` from submission to it,
    `decode_ms` from it to the end; `cached_tokens` of the picture and prompt were there already, from other requests.
    `idle_ms`: how long the device stood idle between the steps of its first token and its last (see `observe.bubble`).
    """

    input_tokens: int
    output_tokens: int
    queue_ms: float
    prefill_ms: float
    ttft_ms: float
    decode_ms: float
    cached_tokens: int = 0
    preemptions: int = 0
    idle_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Finish:
    """The last word on a request: a reason, or the error that ended it."""

    metrics: Metrics
    reason: FinishReason | None = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Emission:
    """News for one request: tokens committed since the last one, and its finish when it has ended."""

    request_id: int
    tokens: tuple[Token, ...] = ()
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Talk:
    """News for many requests at once: one more token for each, in the same order, and none has ended."""

    requests: tuple[int, ...]
    tokens: tuple[Token, ...]

    def emissions(self) -> list[Emission]:
        """The same, request by request."""
        return [Emission(number, (token,)) for number, token in zip(self.requests, self.tokens, strict=True)]


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What the device was built with. Row 0 and page 0 are reserved (padding row, scrap page).

    `pages` counts all pages including page 0; `prefix` is the length of BOS + picture block, in positions. `adapters`:
    slots for adapters of up to `adapter_rank`, numbered from 1. `host_pictures`: see `HostPlace`; `picture_bytes` each.
    `grammars`: slots for token tables, numbered from 1, which share room for `grammar_numbers` int16.
    """

    rows: int
    pages: int
    page_size: int
    max_context: int
    prefix: int
    depth: int
    vocab: int
    adapters: int = 0
    adapter_rank: int = 0
    host_pictures: int = 0
    picture_bytes: int = 0
    grammars: int = 0
    grammar_numbers: int = 0


class Clock(Protocol):
    """Seconds from an arbitrary origin, never going back."""

    def now(self) -> float:
        """Return the time in seconds."""
        ...
