"""What the host holds while weights go to the device: the map, the tensors, and little beside them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MB = 10**6


def beside(folder: Path, megabytes: int) -> tuple[int, int, int]:
    """Bytes of the file, of the tensors made of it, and the most that was held beside both."""
    script = ROOT / "tests" / "weights" / "reading_memory.py"
    done = subprocess.run(
        [sys.executable, str(script), str(folder), str(megabytes)], check=False,
        capture_output=True, text=True, timeout=300, env={"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    size, held, more = map(int, done.stdout.split())
    return size, held, more


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_little_is_held_beside_map_and_tensors(tmp_path: Path) -> None:
    size, held, more = beside(tmp_path, 100)
    assert size > 99 * MB and held > 99 * MB
    assert more < 90 * MB, "a copy of the whole file would be 100"


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_little_is_held_beside_a_large_map_too(tmp_path: Path) -> None:
    size, held, more = beside(tmp_path, 1500)
    assert size > 1490 * MB and held > 1490 * MB
    assert more < 200 * MB
