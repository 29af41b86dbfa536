"""How much memory this process may have, as the system tells it.

In: files of the system. Out: bytes. Sizing and loading both ask here, so that what is refused and what is taken are
measured by one number. No torch is imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

UNKNOWN_MEMORY = 8 * 2**30


def machine_memory(root: Path = Path("/")) -> int:
    """Bytes of physical memory (8 GiB where the system does not say), or fewer where a container, another cgroup or
    `ulimit -v` lets this process have no more. `root`: where the system's files are."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        physical = UNKNOWN_MEMORY
    return min([physical, *_cgroup_limits(root), *_address_limits()])


def _cgroup_limits(root: Path) -> Iterator[int]:
    """Of this process' group and of all above it: each holds. The first version of cgroups has a folder for memory."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        if kinds and "memory" not in kinds.split(","):
            continue
        mount, name = ("memory", "memory.limit_in_bytes") if kinds else ("", "memory.max")
        group = PurePosixPath("/", path).relative_to("/")
        for folder in {group, *group.parents}:
            try:
                told = (root / "sys/fs/cgroup" / mount / folder / name).read_text().strip()
            except OSError:  # a container sees its own group only, at the root
                continue
            if told.isdecimal():  # else "max"
                yield int(told)


def _address_limits() -> Iterator[int]:
    try:
        import resource
    except ImportError:  # not a Unix
        return
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        yield limit
