"""S-STA-04: a new major version of a dependency does not come in by itself."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_s_sta_04_every_dependency_of_a_user_has_an_upper_bound():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [wanted for name, wanted in project["optional-dependencies"].items() if name != "dev"]
    wanted = [line for group in (project["dependencies"], *extras) for line in group]
    own = [line for line in wanted if re.match(r"gapless\[", line)]
    assert len(wanted) - len(own) >= 15
    unbounded = [line for line in wanted if line not in own and not re.search(r"<\d", line.partition(";")[0])]
    assert not unbounded
