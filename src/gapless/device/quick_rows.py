"""How the kernels see rows: which column holds what, and rules as the tensors they are.

In: a device. Out: `RowKernels` for it where there are any, told this room's layout once; None elsewhere, and then the
plain lines of `rows.py` and `tail.py` are all there is. They are the specification in either case.
"""

from __future__ import annotations

import torch

from gapless.constrain.table import TokenClass
from gapless.device.packet import Asked, Count, Real
from gapless.device.record import TOP, WIDTH
from gapless.kernels.choose import rows_for
from gapless.kernels.rows import Columns, Marks, RowKernels
from gapless.records import POISON, Flags, ValueHead

COLUMNS = Columns(
    token=Count.TOKEN,
    position=Count.POSITION,
    state=Count.STATE,
    left=Count.LEFT,
    left_next=Count.LEFT_NEXT,
    objects_left=Count.OBJECTS_LEFT,
    done=Count.DONE,
    epoch=Count.EPOCH,
    adapter=Count.ADAPTER,
    adjusted=Count.ADJUSTED,
    least=Count.LEAST,
    grammar=Count.GRAMMAR,
    grammar_state=Count.GRAMMAR_STATE,
    seed=Count.SEED,
    top_logprobs=Count.TOP_LOGPROBS,
    value=Real.VALUE_0,
    temperature=Real.TEMPERATURE,
    top_p=Real.TOP_P,
    repetition=Real.REPETITION,
    frequency=Real.FREQUENCY,
    presence=Real.PRESENCE,
    alternatives=TOP,
    width=WIDTH,
    poison=POISON,
)
MARKS = Marks(
    nothing=Asked.NOTHING,
    sample=Asked.SAMPLE,
    coord=ValueHead.COORD,
    size=ValueHead.SIZE,
    stop=Flags.STOP,
    length=Flags.LENGTH,
    nonfinite=Flags.NONFINITE,
    muted=Flags.MUTED,
    other=TokenClass.OTHER,
    ending=TokenClass.END,
)


def quick_rows(device: torch.device) -> RowKernels | None:
    """See the module."""
    return rows_for(device, COLUMNS, MARKS)
