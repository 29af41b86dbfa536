"""What the page says while the server loads, is full, is gone, wants a key, or refuses; and how it goes on."""

import json

import pytest
from tests.serve.serving import Served
from tests.ui.conftest import ask, choose, opened, show

from gapless.bench.mix import picture_path

SQUARE = picture_path("shapes_square")
BANNER = "#banner-title"


def said(page, words, where=BANNER):
    page.locator(where, has_text=words).wait_for()


def test_a_server_that_loads_is_waited_for(browser, served):
    """Told by a stand-in for /health, since the real one may be quicker than a look."""
    with opened(browser, served, ready=False) as page:
        loading = json.dumps({"status": "loading", "doing": "MB of weights", "done": 30, "total": 120})
        page.route("**/health", lambda route: route.fulfill(status=503, body=loading, content_type="application/json"))
        page.reload()
        said(page, "The server is loading its model.")
        said(page, "loading 25 %", "#status-text")
        assert page.locator("#banner-progress").get_attribute("value") == "30"
        show(page, SQUARE)  # meanwhile
        page.unroute("**/health")
        page.get_by_text("glint is ready").wait_for()
        assert page.locator("#banner").is_hidden()
        assert ask(page, "point", "cross").locator(".result").count() == 2


def test_a_full_server_is_told_with_its_remedy_and_asked_again(browser, tmp_path):
    server = Served("glint", tmp_path / "log", "--max-requests", "1")
    try:
        with opened(browser, server) as page:
            other = server.begin_half({"question": "Who are you?"})
            server.until_held(1)
            card = ask(page, "query", "Who are you?")
            told = card.locator(".meta").text_content()
            assert "The server is full." in told and "ask again later" in told and "again in 1 s" in told
            said(page, "The server is full.")
            other.close()
            server.until_held(0)
            card.get_by_role("button", name="Ask again").click()
            page.locator(".turn:not(.failed) .times").wait_for()
            page.get_by_text("glint is ready").wait_for()
    finally:
        assert server.end() == 0


def test_a_server_that_is_gone_is_told_and_found_again(browser, tmp_path, free_port):
    server = Served("glint", tmp_path / "log", port=free_port)
    server.until_ready()
    with opened(browser, server) as page:
        server.process.kill()
        server.process.wait()
        said(page, "The connection is lost.")
        card = ask(page, "query", "Who are you?")
        assert "The connection was lost." in card.locator(".meta").text_content()
        assert "Trying again in" in page.locator("#banner-text").text_content()
        server.process.stdout.close()
        server = Served("glint", tmp_path / "log2", port=free_port)
        try:
            page.get_by_text("glint is ready").wait_for(timeout=60000)
            assert page.locator("#banner").is_hidden()
            assert ask(page, "query", "Who are you?").locator(".words").text_content()
        finally:
            page.close()
            assert server.end() == 0


def test_a_stream_that_breaks_off_is_not_taken_for_an_answer(page):
    torn = (
        'data: {"chunk":"A small","completed":false}\n\ndata: {"error":{"message":"it broke","type":"x"}}\n\ndata: {"'
    )
    page.route("**/v1/query", lambda route: route.fulfill(body=torn, content_type="text/event-stream"))
    card = ask(page, "query", "Who are you?")
    assert "failed" in card.get_attribute("class") and "It broke." in card.locator(".meta").text_content()
    assert card.locator(".words").text_content() == "A small"
    page.unroute("**/v1/query")
    half = 'data: {"chunk":"A small","completed":false}\n\n'
    page.route("**/v1/query", lambda route: route.fulfill(body=half, content_type="text/event-stream"))
    card = ask(page, "query", "Who are you?")
    assert "The connection was lost." in card.locator(".meta").text_content()


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("locked")
    (folder / "keys").write_text("ä-secret 漢\n", encoding="utf-8")
    server = Served("glint", folder / "log", "--api-keys-file", str(folder / "keys"))
    try:
        server.said("curl http://")
        yield server
    finally:
        assert server.end() == 0


def test_a_key_is_asked_for_kept_for_the_session_and_forgotten(browser, locked):
    with opened(browser, locked, ready=False) as page:
        said(page, "This server asks for a key.")
        assert page.evaluate("document.activeElement.id") == "key"
        page.fill("#key", "wrong")
        page.press("#key", "Enter")
        said(page, "look for a typing error", "#banner-text")
        page.fill("#key", "ä-secret 漢")
        page.press("#key", "Enter")
        page.get_by_text("glint is ready").wait_for()
        assert page.locator("#banner").is_hidden()
        show(page, SQUARE)
        assert ask(page, "point", "cross").locator(".result").count() == 2
        page.get_by_text("Copy curl").click()
        line = page.evaluate("navigator.clipboard.readText()")
        assert "$GAPLESS_KEY" in line and "secret" not in line
        page.reload()
        page.get_by_text("glint is ready").wait_for()
        assert page.evaluate("localStorage.length") == 0 and "secret" not in page.url
        page.get_by_text("Forget key").click()
        said(page, "This server asks for a key.")
        assert page.evaluate("sessionStorage.length") == 0


def test_what_the_server_finds_fault_with_is_shown_where_it_is(page):
    page.locator("#settings summary").click()
    page.fill("#set-max_tokens", "3000000000")
    choose(page, "query", "Who are you?")
    page.click("#send")
    page.locator(".turn.failed").wait_for()
    assert page.locator("#set-max_tokens").get_attribute("aria-invalid") == "true"
    assert "max_tokens must be" in page.locator("#hint").text_content()


def test_an_answer_is_stopped(page):
    page.route("**/v1/query", lambda route: None)  # never answered
    choose(page, "query", "Who are you?")
    page.click("#send")
    page.press("#prompt", "Enter")
    assert "One question at a time" in page.locator("#spoken").text_content() and page.locator(".turn").count() == 1
    page.click("#stop")
    page.get_by_text("stopped", exact=True).wait_for()
    assert page.evaluate("document.activeElement.id") == "send"


def test_the_strip_shows_the_steps_and_can_be_paused(page, served):
    ask(page, "query", "Who are you?")
    page.wait_for_function("() => document.querySelectorAll('#lane rect.forward').length > 3")
    assert page.locator("#lane rect.sampling").count() and page.locator("#lane rect.prefill").count()
    numbers = dict(
        page.locator("#numbers > div").evaluate_all(
            "all => all.map((one) => [one.dataset.name, one.querySelector('dd').textContent])"
        )
    )
    assert numbers["rows"] == "1" and numbers["forward"].endswith("ms") and numbers["idle"].endswith("%")
    drawn = page.evaluate(
        "[...document.querySelectorAll('#lane rect')].reduce((sum, one) => sum + +one.getAttribute('width'), 0)"
    )
    assert abs(drawn - 1000) < 1
    assert "forward" in page.locator("#lane").get_attribute("aria-label")
    page.click("#strip-pause")
    before = page.locator("#span").text_content()
    ask(page, "query", "Who are you?")
    page.wait_for_timeout(600)
    assert page.locator("#span").text_content() == before


def test_a_picture_that_is_larger_than_the_server_takes_is_sent_smaller(browser, tmp_path):
    server = Served("glint", tmp_path / "log", "--max-body-bytes", "150000")
    try:
        with opened(browser, server) as page:
            sent = []
            page.on("request", lambda request: sent.append(request.post_data) if request.method == "POST" else None)
            show(page, picture_path("shapes_wide"))  # fits
            assert page.locator("#picture-note").text_content() == ""
            show(page, SQUARE)
            said(page, "larger than this server takes", "#picture-note")
            assert ask(page, "point", "cross").locator(".result").count() == 2
            assert len(sent[-1]) <= 150000 and json.loads(sent[-1])["image_url"].startswith("data:image/jpeg;base64,")
            page.get_by_text("Save picture").wait_for()  # what was sent is no file of anybody's
    finally:
        assert server.end() == 0


def test_what_a_model_says_is_text_whatever_it_is(page):
    evil = "<img src=x onerror='document.title=1'><script>document.title=2</script>\u202e&lt;b&gt;"
    answer = (
        {"chunk": evil, "completed": False},
        {"chunk": "", "completed": True, "finish_reason": "stop", "metrics": {}},
    )
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in answer)
    page.route("**/v1/query", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    card = ask(page, "query", "Who are you?")
    assert card.locator(".words").text_content() == evil
    assert page.locator("#turns img, #turns script").count() == 0
    show(page, SQUARE)
    found = {"request_id": evil, "path": evil, "bbox": {"x_min": 0.1, "y_min": 0.1, "x_max": 0.5, "y_max": 0.5}}
    page.route("**/v1/segment", lambda route: route.fulfill(json=found | {"finish_reason": "stop", "metrics": {}}))
    ask(page, "segment", evil)
    assert page.locator(".badge").get_attribute("aria-label") == f"1: {evil}"
    assert page.locator("#shapes script, #shapes img").count() == 0 and page.title() == "gapless playground"
