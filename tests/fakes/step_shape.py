"""What a step may look like, whatever it computes."""

from __future__ import annotations

from collections.abc import Sequence

from tests.fakes.page_watch import broken

from gapless.records import Step, StepKind


def check_shape(step: Step, slots: Sequence[int], depth: int, last: int) -> None:
    """Judge a step that is launched behind step `last`, while others hold these slots of `depth`."""
    if step.kind is StepKind.PARKED:
        raise broken("I1", f"step {step.id} is PARKED: it has no forward and is not launched")
    if step.id <= last:
        raise broken("I2", f"step {step.id} is launched after step {last}")
    if not 0 <= step.slot < depth:
        raise broken("I4", f"slot {step.slot} is not one of {depth}")
    if step.slot in slots:
        raise broken("I4", f"step {step.id} takes slot {step.slot}, whose results were not waited for")
    if not step.rows or len({ref.row for ref in step.rows}) != len(step.rows):
        raise broken("I5", f"step {step.id} has no rows or one of them twice: {step.rows}")
    if not step.unsampled <= {ref.row for ref in step.rows}:
        raise broken("I7", f"step {step.id} leaves rows unsampled that it does not have: {step.unsampled}")
    if (step.kind is StepKind.PREFILL) != bool(step.prefills or step.look):
        raise broken("I5", f"a {step.kind} step with {len(step.prefills)} prefills")
    own = [prefill.start.ref for prefill in step.prefills]
    if step.look is not None and step.look.ref not in own[-1:]:
        own.append(step.look.ref)
    if own and tuple(own) != step.rows:
        raise broken("I5", f"step {step.id} prefills other rows than it has")
    last = {step.rows[-1].row}
    if not step.fed <= last or (step.look is not None and step.fed != last) or step.fed & step.unsampled:
        raise broken("I5", f"rows {step.fed} of step {step.id} are fed in parts; its last one alone may be")
