"""Experts as they are chosen, on the GPU: what runs there. `experts` launches these.

A pair is a token and one of its experts; pair p is of token p // share. `plan` puts the pairs in the order of their
experts; `up` and `product` multiply in tiles of `rows` pairs of one expert by `lines` rows of its matrix; `mix` sums.
Grids follow from shapes alone: there are as many tiles as there could be at most, and those that are not needed end at
once. Every element of every output is written by exactly one program, and sums run in one order: relaunches give the
same bits. What is out of range is selected away, so what nobody chose may hold NaN.

Weights are the left operand of the tensor cores and tokens the right one, as few tokens make a narrow tile. In FP8 it
is the other way: what is widened comes from registers, and on Hopper a left operand from there makes every product
wait for the one before. FP8 is widened to the tokens' dtype, which is exact; scales are applied to the float32 sums.

FP8 comes as bytes s eeee mmm. Their exponent and mantissa, put where the wider type has its own, are the number times a
power of 2: 2^-120 in bfloat16, 2^-8 in float16. So four bytes take ten instructions that every GPU of compute
capability 8 runs at full speed; its converting instructions are slower than its memory. NaN, which no checkpoint is
read with, would come out as 480.
"""

import triton
import triton.language as tl

FAR = tl.constexpr(1 << 30)
"""No expert has this number."""
TO_BFLOAT16 = tl.constexpr("""{
    .reg .b32 r0, r1, t0, t1;
    prmt.b32 r0, $2, 0, 0x1404;
    prmt.b32 r1, $2, 0, 0x3424;
    and.b32 t0, r0, 0x7f007f00;
    and.b32 t1, r1, 0x7f007f00;
    shr.b32 t0, t0, 4;
    shr.b32 t1, t1, 4;
    lop3.b32 t0, r0, 0x80008000, t0, 0xea;
    lop3.b32 t1, r1, 0x80008000, t1, 0xea;
    mov.b32 r0, 0x7b807b80;
    mov.b32 r1, 0x80008000;
    fma.rn.bf16x2 $0, t0, r0, r1;
    fma.rn.bf16x2 $1, t1, r0, r1;
}""")
"""Times 2^120, plus -0, which changes nothing."""
TO_FLOAT16 = tl.constexpr("""{
    .reg .b32 r0, r1, t0, t1;
    prmt.b32 r0, $2, 0, 0x1404;
    prmt.b32 r1, $2, 0, 0x3424;
    and.b32 t0, r0, 0x7f007f00;
    and.b32 t1, r1, 0x7f007f00;
    shr.b32 t0, t0, 1;
    shr.b32 t1, t1, 1;
    lop3.b32 t0, r0, 0x80008000, t0, 0xea;
    lop3.b32 t1, r1, 0x80008000, t1, 0xea;
    mov.b32 r0, 0x5c005c00;
    mul.rn.f16x2 $0, t0, r0;
    mul.rn.f16x2 $1, t1, r0;
}""")
"""Times 2^8."""


@triton.jit(do_not_specialize=["pairs"])
def plan(chosen, order, ends, pairs, block: tl.constexpr):
    """chosen int64 [pairs] -> order int32 [pairs], pairs by expert, and ends int32 [E], where each expert's end."""
    expert = tl.program_id(0)
    near = tl.arange(0, block)
    place, first = 0, 0
    while first < pairs:
        who = tl.load(chosen + first + near, mask=first + near < pairs, other=FAR)
        place += tl.sum((who < expert).to(tl.int32), 0)
        first += block
    first = 0
    while first < pairs:
        who = tl.load(chosen + first + near, mask=first + near < pairs, other=FAR)
        mine = (who == expert).to(tl.int32)
        tl.store(order + place + tl.cumsum(mine, 0) - 1, first + near, mask=mine > 0)
        place += tl.sum(mine, 0)
        first += block
    tl.store(ends + expert, place)


@triton.jit
def tile_of(order, ends, tile, count: tl.constexpr, span: tl.constexpr, rows: tl.constexpr, alone: tl.constexpr):
    """Which expert a tile is of, its first place in the order, and where that expert's pairs end.

    The expert is `count` or more for a tile that is not needed. `span`: the power of 2 from `count` on. `alone`: there
    is one token, whose pairs go without `plan`: each is a tile, and `order` is what it chose.
    """
    if alone:
        expert = tl.load(order + tile).to(tl.int32)
        first = tile
        last = tile + 1
    else:
        who = tl.arange(0, span)
        end = tl.load(ends + who, mask=who < count, other=0)
        begin = tl.load(ends + who - 1, mask=(who > 0) & (who < count), other=0)
        tiles = tl.where(who < count, (end - begin + rows - 1) // rows, 0)
        upto = tl.cumsum(tiles, 0)
        expert = tl.sum((upto <= tile).to(tl.int32), 0)
        first = tl.sum(tl.where(who == expert, begin + (tile - upto + tiles) * rows, 0), 0)
        last = tl.sum(tl.where(who == expert, end, 0), 0)
    return expert, first, last


@triton.jit
def lines_of(matrix, line, limit, near, k, width: tl.constexpr, whole: tl.constexpr):
    """Columns k + near of the rows `line` of a matrix [limit, width]: [lines, deep]."""
    at = matrix + line[:, None] * width + (k + near)[None, :]
    if whole:
        return tl.load(at, eviction_policy="evict_first")
    return tl.load(at, mask=(line < limit)[:, None] & (k + near < width)[None, :], other=0)


@triton.jit
def widened(stored, dtype: tl.constexpr, scaled: tl.constexpr, assembled: tl.constexpr):
    """Elements as they are stored, as `dtype`: FP8 is bytes here. `assembled`: for a GPU, not for the interpreter."""
    if not scaled:
        out = stored
    elif not assembled:
        out = stored.to(tl.float8e4nv, bitcast=True).to(dtype)
    elif dtype == tl.bfloat16:
        out = tl.inline_asm_elementwise(TO_BFLOAT16, "=r,=r,r", [stored], dtype=tl.bfloat16, is_pure=True, pack=4)
    else:
        out = tl.inline_asm_elementwise(TO_FLOAT16, "=r,=r,r", [stored], dtype=tl.float16, is_pure=True, pack=4)
    return out


@triton.jit
def columns_of(x, row, live, near, k, width: tl.constexpr, whole: tl.constexpr):
    """Elements k + near of the rows `row` of x [any, width], turned: [deep, rows]."""
    at = x + row[None, :] * width + (k + near)[:, None]
    if whole:
        return tl.load(at, mask=live[None, :], other=0.0)
    return tl.load(at, mask=live[None, :] & (k + near < width)[:, None], other=0.0)


@triton.jit
def nothing(lines: tl.constexpr, rows: tl.constexpr, turned: tl.constexpr):
    """Sums of nothing yet: [lines, rows], or `turned` [rows, lines]."""
    if turned:
        out = tl.zeros((rows, lines), tl.float32)
    else:
        out = tl.zeros((lines, rows), tl.float32)
    return out


@triton.jit
def added(sums, matrix, taken, turned: tl.constexpr):
    """Sums, and what a portion adds to them: matrix [lines, deep] by taken [deep, rows]. `turned` as the sums are."""
    if turned:
        out = tl.dot(tl.trans(taken), tl.trans(matrix), sums)
    else:
        out = tl.dot(matrix, taken, sums)
    return out


@triton.jit(do_not_specialize=["tiles"])
def up(
    x,
    order,
    ends,
    values,
    scales,
    out,
    tiles,
    share: tl.constexpr,
    count: tl.constexpr,
    span: tl.constexpr,
    width: tl.constexpr,
    inner: tl.constexpr,
    alone: tl.constexpr,
    scaled: tl.constexpr,
    assembled: tl.constexpr,
    rows: tl.constexpr,
    lines: tl.constexpr,
    deep: tl.constexpr,
    stages: tl.constexpr,
):
    """x [T, width], values [E, 2 inner, width], scales [E, 2 inner] -> out [pairs, inner].

    gelu_erf of the first half times (the second half + 1). The grid is tiles * ceil(inner / lines).
    """
    tile = tl.program_id(0)
    expert, place, last = tile_of(order, ends, tile % tiles, count, span, rows, alone)
    if expert >= count:
        return
    place += tl.arange(0, rows)
    live = place < last
    pair = place if alone else tl.load(order + place, mask=live, other=0)
    line = tile // tiles * lines + tl.arange(0, lines)
    near = tl.arange(0, deep)
    whole: tl.constexpr = inner % lines == 0 and width % deep == 0
    own = values + expert.to(tl.int64) * (2 * inner * width)
    a = nothing(lines, rows, scaled)
    g = nothing(lines, rows, scaled)
    for k in tl.range(0, width, deep, num_stages=stages):
        first_half = lines_of(own, line, inner, near, k, width, whole)
        second = lines_of(own + inner * width, line, inner, near, k, width, whole)
        taken = columns_of(x, pair // share, live, near, k, width, whole)
        a = added(a, widened(first_half, x.dtype.element_ty, scaled, assembled), taken, scaled)
        g = added(g, widened(second, x.dtype.element_ty, scaled, assembled), taken, scaled)
    if scaled:
        a = tl.trans(a)
        g = tl.trans(g)
        of = scales + expert * (2 * inner) + line
        a *= tl.load(of, mask=line < inner, other=0.0)[:, None]
        g *= tl.load(of + inner, mask=line < inner, other=0.0)[:, None]
    said = 0.5 * a * (1.0 + tl.erf(a * 0.7071067811865476)) * (g + 1.0)
    at = out + pair.to(tl.int64)[None, :] * inner + line[:, None]
    tl.store(at, said.to(out.dtype.element_ty), mask=live[None, :] & (line < inner)[:, None])


@triton.jit(do_not_specialize=["tiles"])
def product(
    x,
    order,
    ends,
    values,
    scales,
    out,
    tiles,
    share: tl.constexpr,
    count: tl.constexpr,
    span: tl.constexpr,
    width: tl.constexpr,
    inner: tl.constexpr,
    alone: tl.constexpr,
    scaled: tl.constexpr,
    assembled: tl.constexpr,
    rows: tl.constexpr,
    lines: tl.constexpr,
    deep: tl.constexpr,
    stages: tl.constexpr,
):
    """x [pairs / share, inner], values [E, width, inner], scales [E, width] -> out [pairs, width].

    The grid is tiles * ceil(width / lines).
    """
    tile = tl.program_id(0)
    expert, place, last = tile_of(order, ends, tile % tiles, count, span, rows, alone)
    if expert >= count:
        return
    place += tl.arange(0, rows)
    live = place < last
    pair = place if alone else tl.load(order + place, mask=live, other=0)
    line = tile // tiles * lines + tl.arange(0, lines)
    near = tl.arange(0, deep)
    whole: tl.constexpr = width % lines == 0 and inner % deep == 0
    own = values + expert.to(tl.int64) * (width * inner)
    acc = nothing(lines, rows, scaled)
    for k in tl.range(0, inner, deep, num_stages=stages):
        matrix = lines_of(own, line, width, near, k, inner, whole)
        taken = columns_of(x, pair // share, live, near, k, inner, whole)
        acc = added(acc, widened(matrix, x.dtype.element_ty, scaled, assembled), taken, scaled)
    if scaled:
        acc = tl.trans(acc)
        acc *= tl.load(scales + expert * width + line, mask=line < width, other=0.0)[:, None]
    at = out + pair.to(tl.int64)[None, :] * width + line[:, None]
    tl.store(at, acc.to(out.dtype.element_ty), mask=live[None, :] & (line < width)[:, None])


@triton.jit
def mix(said, weights, out, width, share: tl.constexpr, block: tl.constexpr):
    """said [T * share, width], weights [T, share] -> out [T, width]: the weighted sum, in order, in float32."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    total = tl.zeros((block,), tl.float32)
    for j in tl.static_range(share):
        pair = token * share + j
        each = tl.load(said + pair * width + at, mask=at < width, other=0.0).to(tl.float32)
        total += each * tl.load(weights + pair).to(tl.float32)
    tl.store(out + token * width + at, total.to(out.dtype.element_ty), mask=at < width)
