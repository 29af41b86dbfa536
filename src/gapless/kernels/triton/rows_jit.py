"""The kernels of rows: one program a row feeds a step, or chooses the likeliest token and moves the row on.

Arguments as in `rows.py`, which launches them. What nothing is asked of is not written: padding rows may repeat.
"""

import triton
import triton.language as tl

from gapless.kernels.triton.rules_jit import ruled_on, ruling


@triton.jit(do_not_specialize=["columns", "entries"])
def feed(
    rows, counts, reals, pages, ids, values, positions, tables, columns, entries,
    COUNTS: tl.constexpr, REALS: tl.constexpr, TOKEN: tl.constexpr, POSITION: tl.constexpr, DONE: tl.constexpr,
    VALUE: tl.constexpr, POISON: tl.constexpr, WIDE: tl.constexpr,
):
    """What the next forward is fed with, for row number `program_id` of the step; WIDE table entries at a time."""
    at = tl.program_id(0)
    row = tl.load(rows + at)
    own = counts + row * COUNTS
    done = tl.load(own + DONE) != 0
    tl.store(ids + at, tl.where(done, 0, tl.load(own + TOKEN)))
    tl.store(positions + at, tl.where(done, 0, tl.load(own + POSITION)))
    pair = tl.arange(0, 2)
    value = tl.load(reals + row * REALS + VALUE + pair).to(tl.float32)
    tl.store(values + at * 2 + pair, tl.where(done, POISON * 1.0, value))
    for first in range(0, columns, WIDE):
        column = first + tl.arange(0, WIDE)
        page = tl.load(pages + row * entries + column, mask=column < columns, other=0)
        tl.store(tables + at * columns + column, tl.where(done, 0, page), mask=column < columns)


@triton.jit
def told_of(rows, counts, table, out, COUNTS: tl.constexpr, COLUMN: tl.constexpr, DONE: tl.constexpr,
            LOOKED_UP: tl.constexpr):
    """A column of row number `program_id` of a step, or what a table says of it; 0 for a row that is done."""
    own = counts + tl.load(rows + tl.program_id(0)) * COUNTS
    said = tl.load(own + COLUMN)
    if LOOKED_UP:
        said = tl.load(table + said)
    tl.store(out + tl.program_id(0), tl.where(tl.load(own + DONE) != 0, 0, said))


@triton.jit
def likeliest(logits, allowed, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """The smallest id among the best of the allowed logits, and whether the row is usable."""
    lane = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], -float("inf"), tl.float32)
    highest = tl.full([BLOCK], -float("inf"), tl.float32)
    found = tl.zeros([BLOCK], tl.int32)
    broken = tl.zeros([BLOCK], tl.int32)
    for first in range(0, VOCAB, BLOCK):
        id = first + lane
        there = id < VOCAB
        logit = tl.load(logits + id, mask=there, other=-float("inf"))
        may = tl.load(allowed + id, mask=there, other=0) != 0
        broken |= (logit != logit).to(tl.int32)  # noqa: PLR0124 - so is NaN told
        highest = tl.maximum(highest, logit)
        better = may & (logit > best)
        best = tl.where(better, logit, best)
        found = tl.where(better, id, found)
    top = tl.max(best, 0)
    token = tl.min(tl.where(best == top, found, VOCAB), 0)
    usable = (tl.max(broken, 0) == 0) & (tl.max(highest, 0) < float("inf")) & (top > -float("inf"))
    return tl.where(usable, token, 0).to(tl.int64), usable


@triton.jit
def valued(kind, coord, size, at, COORD: tl.constexpr, SIZE: tl.constexpr, POISON: tl.constexpr):
    """The two values that ride on a token whose head is `kind`."""
    first = tl.full([], POISON, tl.float64)
    second = tl.full([], POISON, tl.float64)
    first = tl.where(kind == COORD, tl.load(coord + at).to(tl.float64), first)
    first = tl.where(kind == SIZE, tl.load(size + at * 2).to(tl.float64), first)
    second = tl.where(kind == SIZE, tl.load(size + at * 2 + 1).to(tl.float64), second)
    return first, second


@triton.jit
def advanced(own, state, place, ends, counting, resets, on_limit, following, LEFT: tl.constexpr,
             LEFT_NEXT: tl.constexpr, OBJECTS_LEFT: tl.constexpr):
    """Where a row stands after its token: state, left, objects left; whether its rule ended there, or a limit did."""
    ending = tl.load(ends + place) != 0
    counted, resetting = tl.load(counting + place) != 0, tl.load(resets + place) != 0
    objects = tl.load(own + OBJECTS_LEFT) - counted.to(tl.int64)
    left = tl.where(resetting, tl.load(own + LEFT_NEXT), tl.load(own + LEFT) - 1)
    served = counted & (objects <= 0) & (ending == 0)
    spent = (left <= 0) & (ending == 0) & (served == 0)
    limit = tl.load(on_limit + state)
    diverted = spent & (limit >= 0) & (resetting == 0)
    over = served | (spent & (diverted == 0))
    state = tl.where(diverted, limit, tl.load(following + place))
    return state, tl.where(diverted, 1, left), objects, ending, over


@triton.jit
def told(line, step, row, epoch, flags, token, first, second, logprob, wished, ALTERNATIVES: tl.constexpr,
         WIDTH: tl.constexpr, UPTO: tl.constexpr):
    """Write the first UPTO fields of a line without alternatives, if it was wished for."""
    field = tl.arange(0, 64)
    said = tl.where((field >= ALTERNATIVES) & (field < (ALTERNATIVES + WIDTH) // 2), -1.0, 0.0).to(tl.float64)
    said = tl.where(field == 0, step.to(tl.float64), said)
    said = tl.where(field == 1, row.to(tl.float64), said)
    said = tl.where(field == 2, epoch.to(tl.float64), said)
    said = tl.where(field == 3, flags.to(tl.float64), said)
    said = tl.where(field == 4, token.to(tl.float64), said)
    said = tl.where(field == 5, first, said)
    said = tl.where(field == 6, second, said)
    said = tl.where(field == ALTERNATIVES - 1, logprob, said)
    tl.store(line + field, said, mask=field < tl.where(wished, UPTO, 0))


@triton.jit
def ended(
    at, row, wish, token, usable, coord, size, counts, reals,
    classes, following, head, ends, counting, resets, on_limit, token_classes, numbers, spans, answers,
    COUNTS: tl.constexpr, REALS: tl.constexpr, CLASSES: tl.constexpr, VOCAB: tl.constexpr, SPATIAL: tl.constexpr,
    RULED: tl.constexpr, GRAMMAR: tl.constexpr, GRAMMAR_STATE: tl.constexpr, TOKEN: tl.constexpr,
    POSITION: tl.constexpr, STATE: tl.constexpr, LEFT: tl.constexpr, LEFT_NEXT: tl.constexpr,
    OBJECTS_LEFT: tl.constexpr, DONE: tl.constexpr, VALUE: tl.constexpr, POISON: tl.constexpr, NOTHING: tl.constexpr,
    SAMPLE: tl.constexpr, COORD: tl.constexpr, SIZE: tl.constexpr, STOP: tl.constexpr, LENGTH: tl.constexpr,
    NONFINITE: tl.constexpr, MUTED: tl.constexpr,
):
    """Move a row on with its token -> its flags, what to say (POISON for a row that does not move), and two values."""
    own = counts + row * COUNTS
    state, position = tl.load(own + STATE), tl.load(own + POSITION)
    place = state * CLASSES + tl.load(classes + token)
    if RULED:
        slot = ruling(own, state, answers, GRAMMAR)
    state, left, objects, ending, over = advanced(
        own, state, place, ends, counting, resets, on_limit, following, LEFT, LEFT_NEXT, OBJECTS_LEFT
    )
    first = tl.full([], POISON, tl.float64)
    second = tl.full([], POISON, tl.float64)
    if SPATIAL:
        first, second = valued(tl.load(head + place), coord, size, at, COORD, SIZE, POISON)
        usable = usable & (tl.abs(first) < float("inf")) & (tl.abs(second) < float("inf"))
    live = (tl.load(own + DONE) == 0) & (wish == SAMPLE)
    moves = live & usable
    flags = tl.where(ending, STOP, 0) + tl.where(over, LENGTH, 0)
    flags = tl.where(moves, flags, tl.where(live, NONFINITE, MUTED))
    if RULED:
        if (slot != 0) & moves:
            behind = ruled_on(own, slot, token, token_classes, numbers, spans, GRAMMAR_STATE, VOCAB)
            tl.store(own + GRAMMAR_STATE, behind)
    tl.store(own + TOKEN, token, mask=moves)
    tl.store(own + STATE, state, mask=moves)
    tl.store(own + LEFT, left, mask=moves)
    tl.store(own + OBJECTS_LEFT, objects, mask=moves)
    tl.store(own + POSITION, position + 1, mask=moves)
    tl.store(reals + row * REALS + VALUE, first, mask=moves)
    tl.store(reals + row * REALS + VALUE + 1, second, mask=moves)
    tl.store(own + DONE, 1, mask=(wish != NOTHING) & (flags != 0))
    return flags, tl.where(moves, token, POISON), first, second


@triton.jit
def greedy(
    step, rows, asked, logits, lines, coord, size, counts, reals,
    masks, mask, classes, following, head, ends, counting, resets, on_limit,
    COUNTS: tl.constexpr, REALS: tl.constexpr, CLASSES: tl.constexpr, VOCAB: tl.constexpr, BLOCK: tl.constexpr,
    SPATIAL: tl.constexpr, TOKEN: tl.constexpr, POSITION: tl.constexpr, STATE: tl.constexpr, LEFT: tl.constexpr,
    LEFT_NEXT: tl.constexpr, OBJECTS_LEFT: tl.constexpr, DONE: tl.constexpr, EPOCH: tl.constexpr, VALUE: tl.constexpr,
    ALTERNATIVES: tl.constexpr, WIDTH: tl.constexpr, POISON: tl.constexpr, NOTHING: tl.constexpr, SAMPLE: tl.constexpr,
    COORD: tl.constexpr, SIZE: tl.constexpr, STOP: tl.constexpr, LENGTH: tl.constexpr, NONFINITE: tl.constexpr,
    MUTED: tl.constexpr,
):
    """The end of a step for row number `program_id` of it."""
    at = tl.program_id(0)
    row, wish = tl.load(rows + at), tl.load(asked + at)
    own = counts + row * COUNTS
    token, usable = likeliest(logits + at * VOCAB, masks + tl.load(mask + tl.load(own + STATE)) * VOCAB, VOCAB, BLOCK)
    flags, said, first, second = ended(
        at, row, wish, token, usable, coord, size, counts, reals, classes, following, head, ends, counting, resets,
        on_limit, None, None, None, None, COUNTS, REALS, CLASSES, VOCAB, SPATIAL, False, 0, 0, TOKEN, POSITION, STATE,
        LEFT, LEFT_NEXT, OBJECTS_LEFT, DONE, VALUE, POISON, NOTHING, SAMPLE, COORD, SIZE, STOP, LENGTH, NONFINITE, MUTED
    )
    told(lines + at * WIDTH, tl.load(step), row, tl.load(own + EPOCH), flags, said, first, second, 0.0,
         wish != NOTHING, ALTERNATIVES, WIDTH, WIDTH)
