"""The sample file of settings: it is what a server does without it, and nothing is missing or made up."""

import os
import re
from pathlib import Path

import pytest
import yaml

from gapless.serve.settings import ServerSettings, read_settings

SAMPLE = Path(__file__).resolve().parents[2] / "packaging" / "gapless.yaml"
EXAMPLE = re.compile(r"^#(?=[a-z_]+: )", flags=re.M)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in [name for name in os.environ if name.startswith("GAPLESS_")]:
        monkeypatch.delenv(name)


def test_as_it_is_it_changes_nothing():
    assert read_settings({}, SAMPLE) == ServerSettings()
    given = yaml.safe_load(SAMPLE.read_text())
    fields = ServerSettings.model_fields
    unset = {name for name, field in fields.items() if field.default in (None, (), {})}
    assert set(given) == set(fields) - unset
    assert {name: fields[name].default for name in given} == given


def test_every_setting_is_there_once_and_the_examples_are_sound(tmp_path):
    text = EXAMPLE.sub("", SAMPLE.read_text())
    assert sorted(re.findall(r"^([a-z_]+): ", text, flags=re.M)) == sorted(ServerSettings.model_fields)
    full = tmp_path / "full.yaml"
    full.write_text(text)
    found = read_settings({}, full)
    assert all(getattr(found, name) not in (None, (), {}) for name in ServerSettings.model_fields)
    assert found.opening().adapters[0][0] == "moon" and len(found.api_keys) == 2
    assert found.rate() is not None and found.image_limits().max_pixels == 100_000_000
