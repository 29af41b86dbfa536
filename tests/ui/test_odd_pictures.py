"""Pictures that are odd: what is drawn lies on what is seen, and the model is sent what is seen."""

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image, ImageOps
from tests.ui.conftest import ask, choose, opened, show, told
from tests.ui.test_answers_shown import SQUARE, of_box, places, right


def sent(page):
    """The pictures of requests, as they are sent."""
    found = []

    def note(request):
        if request.method == "POST":
            found.append(base64.b64decode(json.loads(request.post_data)["image_url"].partition(",")[2]))

    page.on("request", note)
    return found


def seen(page):
    """The picture as it is shown, without what is drawn on it."""
    return page.evaluate("""async () => {
      const image = document.querySelector('#picture');
      const canvas = Object.assign(document.createElement('canvas'), { width: 60, height: 60 });
      canvas.getContext('2d').drawImage(image, 0, 0, 60, 60);
      return [...canvas.getContext('2d').getImageData(0, 0, 60, 60).data].filter((_, at) => at % 4 < 3);
    }""")


def same(page, picture):
    """The server's pixels are those that are shown, but for how they were made smaller."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(picture))).convert("RGB").resize((60, 60), Image.BOX)
    return np.abs(np.asarray(image, np.int16).ravel() - np.array(seen(page), np.int16)).mean() < 12


@pytest.mark.parametrize("kind", ["jpg", "png", "webp"])
@pytest.mark.parametrize("turn", [3, 6])
def test_a_picture_that_lies_down_is_marked_as_it_is_seen(page, served, tmp_path, kind, turn):
    exif = Image.Exif()
    exif[0x0112] = turn
    how = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90}[turn]
    path = tmp_path / f"lies.{kind}"
    Image.open(SQUARE).convert("RGB").resize((900, 600)).transpose(how).save(path, exif=exif)
    pictures = sent(page)
    show(page, path)
    ask(page, "detect", "everything")
    assert same(page, pictures[-1])
    (tmp_path / "sent.png").write_bytes(pictures[-1])
    boxes = told(served, "detect", tmp_path / "sent.png", object="everything")["objects"]
    right(places(page), [of_box(box) for box in boxes], page)
    assert (pictures[-1] == path.read_bytes()) == (kind == "jpg")  # all browsers turn those


@pytest.mark.parametrize("kind", ["gif", "png", "webp"])
def test_of_a_picture_that_moves_the_frame_that_is_asked_about_stays(page, served, tmp_path, kind):
    path = tmp_path / f"moves.{kind}"
    frames = [Image.open(SQUARE).convert("RGB"), *(Image.new("RGB", (480, 480), name) for name in ("red", "blue"))]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=60, loop=0)
    pictures = sent(page)
    show(page, path)
    assert "only its first frame" in page.locator("#picture-note").text_content()
    page.wait_for_timeout(200)  # another frame's turn
    card = ask(page, "point", "cross")
    assert card.locator(".result").count() == 2 and same(page, pictures[-1])
    page.route("**/v1/point", lambda route: route.fulfill(status=500, json={"error": {"message": "no"}}))
    card.get_by_text("Copy curl").click()
    assert "moves-sent.png" in page.evaluate("navigator.clipboard.readText()")  # not the file, whose bytes are others
    show(page, SQUARE)
    with page.expect_download() as download:  # of a picture that is shown no more
        card.get_by_text("Save picture").click()
    assert download.value.suggested_filename == "moves-sent.png"
    assert download.value.path().read_bytes() == pictures[0]


def test_what_is_transparent_is_white_as_for_the_model(browser, served, tmp_path):
    pixels = np.zeros((300, 300, 4), np.uint8)
    pixels[100:200, 100:200] = (200, 30, 30, 255)
    path = tmp_path / "clear.png"
    Image.fromarray(pixels).save(path)
    (tmp_path / "clear.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="300" height="300"><script>alert(1)</script>'
        '<rect x="100" y="100" width="100" height="100" fill="#c81e1e" onload="alert(2)"/></svg>'
    )
    with opened(browser, served, color_scheme="dark") as page:
        pictures = sent(page)
        for file in (path, tmp_path / "clear.svg"):
            show(page, file)
            corner = Image.open(io.BytesIO(page.locator("#picture").screenshot())).convert("RGB").getpixel((60, 60))
            assert min(corner) > 250, file
            ask(page, "point", "square")
        image = Image.open(io.BytesIO(pictures[-1])).convert("RGB")
        assert image.getpixel((20, 20)) == (255, 255, 255) and image.getpixel((150, 150)) == (200, 30, 30)


@pytest.mark.parametrize("size", [(1, 1), (6000, 20), (20, 6000), (3, 900)])
def test_a_picture_of_odd_sides_is_seen_whole_with_its_marks(page, served, tmp_path, size):
    path = tmp_path / "odd.png"
    Image.open(SQUARE).convert("RGB").resize(size).save(path)
    show(page, path)
    page.route(
        "**/v1/detect",
        lambda route: route.fulfill(json={"objects": [{"x_min": 0.2, "y_min": 0.3, "x_max": 0.7, "y_max": 0.9}]}),
    )
    ask(page, "detect", "everything")
    right(places(page), [[0.2, 0.3, 0.7, 0.9]], page)
    box, board = page.locator("#picture").bounding_box(), page.locator("#board").bounding_box()
    assert min(box["width"], box["height"]) >= 16
    assert box["x"] >= board["x"] and box["y"] >= board["y"]
    assert box["y"] + box["height"] <= board["y"] + board["height"] + 0.5
    assert box["x"] + box["width"] <= board["x"] + board["width"] + 0.5


def test_a_file_that_is_cut_off_is_told_and_the_question_is_not_blamed(page, served, tmp_path):
    path = tmp_path / "half.jpg"
    Image.open(SQUARE).convert("RGB").save(path)
    path.write_bytes(path.read_bytes()[:9000])
    show(page, path)
    card = ask(page, "point", "cross")
    assert "damaged or cut off" in card.locator(".meta").text_content()
    assert page.locator("#prompt").get_attribute("aria-invalid") is None


GIVE = """([how, files, texts, target]) => {
  const transfer = new DataTransfer();
  for (const [name, data, type] of files) {
    transfer.items.add(new File([Uint8Array.from(atob(data), (one) => one.charCodeAt(0))], name, { type }));
  }
  for (const [type, text] of texts) transfer.setData(type, text);
  const usual = { bubbles: true, cancelable: true };
  const event = how === 'paste' ? new ClipboardEvent('paste', { clipboardData: transfer, ...usual })
    : new DragEvent(how, { dataTransfer: transfer, ...usual });
  document.querySelector(target).dispatchEvent(event);
  return event.defaultPrevented;
}"""


def test_words_are_pasted_and_dropped_as_words_and_of_many_files_one_is_taken(page, served):
    data = base64.b64encode(SQUARE.read_bytes()).decode()
    image, words = ["cells.png", data, "image/png"], [["text/plain", "A1\tB1"], ["text/html", "<table>"]]
    choose(page, "query")
    for how in ("paste", "dragover", "drop"):
        assert not page.evaluate(GIVE, [how, [], words, "#prompt"]), how
    assert not page.evaluate(GIVE, ["paste", [image], words, "#prompt"])  # cells of a table bring their picture along
    assert page.locator("#frame").is_hidden()
    assert page.evaluate(GIVE, ["paste", [image], [], "#prompt"])  # a picture alone is one there too
    page.locator("#about-picture", has_text="cells.png").wait_for()
    many = [["notes.txt", data, "text/plain"], *([f"{at}.png", data, "image/png"] for at in range(30))]
    assert page.evaluate(GIVE, ["drop", many, [], "#board"])
    page.locator("#about-picture", has_text="0.png").wait_for()
    assert "of the 31 files" in page.locator("#picture-note").text_content()
    assert page.evaluate(GIVE, ["drop", [], [["text/uri-list", "http://example.com/a.png"]], "#board"])
    assert "That was no file" in page.locator("#picture-note").text_content()
    assert page.locator("#about-picture").text_content().startswith("0.png")


def test_a_large_picture_that_is_drawn_anew_is_sent_as_a_photograph(page, served, tmp_path):
    path, exif = tmp_path / "large.png", Image.Exif()
    exif[0x0112] = 3
    Image.open(SQUARE).convert("RGB").resize((2600, 1800)).rotate(180).save(path, exif=exif)
    pictures = sent(page)
    show(page, path)
    assert "sent as 2600 × 1800 JPEG" in page.locator("#picture-note").text_content()
    assert ask(page, "point", "cross").locator(".result").count() == 2
    assert same(page, pictures[-1]) and len(pictures[-1]) < 2e6
