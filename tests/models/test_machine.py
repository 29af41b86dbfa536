"""How much memory a process may have: the machine's, or what the groups it runs in leave of it."""

import resource
from pathlib import Path

import pytest

from gapless.models.machine import machine_memory

MIB = 2**20


def told(root: Path, files: dict[str, object]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "max"}, None),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": 64 * MIB}, 64 * MIB),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/memory.max": MIB}, MIB),
        ({"proc/self/cgroup": "0::/outside", "sys/fs/cgroup/memory.max": 5 * MIB}, 5 * MIB),  # a container's own root
        ({"proc/self/cgroup": "3:cpu:/\n2:memory:/x", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": MIB}, MIB),
        ({"proc/self/cgroup": "2:memory:/", "sys/fs/cgroup/memory/memory.limit_in_bytes": 2**63 - 4096}, None),
        ({"proc/self/cgroup": "3:cpu:/", "sys/fs/cgroup/memory.max": MIB}, None),
    ],
)
def test_the_tightest_group_counts(tmp_path: Path, files: dict[str, object], limit: int | None) -> None:
    whole = machine_memory(tmp_path / "nothing")
    assert machine_memory(told(tmp_path, files)) == (whole if limit is None else limit)
    assert whole > 2**28


def test_a_limit_of_addresses_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (7 * MIB, 9 * MIB) if kind == resource.RLIMIT_AS else None)
    assert machine_memory(tmp_path) == 7 * MIB
