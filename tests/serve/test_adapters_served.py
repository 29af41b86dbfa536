"""Adapters over HTTP: settings.adapter, OpenAI's model, the list of models, the metric; S-LOR-03 and paths."""

import pytest
from tests.serve.conftest import SMALL, Site, png, url

import gapless


@pytest.fixture(scope="module")
def moon():
    with gapless.load("glint", device="cpu", adapters={"moon": "glint/moon"}) as vlm:
        yield Site(vlm)


def ask(site, **settings):
    body = {"image_url": url(png()), "question": "What is it?", "settings": {**SMALL, **settings}}
    return site.post("/v1/query", body)


def test_settings_choose_it_and_unknown_names_are_refused(moon):
    """S-LOR-03: nothing is answered by the base model instead, and no path reaches the file system."""
    assert ask(moon, adapter="moon").status_code == 200
    for name in ("nope", "Moon", "", " ", "../../etc/passwd", 3):
        said = ask(moon, adapter=name)
        assert said.status_code == 400 and "adapter" in said.text


def test_openai_clients_name_it_as_model(moon):
    cards = [card["id"] for card in moon.ask("GET", "/v1/models").json()["data"]]
    assert cards == ["glint", "moon"]
    assert moon.ask("GET", "/v1/models/moon").json()["id"] == "moon"
    body = {"messages": [{"role": "user", "content": "Who are you?"}], "temperature": 0, "max_tokens": 4}
    said = moon.post("/v1/chat/completions", body | {"model": "moon"})
    assert said.status_code == 200 and said.json()["model"] == "moon"
    assert moon.post("/v1/chat/completions", body | {"model": "sun"}).status_code == 404


def test_the_metric_counts_residents(moon):
    ask(moon, adapter="moon")
    assert 'gapless:adapters_resident{model_name="glint"} 1.0' in moon.ask("GET", "/metrics").text
