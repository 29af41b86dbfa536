"""The camera: a frame, a film with one question at a time, and a camera that is given back however it ends."""

import json
import re

import pytest
from tests.ui.conftest import ask, choose, cold, opened

TRACKS = """(() => {
  window.tracks = [];
  const real = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
  navigator.mediaDevices.getUserMedia = async (wanted) => {
    const stream = await real(wanted);
    tracks.push(...stream.getTracks());
    return stream;
  };
})()"""


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
