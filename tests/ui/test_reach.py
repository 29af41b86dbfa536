"""Everybody can use the page: by keys alone, on a phone, in light and dark, with a screen reader (axe-core)."""

import pytest
from tests.ui.conftest import DESK, PHONE, ask, choose, cold, opened, show

from gapless.bench.mix import picture_path

SQUARE = picture_path("shapes_square")
GRAVE = ("serious", "critical")


def grave(page, axe):
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    return [(one["id"], [node["html"][:120] for node in one["nodes"]]) for one in found if one["impact"] in GRAVE]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("window", [DESK, PHONE], ids=["desk", "phone"])
def test_axe_finds_nothing_grave(browser, served, axe, scheme, window):
    with opened(browser, served, viewport=window, color_scheme=scheme, bypass_csp=True) as page:
        assert grave(page, axe) == []
        page.evaluate("document.querySelector('#choose').textContent = ''")
        assert [name for name, _ in grave(page, axe)] == ["button-name"]  # it does look
        page.evaluate("document.querySelector('#choose').textContent = 'Choose'")
        show(page, SQUARE)
        cold(page)
        for skill, text in (("caption", None), ("query", "How many crosses are there?"), ("detect", "everything")):
            ask(page, skill, text)
        ask(page, "segment", "star")
        page.wait_for_timeout(400)
        assert grave(page, axe) == []
        page.route("**/v1/query", lambda route: route.abort())
        ask(page, "query", "Who are you?")  # an error's colours
        page.locator(".turn.failed").wait_for()
        assert grave(page, axe) == []


def test_everything_is_reached_by_keys_and_shows_that_it_is(page, served):
    show(page, SQUARE)
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "prompt-area"
    page.keyboard.press("Tab")
    page.keyboard.type("How many crosses are there?")
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Backspace")
    page.keyboard.press("Enter")
    page.locator(".turn .times").wait_for()
    choose(page, "detect", "everything")
    page.focus("#skills input:checked")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.value") == "point"
    page.fill("#prompt", "cross")
    page.focus("#send")
    page.keyboard.press("Enter")
    page.locator(".badge").nth(1).wait_for()
    page.locator("#send").wait_for()
    reached, plain = round_trip(page)
    wanted = {"choose", "camera", "remove", "prompt", "send", "strip-pause", "clear"}
    assert wanted <= reached and "mark" in reached and "radio:point" in reached, wanted - reached
    assert not plain, f"focus is not to be seen on {plain}"
    page.focus(".badge")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == "2"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.className").startswith("result")


def round_trip(page):
    """What Tab comes to, and those of them on which nothing shows it."""
    reached, plain, rounds = set(), [], 0
    while rounds < 2:
        page.keyboard.press("Tab")
        one = page.evaluate("""() => {
          const one = document.activeElement;
          const shown = one.name === 'skill' ? one.nextElementSibling : one;
          const { outlineStyle, outlineWidth } = getComputedStyle(shown);
          const other = one.dataset.mark !== undefined ? 'mark' : one.tagName;
          const name = one.type === 'radio' ? `radio:${one.value}` : one.id || other;
          return [name, outlineStyle !== 'none' && parseFloat(outlineWidth) > 0, one === document.body];
        }""")
        rounds += one[2]
        if not one[2]:
            reached.add(one[0])
            plain += [] if one[1] else [one[0]]
    return reached, plain


def test_on_a_phone_nothing_lies_outside_and_nothing_is_too_small_to_touch(browser, served):
    with opened(browser, served, viewport=PHONE, has_touch=True, is_mobile=True) as page:
        show(page, SQUARE)
        ask(page, "detect", "everything")
        page.locator("#settings summary").click()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        small = page.evaluate("""() => [...document.querySelectorAll('button, input, select, textarea, summary')]
          .filter((one) => one.offsetParent && one.type !== 'radio' && one.type !== 'checkbox')
          .filter((one) => one.getBoundingClientRect().height < 24 || one.getBoundingClientRect().width < 24)
          .map((one) => one.outerHTML.slice(0, 80))""")
        assert not small


def test_motion_stops_for_whoever_asks_for_less(browser, served):
    with opened(browser, served, reduced_motion="reduce") as page:
        page.route("**/v1/query", lambda route: None)
        choose(page, "query", "Who are you?")
        page.click("#send")
        page.locator(".growing").wait_for()
        name = page.evaluate("getComputedStyle(document.querySelector('.growing'), '::after').animationName")
        assert name == "none"
        page.click("#stop")
