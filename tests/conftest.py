"""What holds for all tests: they have the same names in every process that shares the work."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    named = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if named:
        raise pytest.UsageError(f"{named[0]} has an address in its name, another one in each process; give it ids")
