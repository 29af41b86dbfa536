"""How a fleet stands, in words for whoever started it.

In: what Ray Serve says of the application and its deployments. Out: whether it runs, whether it never will, and one
line about what is in its way. Nothing here needs Ray. Invariant: a line names the cause, not the place in Ray's code
where it was noticed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RUNNING, FAILED = "RUNNING", "DEPLOY_FAILED"
MOST = 600
"""Characters of a reason that are told."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RAISED = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*): (?=\S)", re.MULTILINE)
"""Where an exception's own words begin: at the margin, behind its class."""
_TRACE = ("Traceback (most recent call last)", '\n  File "')


@dataclass(frozen=True, slots=True)
class Standing:
    """`running`: requests are taken; `failed`: Ray has given it up; `words`: what is in the way, "" if nothing is."""

    running: bool
    failed: bool
    words: str


def standing(app: Any) -> Standing:
    """Of Serve's `ApplicationStatusOverview`; None: it is not there yet."""
    if app is None:
        return Standing(False, False, "")
    messages = [reason(deployment.message) for deployment in app.deployments.values() if deployment.message]
    words = "; ".join(dict.fromkeys(messages)) or reason(app.message)
    return Standing(app.status.value == RUNNING, app.status.value == FAILED, words)


def reason(message: str) -> str:
    """One line of a message: what was raised last, where it holds a traceback."""
    plain = _COLOUR.sub("", message)
    if any(part in plain for part in _TRACE) and (raised := list(_RAISED.finditer(plain))):
        found = raised[-1]
        ours = found[0].startswith("gapless.")  # the project's own errors say all there is to know
        plain = plain[found.end() :] if ours else f"{found[1]}: {plain[found.end() :]}"
    return " ".join(plain.split())[:MOST]


def lacking(wanted: Mapping[str, float], there: Mapping[str, float]) -> str:
    """What a machine has too little of, "" if nothing. Both by the names of Ray's resources."""
    short = [name for name, count in wanted.items() if count > there.get(name, 0)]
    return ", ".join(f"{wanted[name]:g} {name}, and it has {there.get(name, 0):g}" for name in short)
