"""Keys and values as a cache keeps them, in kernels: in the model's dtype, or in FP8 as bytes with a scale a head.

What `kernels.kept` says, to the bit, on every GPU of compute capability 8: rounding to FP8 is a dozen operations on
integers, and only a step's own tokens are rounded; all that a row sees is widened, four numbers in seven instructions
and a conversion from float16 each. FP8 bytes are s eeee mmm. Put where float16 has its sign, exponent and mantissa,
they are the number times 2^-8, which `unit` takes back with the scale, once a head. NaN would come out as 480.

`scales` float32 [2, H] is None for a cache in the model's dtype; then nothing here adds an instruction.
"""

import triton
import triton.language as tl

from gapless.kernels.triton.experts_jit import widened

ON_A_GPU = tl.constexpr(not triton.knobs.runtime.interpret)
"""The interpreter has no assembly."""
TO_FLOAT32 = tl.constexpr("""{
    .reg .b32 even, odd, t;
    .reg .b16 h0, h1, h2, h3;
    shl.b32 even, $4, 8;
    and.b32 t, even, 0x7f007f00;
    shr.b32 t, t, 1;
    lop3.b32 even, even, 0x80008000, t, 0xea;
    and.b32 t, $4, 0x7f007f00;
    shr.b32 t, t, 1;
    lop3.b32 odd, $4, 0x80008000, t, 0xea;
    mov.b32 {h0, h2}, even;
    mov.b32 {h1, h3}, odd;
    cvt.f32.f16 $0, h0;
    cvt.f32.f16 $1, h1;
    cvt.f32.f16 $2, h2;
    cvt.f32.f16 $3, h3;
}""")
"""Four bytes at once, times 2^-8."""


@triton.jit
def wide(numbers):
    """Numbers as they are kept -> float32; of FP8 a 256th, see `unit`."""
    if numbers.dtype == tl.uint8:
        if ON_A_GPU:
            out = tl.inline_asm_elementwise(TO_FLOAT32, "=f,=f,=f,=f,r", [numbers], dtype=tl.float32, is_pure=True,
                                            pack=4)
        else:
            out = numbers.to(tl.float8e4nv, bitcast=True).to(tl.float32) * 0.00390625
    else:
        out = numbers.to(tl.float32)
    return out


@triton.jit
def unit(scales, head):
    """What a number that `wide` says stands for: of keys of head `head`, of values of head H + `head`."""
    return tl.load(scales + head) * 256.0


@triton.jit
def plain(numbers, dtype: tl.constexpr):
    """Numbers as they are kept -> `dtype`, which holds them exactly; of FP8 without the scale."""
    return widened(numbers, dtype, numbers.dtype == tl.uint8, ON_A_GPU)


@triton.jit
def kept(numbers, scales, head, dtype: tl.constexpr):
    """A head's numbers in float32 -> as they are kept: rounded to the model's `dtype`, and then to FP8 if `scales`."""
    out = numbers.to(dtype)
    if scales is not None:
        out = narrowed(out.to(tl.float32), tl.load(scales + head))
    return out


@triton.jit
def narrowed(x, scale):
    """float32 by a power of two -> FP8 as bytes: to the nearest, of two equally near to the even, at most 448."""
    x *= (0x7F000000 - scale.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)  # one over it, exactly
    bits = x.to(tl.int32, bitcast=True)
    size = tl.minimum(bits & 0x7FFFFFFF, 0x43E00000)
    usual = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - 960  # 8 times what the exponents' biases differ by
    small = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000  # in steps of 2^-9
    byte = tl.where(size < 0x3C800000, small, usual)
    byte = tl.where(x == x, byte, 0x7F)  # noqa: PLR0124 - so is NaN told
    return (byte | ((bits >> 24) & 0x80)).to(tl.uint8)
