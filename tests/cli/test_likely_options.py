"""Options that change which tokens are likely: they become settings, or a usage error."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.fake_vlm import FakeVLM

from gapless.cli.main import main


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (["--banned", "7", "--banned", "a"], {"banned": [7, "a"]}),
        (["--logit-bias", "7=-5", "--logit-bias", "9=1.5"], {"logit_bias": {"7": -5.0, "9": 1.5}}),
        (
            ["--repetition-penalty", "1.2", "--presence-penalty", "-1", "--frequency-penalty", "0.5"],
            {"repetition_penalty": 1.2, "presence_penalty": -1.0, "frequency_penalty": 0.5},
        ),
        (["--min-tokens", "3", "--max-tokens", "9"], {"min_tokens": 3, "max_tokens": 9}),
    ],
)
def test_they_become_settings(vlm: FakeVLM, pictures: Path, words: list[str], settings: dict[str, object]) -> None:
    assert main(["query", "a.png", "What?", *words]) == 0 and main(["caption", "a.png", *words]) == 0
    assert [call[2]["settings"] for call in vlm.calls] == [settings, settings]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--logit-bias", "7"], "is not like 1234=-5"),
        (["--logit-bias", "x=1"], "ids as its keys"),
        (["--logit-bias", "7=101"], "a number from -100 to 100"),
        (["--banned", ""], "texts of 1 to 256"),
        (["--repetition-penalty", "0"], "a number from 0.1 to 10"),
        (["--min-tokens", "9", "--max-tokens", "3"], "min_tokens is 9"),
    ],
)
@pytest.mark.usefixtures("pictures")
def test_a_wrong_one_is_a_wrong_command_line(
    vlm: FakeVLM, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", "a.png", "What?", *words]) == 2
    assert told in " ".join(capsys.readouterr().err.replace("\u2502", " ").split()) and not vlm.calls
