"""The camera: a frame, a film with one question at a time, and a camera that is given back however it ends."""

import json
import re

import pytest
from tests.ui.conftest import PHONE, ask, choose, cold, opened, show

from gapless.bench.mix import picture_path

TRACKS = """(() => {
  window.tracks = [];
  const real = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
  navigator.mediaDevices.getUserMedia = async (wanted) => {
    const stream = await real(wanted);
    tracks.push(...stream.getTracks());
    return stream;
  };
})()"""
SLOW_CAMERA = TRACKS.replace(
    "const stream", "await new Promise((resolve) => setTimeout(resolve, 400));\n    const stream"
)
LIVE = "tracks.filter((track) => track.readyState === 'live').length"


@pytest.fixture
def seen(page):
    page.evaluate(TRACKS)
    page.click("#camera")
    page.locator("#video").wait_for()
    return page


def free(page):
    """No track of the camera is held any more."""
    states = page.evaluate("tracks.map((track) => track.readyState)")
    return (
        bool(states)
        and set(states) == {"ended"}
        and page.evaluate("document.querySelector('#video').srcObject") is None
    )


def test_a_film_asks_one_question_at_a_time_and_gives_the_camera_back(seen):
    page, flying, most, bodies = seen, [0], [0], []

    def began(request):
        if request.url.endswith("/v1/point"):
            bodies.append(json.loads(request.post_data))
            flying[0] += 1
            most[0] = max(most[0], flying[0])

    def ended(request):
        flying[0] -= request.url.endswith("/v1/point")

    page.on("request", began)
    page.on("requestfinished", ended)
    page.on("requestfailed", ended)
    choose(page, "point", "cross")
    page.click("#film")
    page.wait_for_function("() => /[1-9][0-9]* asked/.test(document.querySelector('.turn .meta').textContent)")
    page.wait_for_function(
        "() => (document.querySelector('.turn .meta').textContent.match(/([0-9]+) asked/) ?? [0, 0])[1] > 5"
    )
    told = page.locator(".turn .meta").text_content()
    assert float(re.match(r"([0-9.]+) frames a second", told)[1]) > 0 and "dropped" in told
    assert page.locator(".badge").count() == 2 and page.locator(".result").count() == 2
    box, dots = page.locator("#video").bounding_box(), page.locator("#shapes g").all()
    where = page.evaluate("""() => [...document.querySelectorAll('#shapes .dot.case')].map((one) => {
      const { x, y } = one.getBBox();
      const { x: left, y: top } = new DOMPoint(x, y).matrixTransform(one.getScreenCTM());
      return [left, top];
    })""")
    places = [((x - box["x"]) / box["width"], (y - box["y"]) / box["height"]) for x, y in where]
    assert len(dots) == 2
    for (x, y), (right_x, right_y) in zip(sorted(places), ((0.446, 0.387), (0.551, 0.469)), strict=True):
        assert abs(x - right_x) < 0.02 and abs(y - right_y) < 0.02  # of the picture that is filmed
    page.click("#stop")
    page.locator("#send").wait_for()
    assert free(page) and page.locator("#film").is_hidden()
    assert most[0] == 1 and len(bodies) > 5
    assert all(body["object"] == "cross" and body["image_url"].startswith("data:image/jpeg") for body in bodies)
    assert (
        "Filmed" in page.locator("#spoken").text_content() or "camera is off" in page.locator("#spoken").text_content()
    )


def test_a_frame_becomes_the_picture(seen):
    page = seen
    page.click("#snap")
    page.locator("#about-picture", has_text="camera.jpg · 640 × 480").wait_for()
    assert free(page)
    cold(page)
    card = ask(page, "query", "How many crosses are there?")
    assert card.locator(".words").text_content() == "2" and card.get_by_text("Save picture").is_visible()


def test_asking_takes_the_frame_that_is_shown(seen):
    page = seen
    assert ask(page, "detect", "star").locator(".result").count() == 1
    assert free(page) and page.locator("#about-picture").text_content().startswith("camera.jpg")


def test_a_film_waits_for_a_place(seen):
    page = seen
    refused = {"error": {"message": "of 1 places none are free; ask again later", "type": "too_many_requests"}}
    page.route(
        "**/v1/point",
        lambda route: route.fulfill(status=429, headers={"Retry-After": "1"}, json=refused),
        times=1,
    )
    choose(page, "point", "cross")
    page.click("#film")
    page.locator(".meta", has_text="Waiting for a place").wait_for()
    page.wait_for_function("() => /[1-9][0-9]* asked/.test(document.querySelector('.turn .meta').textContent)")
    page.click("#camera-off")
    page.locator("#send").wait_for()
    assert free(page)


def test_a_camera_that_is_refused_or_missing_is_told(browser, served):
    with opened(browser, served) as page:
        for name, words in (("NotAllowedError", "may not use the camera"), ("NotFoundError", "There is no camera")):
            page.evaluate(
                "name => { navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException('no', name)); }",
                name,
            )
            page.click("#camera")
            page.locator("#picture-note", has_text=words).wait_for()
        page.evaluate("Object.defineProperty(navigator, 'mediaDevices', { value: undefined })")
        page.click("#camera")
        page.locator("#picture-note", has_text="https:// or localhost").wait_for()


def film(page):
    page.evaluate(SLOW_CAMERA)
    page.click("#camera")
    page.locator("#video").wait_for()
    choose(page, "point", "cross")
    page.click("#film")
    page.locator(".meta", has_text="frames a second").wait_for()


@pytest.mark.parametrize("end", ["#camera-off", "hidden", "#remove"])
def test_a_film_whose_camera_goes_ends_without_a_word_of_failure(page, served, end):
    film(page)
    if end == "hidden":
        page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    elif end == "#remove":
        show(page, picture_path("shapes_tall"))
    else:
        page.click(end)
    page.locator("#send").wait_for()
    page.wait_for_timeout(1200)  # longer than a frame is waited for
    assert page.locator(".failed").count() == 0 and page.evaluate(LIVE) == 0
    assert page.locator("#spoken").text_content().startswith("Filmed")


def test_the_last_frame_of_a_film_stays_with_its_marks(page, served):
    film(page)
    page.click("#stop")
    page.locator("#about-picture", has_text="camera.jpg · 640 × 480").wait_for()
    assert page.evaluate(LIVE) == 0 and page.locator(".badge").count() == 2
    card = page.locator(".turn").first
    card.get_by_text("Copy Python").click()
    assert (
        '"camera.jpg"' in page.evaluate("navigator.clipboard.readText()") and card.get_by_text("Save picture").count()
    )


def test_a_film_that_waits_for_a_place_is_stopped_at_once(page, served):
    full = {"error": {"message": "of 1 places none are free", "type": "too_many_requests"}}
    page.route("**/v1/point", lambda route: route.fulfill(status=429, headers={"Retry-After": "30"}, json=full))
    page.click("#camera")
    page.locator("#video").wait_for()
    choose(page, "point", "cross")
    page.click("#film")
    page.locator(".meta", has_text="Waiting for a place").wait_for()
    page.click("#stop")
    page.unroute("**/v1/point")
    assert ask(page, "query", "Who are you?").locator(".words").text_content()


def test_a_camera_that_comes_late_is_given_back(page, served):
    page.evaluate(SLOW_CAMERA)
    page.evaluate("() => { for (let n = 0; n < 3; n++) document.querySelector('#camera').click(); }")
    page.locator("#video").wait_for()
    page.wait_for_function("() => tracks.length === 3")
    page.wait_for_timeout(300)
    assert page.evaluate(LIVE) == 1
    page.click("#camera-off")
    assert page.evaluate(LIVE) == 0
    page.click("#camera")
    page.locator("#samples button").first.click()  # before anybody has allowed it
    page.wait_for_function("() => tracks.length === 4")
    page.wait_for_timeout(300)
    assert page.evaluate(LIVE) == 0 and page.locator("#video").is_hidden() and page.locator("#picture").is_visible()


def test_a_film_does_not_grow(page, served):
    client = page.context.new_cdp_session(page)
    client.send("Performance.enable")

    def held():
        client.send("HeapProfiler.collectGarbage")
        found = {one["name"]: one["value"] for one in client.send("Performance.getMetrics")["metrics"]}
        return found["JSHeapUsedSize"], found["JSEventListeners"]

    def until(count):
        page.wait_for_function(
            "n => (document.querySelector('.turn .meta').textContent.match(/([0-9]+) asked/) ?? [0, 0])[1] >= n",
            arg=count,
            timeout=120000,
        )

    film(page)
    until(20)
    heap, listeners = held()
    until(120)
    more, others = held()
    page.click("#stop")
    assert others < listeners + 20 and more < heap + 2e6


def test_on_a_phone_what_is_filmed_is_seen(browser, served):
    with opened(browser, served, viewport=PHONE, has_touch=True, is_mobile=True) as page:
        page.locator("#camera").tap()
        page.locator("#video").wait_for()
        choose(page, "point", "cross")
        page.locator("#film").tap()
        page.locator(".meta", has_text="frames a second").wait_for()
        for part in ("#video", "#camera-off"):
            box = page.locator(part).bounding_box()
            assert box["y"] >= 0 and box["y"] + box["height"] <= PHONE["height"], part
        page.locator("#camera-off").tap()
        page.locator("#send").wait_for()
