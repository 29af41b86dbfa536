"""Every word glint is taught: names of things and places, relations, extremes, and how names are joined.

Nothing here knows about token ids. The questions are in ``wordings.py``, small talk in ``chatter.py``; ``prompts.py``
turns all of it into token streams. ``HELD_OUT`` are the wordings that training never uses.
"""

from __future__ import annotations

from recipes.glint import wordings
from recipes.glint.chatter import FAR_AFIELD, HELD_OUT_FAR_AFIELD, NO_PICTURE, TALK

KINDS = ("circle", "square", "triangle", "star", "cross", "ring", "heart", "diamond")
PLURALS = ("circles", "squares", "triangles", "stars", "crosses", "rings", "hearts", "diamonds")
COLOURS = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink")
SIZES = ("small", "medium", "large")
GROUNDS = ("white", "gray", "black", "beige", "brown", "navy", "teal", "lavender")
PATTERNS = ("plain", "gradient", "checkered", "noisy", "textured")
WORDS = (
    "GO", "NO", "ON", "UP", "HI", "OK", "BUS", "BAR", "CAFE", "BOOK", "BANK", "SALE", "OPEN", "STOP", "EXIT", "HELP",
    "TAXI", "PARK", "SHOP", "FREE", "HOME", "PUSH", "PULL", "SLOW", "LIGHT", "PARIS", "TEA", "FIRE", "LOVE", "GAME",
    "LEFT", "NORTH", "SOUTH", "EAST", "WEST", "HELLO", "HOTEL", "MUSIC", "WATER", "PIZZA", "CLOSED", "TICKET",
    "SCHOOL", "POLICE", "MARKET", "COFFEE", "SUMMER", "WINTER", "ZEBRA", "QUICK", "JAZZ", "LUCKY", "VIDEO", "RADIO",
    "GATE", "ROOM", "TRAM", "NEWS", "KEY", "BOX",
)  # fmt: skip
PLACES = (
    "top left", "top", "top right",
    "left", "center", "right",
    "bottom left", "bottom", "bottom right",
)  # fmt: skip
GENERIC = (("shape", "shapes"), ("object", "objects"), ("thing", "things"))
STRANGERS = (
    ("dog", "dogs"), ("cat", "cats"), ("person", "people"), ("car", "cars"), ("tree", "trees"), ("house", "houses"),
    ("face", "faces"), ("bird", "birds"), ("apple", "apples"), ("flower", "flowers"), ("table", "tables"),
    ("ball", "balls"), ("moon", "moons"), ("hexagon", "hexagons"), ("rectangle", "rectangles"), ("arrow", "arrows"),
)  # fmt: skip

RELATIONS = {
    "left": ("left of", "to the left of", "on the left of"),
    "right": ("right of", "to the right of", "on the right of"),
    "above": ("above", "over", "higher than"),
    "below": ("below", "under", "lower than"),
}
SIDES = {"left": "to its left", "right": "to its right", "above": "above it", "below": "below it"}
EXTREMES = {
    "large": ("largest", "biggest"), "small": ("smallest", "tiniest"), "left": ("leftmost",), "right": ("rightmost",),
    "top": ("topmost", "highest", "uppermost"), "bottom": ("bottommost", "lowest"),
}  # fmt: skip
TEXT_NOUNS = ("text", "word", "number")
HELD_OUT = {name: w.held_out for name, w in wordings.all_wordings().items()} | {"FAR_AFIELD": HELD_OUT_FAR_AFIELD}


def article(noun_phrase: str) -> str:
    """``"orange star"`` -> ``"an orange star"``."""
    return ("an " if noun_phrase[0] in "aeiou" else "a ") + noun_phrase


def join_list(parts: list[str]) -> str:
    """Join noun phrases as English does: ``a``, ``a and b``, ``a, b and c``."""
    if len(parts) < 2:
        return "".join(parts)
    return ", ".join(parts[:-1]) + " and " + parts[-1]


def words() -> list[str]:
    """The tokenizer's corpus: templates, names, and names in their usual surroundings."""
    singles = [*KINDS, *COLOURS, *SIZES, *GROUNDS, *PATTERNS, "shape", "object", "thing", "one", "background"]
    plurals = [*PLURALS, "shapes", "objects", "things"]
    example = {
        "many": "stars", "one": "star", "a_one": "a star", "look": "red", "other": "ring", "relation": "above",
        "a": "plain", "b": "red", "others": "rings", "a_other": "a ring", "noun": "shape", "extreme": "largest",
    }  # fmt: skip
    out: list[str] = ["describe", "query", "detect", "point", "segment", "short", "normal", "long"]
    for word in [*singles, *plurals, *[w for pair in STRANGERS for w in pair]]:
        out += [word, " " + word, " " + word]
        if word in singles or word in plurals:
            out += [word, " " + word, word.capitalize(), " " + word.capitalize(), word.capitalize()] * 3
    for wording in wordings.all_wordings().values():
        plain = [text.format_map(example) for text in wording.trained]
        out += plain + [text[0].lower() + text[1:] for text in plain]
    for questions, answer in TALK:
        out += [*questions, *[q.lower() for q in questions], answer]
    out += [text.format_map(example) for text in FAR_AFIELD]
    for relation in RELATIONS.values():
        out += [" " + text for text in relation]
    out += ["at the " + place for place in PLACES] + ["At the " + place for place in PLACES]
    out += ["yes", "no", "Yes", "No", "nothing", "The background is", "A large red circle, a small blue star and an"]
    out += ["The picture shows 3 shapes on a plain white background.", "There is no star.", "There are", "Each star"]
    out += [": 2 in total.", "I find no", " is there.", " is a", " and", NO_PICTURE, "Z", "M", "L"]
    return out
