"""Hands that are quicker than answers, servers that fall silent, and more of everything than anybody expects."""

import json
import os
import signal

import pytest
from tests.serve.serving import Served
from tests.ui.conftest import DESK, PHONE, ask, choose, opened, show

from gapless.bench.mix import picture_path

SQUARE, TALL = picture_path("shapes_square"), picture_path("shapes_tall")


def asked(page):
    """Questions as they are sent."""
    found = []
    page.on("request", lambda request: found.append(request) if request.method == "POST" else None)
    return found


def click(page, selector):
    """Fifty times, as fast as a page can be clicked."""
    page.evaluate("one => { for (let n = 0; n < 50; n++) document.querySelector(one).click(); }", selector)


def test_ask_is_one_question_however_often_it_is_clicked(page, served):
    sent = asked(page)
    show(page, SQUARE)
    choose(page, "caption")
    click(page, "#send")
    page.locator(".turn .times").wait_for()
    assert len(sent) == page.locator(".turn").count() == 1
    page.click("#camera")
    page.locator("#video").wait_for()
    click(page, "#send")  # while a frame becomes a picture too
    page.locator("#about-picture", has_text="camera.jpg").wait_for()
    page.wait_for_function("() => document.querySelectorAll('.turn .times:not([hidden])').length === 2")
    assert len(sent) == page.locator(".turn").count() == 2


def test_asking_again_is_one_question_about_the_same_picture(page, served):
    no = {"error": {"message": "no", "type": "x"}}
    page.route("**/v1/point", lambda route: route.fulfill(status=500, json=no), times=1)
    show(page, SQUARE)
    card = ask(page, "point", "cross")
    sent = asked(page)
    show(page, TALL)
    click(page, ".turn .tools button")
    page.locator(".turn:not(.failed) .times").first.wait_for()
    assert len(sent) == 1 and page.locator(".turn").count() == 2
    assert page.locator(".turn").first.locator(".result").count() == 2  # on the first picture
    assert page.locator(".badge").count() == 0, "they are not drawn on another one"
    assert card.count() == 1


def test_another_skill_while_an_answer_comes_is_for_the_next_question(page, served):
    show(page, SQUARE)
    choose(page, "caption")
    page.click("#send")
    choose(page, "point", "cross")
    page.locator(".turn .times").wait_for()
    assert page.locator(".turn").get_attribute("data-skill") == "caption"
    assert page.locator(".turn .words").text_content() and page.input_value("#prompt") == "cross"


def longer(route):
    body = json.loads(route.request.post_data)
    settings = {"min_tokens": 700, "max_tokens": 720, "temperature": 2}
    route.continue_(post_data=json.dumps(body | {"settings": settings}))


def test_an_answer_that_is_stopped_frees_its_place_at_once(browser, tmp_path):
    server = Served("glint", tmp_path / "log", "--max-requests", "1")
    try:
        with opened(browser, server) as page:
            page.route("**/v1/query", longer)
            choose(page, "query", "Who are you?")
            page.click("#send")
            page.wait_for_function("() => document.querySelector('.words')?.textContent.length > 5")
            server.until_held(1)
            page.click("#stop")
            page.get_by_text("stopped", exact=True).wait_for()
            server.until_held(0)
            assert page.locator(".turn .words").text_content()
            page.unroute("**/v1/query")
            assert ask(page, "query", "Who are you?").locator(".words").text_content()
    finally:
        assert server.end() == 0


def test_a_server_that_is_killed_in_an_answer_leaves_what_it_said(browser, tmp_path, free_port):
    server = Served("glint", tmp_path / "log", port=free_port)
    server.until_ready()
    with opened(browser, server) as page:
        page.route("**/v1/query", longer)
        choose(page, "query", "Who are you?")
        page.click("#send")
        page.wait_for_function("() => document.querySelector('.words')?.textContent.length > 5")
        server.process.kill()
        server.process.wait()
        server.process.stdout.close()
        page.locator(".meta", has_text="The connection was lost.").wait_for()
        assert len(page.locator(".turn .words").text_content()) > 5
        assert page.locator(".turn").get_by_role("button", name="Ask again").count() == 1


def test_a_server_that_falls_silent_is_told_and_found_again(browser, tmp_path):
    server = Served("glint", tmp_path / "log")
    try:
        with opened(browser, server) as page:
            os.kill(server.process.pid, signal.SIGSTOP)
            try:
                page.locator("#banner-title", has_text="The connection is lost.").wait_for(timeout=60000)
            finally:
                os.kill(server.process.pid, signal.SIGCONT)
            page.get_by_text("glint is ready").wait_for()
            assert page.locator("#banner").is_hidden()
    finally:
        assert server.end() == 0


def test_a_server_that_was_full_is_not_called_so_for_ever(page, served):
    full = {"error": {"message": "of 1 places none are free; ask again later", "type": "too_many_requests"}}
    page.route("**/v1/query", lambda route: route.fulfill(status=429, headers={"Retry-After": "1"}, json=full))
    ask(page, "query", "Who are you?")
    page.locator("#banner-title", has_text="The server is full.").wait_for()
    page.get_by_text("glint is ready").wait_for()
    assert page.locator("#banner").is_hidden()
    rate = {"error": {"message": "this key may ask once a minute", "type": "rate_limited"}}
    page.unroute("**/v1/query")
    page.route("**/v1/query", lambda route: route.fulfill(status=429, headers={"Retry-After": "60"}, json=rate))
    assert "more often than your key may" in ask(page, "query", "Who?").locator(".meta").text_content()
    assert page.locator("#banner").is_hidden()  # the server has room


@pytest.mark.parametrize("said", ["null", "words", '{"status": "ready"}'])
def test_something_else_at_the_servers_address_does_not_end_the_page(page, served, said):
    """The answers of a stand-in to what the page asks for; afterwards the server is found again."""
    for path in ("health", "ui/about"):
        page.route(f"**/{path}", lambda route: route.fulfill(status=200, body=said, content_type="text/plain"))
    if said.startswith("{"):
        page.route("**/ui/about", lambda route: route.fulfill(status=200, body="<html>", content_type="text/html"))
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # look again
    page.locator("#banner-title", has_text="The connection is lost.").wait_for()
    page.unroute_all()
    page.get_by_text("glint is ready").wait_for()


def test_whoever_looks_away_asks_for_no_steps(page, served):
    seen = []
    page.on("request", lambda request: seen.append(request.url.rpartition("/")[2]))
    hide = "on => { Object.defineProperty(document, 'hidden', { value: on, configurable: true });"
    hide += "document.dispatchEvent(new Event('visibilitychange')); }"
    with page.expect_event("requestfailed", lambda request: request.url.endswith("ui/steps")):
        page.evaluate(hide, True)
    page.wait_for_timeout(1500)
    assert "steps" not in seen
    with page.expect_request("**/ui/steps"):
        page.evaluate(hide, False)


def test_a_question_of_any_length_keeps_its_place(page, served):
    choose(page, "query", "🦊" + "x <b> " * 16000)
    card = ask(page, "query")
    assert "shorten it" in card.locator(".meta").text_content() and card.bounding_box()["height"] < 400
    show(page, SQUARE)
    points = {"points": [{"x": 0.5, "y": 0.5}], "finish_reason": "stop", "metrics": {}}
    page.route("**/v1/point", lambda route: route.fulfill(json=points))
    ask(page, "point", "lobster " * 10000)
    assert len(page.locator(".badge").get_attribute("aria-label")) < 220
    assert len(page.locator("#spoken").text_content()) < 300


def test_three_hundred_marks_leave_the_picture_to_be_seen(page, served):
    points = [{"x": at % 20 / 20 + 0.025, "y": at // 20 / 15 + 0.02} for at in range(300)]
    page.route("**/v1/point", lambda route: route.fulfill(json={"points": points, "metrics": {}}))
    show(page, SQUARE)
    card = ask(page, "point", "pea")
    assert card.locator(".result").count() == page.locator(".badge").count() == 300
    assert page.locator(".badge").nth(20).evaluate("one => getComputedStyle(one).opacity") == "0"
    box = page.locator("#picture").bounding_box()
    page.mouse.move(box["x"] + points[151]["x"] * box["width"], box["y"] + points[151]["y"] * box["height"])
    assert page.locator(".badge.lit").text_content() == "152"
    assert page.locator(".badge.lit").evaluate("one => getComputedStyle(one).opacity") == "1"
    inside = """one => {
      const [{ top, bottom }, list] = [one.getBoundingClientRect(), one.closest('.answers').getBoundingClientRect()];
      return top >= list.top && bottom <= list.bottom + 1;
    }"""
    assert card.locator(".results > li.lit").evaluate(inside)  # the other one is seen too


def test_where_a_click_is_a_place_a_box_is_no_obstacle(page, served):
    show(page, SQUARE)
    ask(page, "detect", "star")
    choose(page, "query", "What is this?")
    box = page.locator("#picture").bounding_box()
    page.mouse.click(box["x"] + 0.73 * box["width"], box["y"] + 0.57 * box["height"])  # within the star's box
    assert page.locator("#pins path").count() == 1


def test_a_result_leads_to_its_mark_and_back(browser, served):
    with opened(browser, served, viewport=PHONE, has_touch=True) as page:
        show(page, SQUARE)
        card = ask(page, "point", "cross")
        top, low = (card.bounding_box()["y"], page.viewport_size["height"])
        assert top < low, "the answer is where it is seen"
        card.locator(".result").nth(1).click()
        assert page.evaluate("document.activeElement.textContent") == "2"
        assert page.locator(".badge").nth(1).evaluate("one => one.getBoundingClientRect().top >= 0")
        page.keyboard.press("Enter")
        assert "result" in page.evaluate("document.activeElement.className")


def test_settings_may_have_any_value_that_the_server_takes(page, served):
    sent = asked(page)
    page.locator("#settings summary").click()
    page.fill("#set-temperature", "0.25")
    page.fill("#set-top_p", "0.995")
    ask(page, "query", "Who are you?")
    assert json.loads(sent[-1].post_data)["settings"] == {"temperature": 0.25, "top_p": 0.995}
    page.fill("#set-max_tokens", "2.5")
    page.click("#send")
    assert page.locator("#hint").text_content() and page.locator("#set-max_tokens").get_attribute("aria-invalid")
    page.fill("#set-max_tokens", "")
    ask(page, "query", "Who are you?")
    assert page.locator("#hint").text_content() == "", "what was mended is not blamed any longer"


def test_a_key_leads_on_to_the_question(browser, tmp_path):
    (tmp_path / "keys").write_text("right\n")
    server = Served("glint", tmp_path / "log", "--api-keys-file", str(tmp_path / "keys"))
    try:
        server.said("curl http://")
        with opened(browser, server, ready=False) as page:
            page.locator("#key").wait_for()
            assert "asks for a key" in page.locator("#spoken").text_content()
            page.fill("#key", "wrong")
            page.press("#key", "Enter")
            page.locator("#spoken", has_text="look for a typing error").wait_for()
            page.fill("#key", "right")
            page.press("#key", "Enter")
            page.get_by_text("glint is ready").wait_for()
            assert page.evaluate("document.activeElement.id") == "prompt"
    finally:
        assert server.end() == 0


def test_a_label_that_was_pressed_twice_comes_back(page, served):
    card = ask(page, "query", "Who are you?")
    button = card.locator(".tools button").first
    button.click()
    button.click()
    card.get_by_text("Copied").wait_for()
    card.get_by_text("Copy JSON").wait_for()


def test_contrast_themes_show_what_is_chosen(browser, served):
    with opened(browser, served, forced_colors="active") as page:
        ground = "one => getComputedStyle(one).backgroundColor"
        chosen = page.locator("#skills input:checked + span").evaluate(ground)
        assert chosen != page.locator("#skills input:not(:checked) + span").first.evaluate(ground)
        dot, page_ground = page.locator(".dot").evaluate(ground), page.locator("body").evaluate(ground)
        assert dot != page_ground


def test_nothing_leaves_the_server_and_no_other_page_may_frame_it(browser, served, tmp_path):
    with opened(browser, served) as page:
        elsewhere = []
        home = f"http://127.0.0.1:{served.port}/"
        page.on("request", lambda request: elsewhere.append(request.url) if home not in request.url else None)
        page.reload()
        page.get_by_text("glint is ready").wait_for()
        show(page, SQUARE)
        for skill, text in (
            ("query", "Who?"),
            ("caption", None),
            ("detect", "star"),
            ("segment", "star"),
            ("chat", "Hi"),
        ):
            ask(page, skill, text)
        assert [url for url in elsewhere if not url.startswith("blob:http://127.0.0.1")] == []
    context = browser.new_context()
    try:
        page = context.new_page()
        frame = '<iframe src="/"></iframe>'  # not even within its own origin
        page.route("**/frame", lambda route: route.fulfill(body=frame, content_type="text/html"))
        page.goto(home + "frame")
        page.wait_for_timeout(500)
        assert len(page.frames) == 2 and "gapless" not in page.frames[1].content()
    finally:
        context.close()


def test_keys_alone_lead_from_a_sample_to_an_answer_and_focus_is_never_lost(page, served):
    def focus():
        return page.evaluate("document.activeElement.id || document.activeElement.tagName")

    page.focus("#samples li:nth-child(2) button")
    page.keyboard.press("Enter")
    page.locator("#about-picture", has_text="shapes_square.png").wait_for()
    assert focus() == "prompt-area"
    page.keyboard.press("Tab")
    assert focus() == "prompt"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.value") == "point"
    page.keyboard.press("Tab")
    page.keyboard.type("cross")
    page.keyboard.press("Enter")
    page.locator(".turn .times:not([hidden])").wait_for()
    assert page.locator(".result").count() == 2 and focus() == "prompt"
    page.focus("#remove")
    page.keyboard.press("Enter")
    assert focus() == "choose"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator("#video").wait_for()
    page.wait_for_function("() => document.activeElement.id === 'snap'")
    page.keyboard.press("Enter")
    page.locator("#about-picture", has_text="camera.jpg").wait_for()
    assert focus() == "prompt-area"
    page.click("#camera")
    page.locator("#video").wait_for()
    page.focus("#camera-off")
    page.keyboard.press("Enter")
    assert focus() == "camera"


def test_a_browser_that_keeps_nothing_and_has_less_shows_the_page_and_films(browser, served):
    """No storage where cookies are forbidden, no callback for a video's frames, no clipboard."""
    context = browser.new_context(viewport=DESK)
    try:
        page, wrong = context.new_page(), []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.add_init_script("""
          delete HTMLVideoElement.prototype.requestVideoFrameCallback;
          Object.defineProperty(navigator, 'clipboard', { value: undefined });
          Object.defineProperty(window, 'sessionStorage', { get() { throw new DOMException('no', 'SecurityError'); } });
        """)
        page.goto(f"http://127.0.0.1:{served.port}/")
        page.get_by_text("glint is ready").wait_for()
        page.click("#camera")
        page.locator("#video").wait_for()
        choose(page, "point", "cross")
        page.click("#film")
        page.locator(".meta", has_text="frames a second").wait_for()
        page.click("#stop")
        page.get_by_text("Save picture").wait_for()
        assert not wrong
    finally:
        context.close()


def test_the_time_of_a_slow_way_is_told_apart_from_the_engines(page, served):
    """The engine's own time to the first token says nothing of a slow way to it."""

    def late(route):
        page.wait_for_timeout(700)
        route.continue_()

    page.route("**/v1/*", late)
    assert "here after" in ask(page, "query", "Who are you?").locator(".meta").text_content()
    show(page, SQUARE)
    assert "here after" not in ask(page, "point", "cross").locator(".meta").text_content()  # it comes as a whole
    empty = 'data: {"chunk":"","completed":true,"finish_reason":"stop","metrics":{}}\n\n'
    page.unroute("**/v1/*")
    page.route("**/v1/query", lambda route: route.fulfill(body=empty, content_type="text/event-stream"))
    assert "The answer is empty." in ask(page, "query", "Who?").text_content()
