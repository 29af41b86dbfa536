"""Each skill on the page: what streams, what is said, and what is drawn, pixel by pixel, against the API's numbers."""

import base64
import io
import json
import subprocess
import sys

import pytest
from PIL import Image, ImageOps
from tests.ui.conftest import DESK, PHONE, ask, choose, cold, opened, show, told

from gapless.bench.mix import picture_path

SQUARE = picture_path("shapes_square")
PLACES = """() => {
  const box = document.querySelector('#picture').getBoundingClientRect();
  const corner = (one, x, y) => new DOMPoint(x, y).matrixTransform(one.getScreenCTM());
  return [...document.querySelectorAll('#shapes > g')].map((group) => {
    const one = group.querySelector('.case');
    const { x, y, width, height } = one.getBBox();
    const [from, to] = [corner(one, x, y), corner(one, x + width, y + height)];
    const ends = [from.x - box.x, from.y - box.y, to.x - box.x, to.y - box.y];
    return ends.map((v, at) => v / [box.width, box.height][at % 2]);
  });
}"""


def places(page):
    """What is drawn, as parts of the picture's sides as it lies on the screen: from x, y to x, y."""
    return page.evaluate(PLACES)


def right(drawn, wanted, page):
    """Half a pixel of the screen is allowed."""
    box = page.locator("#picture").bounding_box()
    assert len(drawn) == len(wanted) > 0
    for one, other in zip(drawn, wanted, strict=True):
        sides = (box["width"], box["height"]) * 2
        assert all(abs(a - b) * side < 0.5 for a, b, side in zip(one, other, sides, strict=True)), (one, other)


def of_point(point):
    return [point["x"], point["y"]] * 2


def of_box(box):
    return [box["x_min"], box["y_min"], box["x_max"], box["y_max"]]


def turned(folder):
    """A photograph as a phone saves it: lying down, with a note that it stands."""
    path = folder / "turned.jpg"
    image = ImageOps.exif_transpose(Image.open(SQUARE)).convert("RGB").resize((900, 600))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.rotate(90, expand=True).save(path, quality=95, exif=exif)
    return path


def of_size(folder, width, height):
    path = folder / f"{width}x{height}.png"
    Image.open(SQUARE).convert("RGB").resize((width, height)).save(path)
    return path


@pytest.mark.parametrize("window", [DESK, {"width": 900, "height": 500}, PHONE], ids=["desk", "low", "phone"])
def test_marks_are_where_the_numbers_say_whatever_the_picture_and_the_window(browser, served, window, tmp_path):
    scale = 2 if window is PHONE else 1
    pictures = [SQUARE, picture_path("shapes_wide"), picture_path("shapes_tall"), turned(tmp_path)]
    pictures += [of_size(tmp_path, 96, 64), of_size(tmp_path, 2600, 1400)]
    with opened(browser, served, viewport=window, device_scale_factor=scale) as page:
        for path in pictures:
            show(page, path)
            card = ask(page, "detect", "everything")
            boxes = told(served, "detect", path, object="everything")["objects"]
            right(places(page), [of_box(box) for box in boxes], page)
            assert card.locator(".result").count() == len(boxes)
            ask(page, "point", "everything")
            points = told(served, "point", path, object="everything")["points"]
            right(places(page), [of_point(point) for point in points], page)
        page.set_viewport_size({"width": 1000, "height": 900})  # and when the window changes
        right(places(page), [of_point(point) for point in points], page)


def test_the_pixels_of_a_box_and_a_point_have_its_colour(page, served):
    show(page, SQUARE)
    box = told(served, "detect", SQUARE, object="star")["objects"][0]
    ask(page, "detect", "star")
    assert near(pixel(page, box["x_min"], (box["y_min"] + box["y_max"]) / 2), (0xFF, 0xD1, 0x66))
    assert near(pixel(page, (box["x_min"] + box["x_max"]) / 2, box["y_max"]), (0xFF, 0xD1, 0x66))
    point = told(served, "point", SQUARE, object="star")["points"][0]
    ask(page, "point", "star")
    assert near(pixel(page, point["x"], point["y"]), (0xFF, 0xD1, 0x66))


def pixel(page, x, y):
    image = Image.open(io.BytesIO(page.locator("#picture").screenshot())).convert("RGB")
    return image.getpixel((min(int(x * image.width), image.width - 1), min(int(y * image.height), image.height - 1)))


def near(one, other):
    return max(abs(a - b) for a, b in zip(one, other, strict=True)) < 40


def test_an_outline_is_the_path_in_its_box(page, served):
    show(page, SQUARE)
    ask(page, "segment", "star")
    answer = told(served, "segment", SQUARE, object="star")
    path = page.locator("#shapes path.outline").first
    assert path.get_attribute("d") == answer["path"]
    right(places(page), [of_box(answer["bbox"])], page)


def test_words_stream_and_the_second_question_shows_what_the_cache_saved(page, served, tmp_path):
    show(page, of_size(tmp_path, 333, 222))  # a picture that the server has not seen
    cold(page)
    page.evaluate("""() => {
      window.grown = new Set();
      const watch = new MutationObserver(() => grown.add(document.querySelector('.words')?.textContent ?? ''));
      watch.observe(document.querySelector('#turns'), { childList: true, subtree: true, characterData: true });
    }""")
    choose(page, "caption")
    page.get_by_label("long").check()
    first = ask(page, "caption")
    words = first.locator(".words").text_content()
    assert len(words.split()) > 5 and len(page.evaluate("[...grown]")) > 4
    assert "first token" in first.locator(".times").text_content()
    second = ask(page, "query", "How many crosses are there?")
    assert second.locator(".words").text_content() == "2"
    times = second.locator(".times").text_content()
    assert "first question" in times and "this one" in times and "tokens were there already" in times
    assert page.locator("#spoken").text_content().startswith("2 First token after")


def test_thoughts_are_shown_with_the_points_that_they_mean(page, served):
    show(page, SQUARE)
    cold(page)
    page.check("#reasoning")
    card = ask(page, "query", "How many crosses are there?")
    answer = told(served, "query", SQUARE, question="How many crosses are there?", reasoning=True)
    assert card.locator(".thoughts p").text_content() == answer["reasoning"]["text"]
    points = [point for part in answer["reasoning"]["grounding"] for point in part["points"]]
    right(places(page), [point * 2 for point in points], page)


def test_a_conversation_goes_on(page, served):
    sent = []
    page.on("request", lambda request: sent.append(request) if "chat" in request.url else None)
    show(page, SQUARE)
    cold(page)
    ask(page, "chat", "How many crosses are there?")
    card = ask(page, "chat", "Is there a star?")
    assert card.locator(".words").text_content()
    messages = json.loads(sent[-1].post_data)["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[0]["content"][0]["type"] == "image_url" and messages[2]["content"] == "Is there a star?"


def test_results_and_marks_light_each_other(page, served):
    show(page, SQUARE)
    card = ask(page, "point", "cross")
    result, badge = card.locator(".result").nth(1), page.locator(".badge").nth(1)
    result.focus()
    assert "lit" in badge.get_attribute("class") and page.locator("#shapes g.lit").count() == 1
    badge.focus()
    assert "lit" in card.locator(".results > li").nth(1).get_attribute("class")
    badge.press("Enter")
    assert page.evaluate("document.activeElement.dataset.mark") == "1"
    page.locator(".badge").first.hover()
    assert "lit" in card.locator(".results > li").first.get_attribute("class")


HOSTILE = 'it\'s $(touch /tmp/x) "`id`" \\ <img src=x onerror=alert(1)> 🦊.png'


def test_what_is_copied_asks_the_same_whatever_names_and_questions_are(page, served, tmp_path):
    path = tmp_path / HOSTILE.replace("/", "_")
    path.write_bytes(SQUARE.read_bytes())
    question = "How many <b>crosses</b> are there, 'really'? \\ $HOME `id` \"🦊\" {PICTURE}"
    show(page, path)
    cold(page)
    card = ask(page, "query", question)
    assert "<b>crosses</b>" in card.locator("h3").text_content() and page.locator("#turns b").count() == 0
    assert path.name in page.locator("#about-picture").text_content()

    def copied(label):
        card.get_by_text(label).click()
        return page.evaluate("navigator.clipboard.readText()")

    shown = json.loads(copied("Copy JSON"))
    assert shown["answer"] == card.locator(".words").text_content() and shown["metrics"]["output_tokens"] > 0
    lines = copied("Copy curl")
    done = subprocess.run(["sh", "-c", lines], cwd=tmp_path, capture_output=True, check=True, timeout=60)
    assert json.loads(done.stdout)["answer"] == shown["answer"]
    program = copied("Copy Python")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, check=True, timeout=60)
    assert repr(shown["answer"]) in done.stdout.decode()
    page.evaluate("() => { navigator.clipboard.writeText(''); window.real = navigator.clipboard; }")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")  # as at http://elsewhere
    card.get_by_text("Copy curl").click()
    card.get_by_text("Copied").first.wait_for()
    assert page.evaluate("real.readText()") == lines


def test_pictures_come_by_paste_and_drop_and_only_what_is_too_large_is_made_smaller(page, served):
    sent = []
    page.on("request", lambda request: sent.append(request) if request.method == "POST" else None)
    give = """([data, how]) => {
      const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
      const transfer = new DataTransfer();
      transfer.items.add(new File([bytes], `${how}.png`, { type: 'image/png' }));
      const usual = { bubbles: true, cancelable: true };
      const event = how === 'paste' ? new ClipboardEvent('paste', { clipboardData: transfer, ...usual })
        : new DragEvent('drop', { dataTransfer: transfer, ...usual });
      document.querySelector('#board').dispatchEvent(event);
    }"""
    data = base64.b64encode(SQUARE.read_bytes()).decode()
    for how in ("paste", "drop"):
        page.evaluate(give, [data, how])
        page.locator("#about-picture", has_text=f"{how}.png").wait_for()
        ask(page, "point", "cross")
        assert json.loads(sent[-1].post_data)["image_url"] == "data:image/png;base64," + data
    page.set_input_files("#file", {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"words"})
    page.get_by_text("This browser cannot show notes.txt").wait_for()
    assert page.locator("#about-picture").text_content().startswith("drop.png")


def test_a_skill_that_needs_a_picture_says_so(page, served):
    choose(page, "point", "cross")
    page.click("#send")
    assert page.locator("#hint").text_content() == "Point needs a picture."
    assert page.locator("#prompt").get_attribute("aria-describedby") == "hint"
    choose(page, "query", "")
    page.click("#send")
    assert page.locator("#hint").text_content() == "Write here what is asked."
    assert ask(page, "query", "Who are you?").locator(".words").text_content()


def test_an_answer_in_a_shape(page, served):
    show(page, SQUARE)
    cold(page)
    page.locator("#shape-row summary").click()
    page.fill("#shape", "a red one\na blue one\n")
    assert ask(page, "query", "What color is the circle?").locator(".words").text_content() in (
        "a red one",
        "a blue one",
    )
    page.fill("#shape", '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}')
    assert set(json.loads(ask(page, "query", "How many?").locator(".words").text_content())) == {"n"}
    page.fill("#shape", '{"type": ')
    page.click("#send")
    assert "The schema is not JSON" in page.locator("#hint").text_content()
    assert page.locator("#shape").get_attribute("aria-invalid") == "true"
    page.fill("#shape", '{"type": "lobster"}')
    page.click("#send")
    page.locator(".turn.failed").wait_for()
    assert page.locator("#shape").get_attribute("aria-invalid") == "true"


def test_a_click_or_a_drag_says_which_place_is_meant(page, served):
    sent = []
    page.on("request", lambda request: sent.append(request.post_data) if request.method == "POST" else None)
    show(page, SQUARE)
    cold(page)
    choose(page, "query", "What is this?")
    box = page.locator("#picture").bounding_box()

    def spot(x, y):
        return box["x"] + x * box["width"], box["y"] + y * box["height"]

    page.mouse.click(*spot(0.73, 0.57))
    assert ask(page, "query").locator(".words").text_content() == "a large red star"
    ((x, y),) = json.loads(sent[-1])["spatial_refs"]
    assert abs(x - 0.73) < 0.004 and abs(y - 0.57) < 0.004 and page.locator("#pins path").count() == 1
    page.fill("#places", "")
    page.mouse.move(*spot(0.47, 0.39))
    page.mouse.down()
    page.mouse.move(*spot(0.63, 0.55), steps=4)
    page.mouse.up()
    assert ask(page, "query").locator(".words").text_content() == "a medium yellow cross"
    assert len(json.loads(sent[-1])["spatial_refs"][0]) == 4 and page.locator("#pins rect").count() == 1
    page.fill("#places", "0.5, 2")  # by hand, and wrong
    page.click("#send")
    assert page.locator("#hint").text_content() == "A place is two or four numbers from 0 to 1."
    choose(page, "detect", "star")
    assert page.locator("#places-row").is_hidden() and page.locator("#pins *").count() == 0
    assert ask(page, "detect", "star").locator(".result").count() == 1 and "spatial_refs" not in sent[-1]
