"""The bubble as a picture: a few decode steps of two runs, one above the other, on one scale.

In: two `Window`s. Out: a Pillow image. Each run has a lane for the host (the loop's thread) and one for the device (the
compute stream). Lines lead from a launch down to its forward and from a sampling up to its commit. Where the device
stood idle it is hatched and says how long. Everything is drawn from real times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from PIL import Image, ImageDraw, ImageFont

from gapless.observe.meter import Part
from gapless.observe.recording import LOOP, Span
from gapless.observe.window import Window
from gapless.records import Lane, StepKind

WIDTH, MARGIN, LEFT = 1600, 36, 170
TITLE, HEAD, SMALL = 30, 25, 21
HOST_HEIGHT, DEVICE_HEIGHT, BETWEEN = 50, 72, 34
PANEL = 66 + HOST_HEIGHT + BETWEEN + DEVICE_HEIGHT + 34
INK, FAINT, PAPER = "#1d2430", "#687182", "#ffffff"
IDLE, IDLE_PAPER = "#c62f2f", "#fdeaea"
WAITING = "#edf0f5"
FORWARD, FEEDING, SAMPLING = ("#2f6db5", "#5b93d3"), "#3a7d6b", "#123f73"
PARTS = {"plan": "#e8a33d", "launch": "#d9622b", "commit": "#7a52a8", "finalize": "#2f9e7f"}
OTHER = "#9aa3b2"
SHADOW = "#f6f7fa"
NICE = (1, 2, 5)
LINKS = (
    (LOOP, "launch", Lane.COMPUTE.value, "forward"),
    (Lane.COMPUTE.value, "sampling", LOOP, "commit"),
)
"""Cause and effect: what ends here begins there."""


def draw(windows: Sequence[Window], title: str) -> Image.Image:
    """The figure; the first window sets the scale, or the longest moment. All begin with a forward, at one place."""
    height = MARGIN + 56 + PANEL * len(windows) + 92
    figure = _Figure(Image.new("RGB", (WIDTH, height), PAPER), windows)
    figure.text((MARGIN, MARGIN - 8), title, TITLE, INK)
    for place, window in enumerate(windows):
        figure.panel(window, MARGIN + 56 + PANEL * place)
    figure.foot(height - 80)
    return figure.image.quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)


class _Figure:
    """An image and its scale: `lead` seconds before a window's start and `length` in all fill the lanes' width."""

    def __init__(self, image: Image.Image, windows: Sequence[Window]) -> None:
        self.image = image
        self._draw = ImageDraw.Draw(image)
        self._shown: set[str] = set()
        first = windows[0]
        self._lead = min(first.lead, first.period / 2)
        whole = max(w.end - w.start for w in windows if w.moment or w is first)
        self._length = self._lead + 1.02 * whole
        self._scale = (WIDTH - MARGIN - LEFT) / self._length

    def text(self, at: tuple[float, float], words: str, size: int, colour: str, anchor: str = "la") -> None:
        """Words in the bundled font."""
        self._draw.text(at, words, fill=colour, font=ImageFont.load_default(size), anchor=anchor)

    def wide(self, words: str, size: int) -> float:
        """Pixels that words take."""
        return float(ImageFont.load_default(size).getlength(words))

    def panel(self, window: Window, top: int) -> None:
        """One run: what it is, and its two lanes."""
        name = "blocking" if window.depth == 1 else "pipelined"
        self.text((MARGIN, top), name, HEAD, INK)
        self.text((MARGIN + self.wide(name, HEAD) + 14, top + 3), f"depth {window.depth}", SMALL, FAINT)
        said = f"{_ms(window.period)} a step, the device idle for {_ms(window.idle)} of it"
        if window.moment:
            whole, idle = _ms(window.end - window.start), _ms(window.idle * window.steps)
            said = f"{window.steps} steps in {whole}, the device idle for {idle} of it"
        self.text((WIDTH - MARGIN, top + 3), said, SMALL, INK, "ra")
        host = top + 46
        device = host + HOST_HEIGHT + BETWEEN
        for lane, y, height in (("host", host, HOST_HEIGHT), ("device", device, DEVICE_HEIGHT)):
            self.text((MARGIN, y + height / 2), lane, HEAD, FAINT, "lm")
            self._draw.rectangle((LEFT, y, WIDTH - MARGIN, y + height), fill=SHADOW)
        begin = window.start - self._lead
        shown = [s for s in window.spans if s.end > begin and s.start < begin + self._length]
        self._links(window.spans, begin, host + HOST_HEIGHT)
        self._host([s for s in shown if s.lane == LOOP], begin, host)
        self._gaps(window, begin, device)
        self._device([s for s in shown if s.lane == Lane.COMPUTE], begin, device, window)
        self._shown |= {s.name for s in shown}
        self._shown |= {s.step.kind.value for s in shown if s.step is not None}

    def _x(self, moment: float, begin: float) -> float:
        """A moment's place, within the lanes."""
        return min(max(LEFT + (moment - begin) * self._scale, LEFT), WIDTH - MARGIN)

    def _host(self, spans: Iterable[Span], begin: float, y: int) -> None:
        for span in spans:
            left, right = self._x(span.start, begin), self._x(span.end, begin)
            if span.name in WAITS:
                self._draw.rectangle((left, y, right, y + HOST_HEIGHT), fill=WAITING)
                self._inside(left, right, y + HOST_HEIGHT / 2, f"waits for {WAITS[span.name]}", FAINT)
            else:
                colour = PARTS.get(span.name, OTHER)
                self._draw.rectangle((left, y, max(right, left + 1), y + HOST_HEIGHT), fill=colour)
                self._inside(left, right, y + HOST_HEIGHT / 2, span.name, PAPER)

    def _device(self, spans: Iterable[Span], begin: float, y: int, window: Window) -> None:
        for span in spans:
            left, right = self._x(span.start, begin), self._x(span.end, begin)
            number = 0 if span.step is None else span.step.id - window.first
            kind = None if span.step is None else span.step.kind
            prefill, parked = kind is StepKind.PREFILL, kind is StepKind.PARKED
            colour = SAMPLING if span.name == "sampling" else FEEDING if prefill else FORWARD[number % 2]
            self._draw.rectangle((left, y, max(right - 1, left), y + DEVICE_HEIGHT), fill=colour)
            says = f"{'prefill' if prefill and span.name == 'forward' else span.name} t{number:+d}".replace("+0", "")
            middle = y + DEVICE_HEIGHT / 2
            if window.moment and (parked or span.name != "sampling"):
                self._inside(left, right, middle - 14, "parked" if parked else says, PAPER)
                self._inside(left, right, middle + 14, _riders(span), PAPER)
            else:
                self._inside(left, right, middle, says, PAPER)

    def _links(self, spans: Sequence[Span], begin: float, y: int) -> None:
        """From causes to effects, in the space between the lanes; those that begin or end outside are left out."""
        place = {(s.step.id, s.lane, s.name): s for s in spans if s.step is not None}
        for (step, lane, name), cause in place.items():
            for effect in (place.get((step, *link[2:])) for link in LINKS if link[:2] == (lane, name)):
                if effect is None or not begin < cause.end <= effect.start < begin + self._length:
                    continue
                down = lane == LOOP
                ends = (y, y + BETWEEN) if down else (y + BETWEEN, y)
                start, end = (self._x(cause.end, begin), ends[0]), (self._x(effect.start, begin), ends[1])
                self._draw.line((*start, *end), fill=PARTS["launch" if down else "commit"], width=2)

    def _gaps(self, window: Window, begin: float, y: int) -> None:
        for start, end in window.gaps:
            left, right = self._x(start, begin), self._x(end, begin)
            if right - left < 1:
                continue
            self._draw.rectangle((left, y, right, y + DEVICE_HEIGHT), fill=IDLE_PAPER)
            self._hatch(left, right, y)
            whole = left > LEFT and right < WIDTH - MARGIN
            if whole and right - left >= 3:
                middle = (left + right) / 2
                self._draw.line((middle, y + DEVICE_HEIGHT, middle, y + DEVICE_HEIGHT + 8), fill=IDLE, width=2)
                said = _ms(end - start)
                centre = min(middle, WIDTH - MARGIN - self.wide(said, SMALL) / 2)
                self.text((centre, y + DEVICE_HEIGHT + 8), said, SMALL, IDLE, "ma")

    def _hatch(self, left: float, right: float, y: int) -> None:
        """Slanted strokes, cut off at the sides."""
        size = (max(round(right - left), 1), DEVICE_HEIGHT)
        patch = Image.new("RGB", size, IDLE_PAPER)
        pen = ImageDraw.Draw(patch)
        for x in range(-DEVICE_HEIGHT, size[0], 12):
            pen.line((x, DEVICE_HEIGHT, x + DEVICE_HEIGHT, 0), fill="#eda5a5", width=3)
        pen.line((0, 0, 0, DEVICE_HEIGHT), fill=IDLE, width=2)
        pen.line((size[0] - 1, 0, size[0] - 1, DEVICE_HEIGHT), fill=IDLE, width=2)
        self.image.paste(patch, (round(left), y))

    def _inside(self, left: float, right: float, y: float, words: str, colour: str) -> None:
        """Words in a box, if they fit."""
        if self.wide(words, SMALL) + 10 < right - left:
            self.text(((left + right) / 2, y), words, SMALL, colour, "mm")

    def foot(self, y: int) -> None:
        """The scale, and what the colours mean."""
        seconds = _nice(0.16 * self._length)
        right = LEFT + seconds * self._scale
        self._draw.line((LEFT, y + 10, right, y + 10), fill=INK, width=3)
        for x in (LEFT, right):
            self._draw.line((x, y + 3, x, y + 17), fill=INK, width=3)
        self.text((right + 12, y + 10), _ms(seconds, digits=3), SMALL, INK, "lm")
        keys = [(name, colour) for name, colour in PARTS.items() if name in self._shown]
        keys += [("other work", OTHER), ("waits", WAITING), ("forward", FORWARD[0])]
        keys += [("prefill", FEEDING)] if StepKind.PREFILL.value in self._shown else []
        keys += [("sampling", SAMPLING)]
        left: float = LEFT
        for name, colour in [*keys, ("idle", IDLE_PAPER)]:
            edge = {WAITING: OTHER, IDLE_PAPER: IDLE}.get(colour, colour)
            self._draw.rectangle((left, y + 36, left + 22, y + 58), fill=colour, outline=edge, width=2)
            self.text((left + 30, y + 47), name, SMALL, FAINT, "lm")
            left += 30 + self.wide(name, SMALL) + 28


WAITS = {part.label: {"mail": "requests", "mask": "a mask"}.get(part.label, part.label) for part in Part if part.waits}
"""What the host waits for in each of its waits."""


def _riders(span: Span) -> str:
    """Who rides on a step: its rows, and those of them that had ended before it."""
    rows = ", ".join(str(ref.row) for ref in span.step.rows) if span.step is not None else ""
    return f"row{'s' if ',' in rows else ''} {rows}" + (f"; {span.zombies} zombie" if span.zombies else "")


def _ms(seconds: float, digits: int = 2) -> str:
    """Milliseconds, to two digits after the point, or to `digits` that count."""
    return f"{1e3 * seconds:.{digits}g} ms" if digits != 2 else f"{1e3 * seconds:.2f} ms"


def _nice(seconds: float) -> float:
    """The largest of 1, 2, 5, 10, 20 ... (and 0.5, 0.2 ...) times a second that is not longer."""
    power = 1e-7
    best = power
    while power <= seconds:
        best = max(best, *(n * power for n in NICE if n * power <= seconds))
        power *= 10
    return best
