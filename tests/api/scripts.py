"""Scripts run in a process of their own, with a model that talks on far longer than they wait."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 60
"""Seconds; the scripts' requests would run several times as long."""

BEGIN = """
    import sys, threading, time
    import numpy as np
    import gapless

    vlm = gapless.load(sys.argv[1], max_rows=4)
    image = np.zeros((60, 80, 3), np.uint8)
    long = {"max_tokens": 7000, "temperature": 4.0, "top_p": 1.0}
"""


def run(script, *arguments):
    """Run a script in a process of its own."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(script), *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
