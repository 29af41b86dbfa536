"""What a caller's rule became: a table for the device, or a grammar for masks that are built on the host."""

from __future__ import annotations

from dataclasses import replace

from gapless.constrain.compiler import Rule
from gapless.records import HostGrammar, Request

__all__ = ["Rule", "ruled"]


def ruled(request: Request, rule: Rule | None) -> Request:
    """The request with a rule, if there is one."""
    if rule is None:
        return request
    if isinstance(rule, HostGrammar):
        return replace(request, guide=rule, host_masked=True)
    return replace(request, grammar=rule)
