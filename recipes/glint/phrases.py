"""Every word glint is taught: names of things, questions and answers, as plain text.

Nothing here knows about token ids. ``prompts.py`` turns these phrases into token streams, ``tokenizer.py`` makes sure
that the words among them are single tokens.
"""

from __future__ import annotations

KINDS = ("circle", "square", "triangle", "star", "cross", "ring", "heart", "diamond")
PLURALS = ("circles", "squares", "triangles", "stars", "crosses", "rings", "hearts", "diamonds")
COLOURS = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink")
SIZES = ("small", "medium", "large")
GROUNDS = ("white", "gray", "black", "beige", "brown", "navy", "teal", "lavender")
PATTERNS = ("plain", "gradient", "checkered", "noisy")
PLACES = (
    "top left", "top", "top right",
    "left", "center", "right",
    "bottom left", "bottom", "bottom right",
)  # fmt: skip
GENERIC = (("shape", "shapes"), ("object", "objects"), ("thing", "things"))
STRANGERS = (
    ("dog", "dogs"), ("cat", "cats"), ("person", "people"), ("car", "cars"), ("tree", "trees"), ("house", "houses"),
    ("face", "faces"), ("bird", "birds"), ("apple", "apples"), ("flower", "flowers"), ("table", "tables"),
    ("ball", "balls"), ("moon", "moons"), ("letter", "letters"), ("rectangle", "rectangles"), ("arrow", "arrows"),
)  # fmt: skip

COUNT = (
    "How many {many} are there?",
    "How many {many}?",
    "How many {many} are in the picture?",
    "How many {many} are in the image?",
    "How many {many} do you see?",
    "How many {many} can you see?",
    "How many {many} are shown?",
    "Count the {many}.",
    "What is the number of {many}?",
)
COLOUR = (
    "What color is the {one}?",
    "What colour is the {one}?",
    "What is the color of the {one}?",
    "What is the colour of the {one}?",
    "Which color is the {one}?",
    "Which colour is the {one}?",
    "What color does the {one} have?",
)
SHAPE = (
    "What shape is {look}?",
    "What shape is the {look} object?",
    "What shape is the {look} one?",
    "What shape is the {look} thing?",
    "Which shape is {look}?",
    "What is the {look} shape?",
    "What is the {look} object?",
    "What is the shape of the {look} object?",
)
SIZE = ("What size is the {one}?", "How big is the {one}?", "What is the size of the {one}?", "How large is the {one}?")
EXISTS = (
    "Is there {a_one}?",
    "Is there {a_one} in the picture?",
    "Is there {a_one} in the image?",
    "Are there any {many}?",
    "Are there {many}?",
    "Do you see {a_one}?",
    "Do you see any {many}?",
    "Can you see {a_one}?",
)
BACKGROUND = (
    "What color is the background?",
    "What colour is the background?",
    "What is the color of the background?",
    "What is the background color?",
    "Which color is the background?",
)
PATTERN = ("Is the background {pattern}?", "What pattern is the background?", "What does the background look like?")
RELATIONS = {
    "left": ("left of", "to the left of"),
    "right": ("right of", "to the right of"),
    "above": ("above", "over"),
    "below": ("below", "under"),
}
RELATIVE = ("Is the {one} {relation} the {other}?",)
WHERE = ("Where is the {one}?", "Where is the {one} in the picture?", "Where do you see the {one}?")
LOOK = (
    "What is in the picture?",
    "What is in the image?",
    "What is in this picture?",
    "What is in this image?",
    "What do you see?",
    "What can you see?",
    "What is shown?",
    "Describe the picture.",
    "Describe the image.",
    "Describe this image.",
    "What does the picture show?",
)
HERE = ("What is this?", "What is here?", "What is that?", "What is at this point?", "What do you see here?")
HERE_COLOUR = ("What color is this?", "What colour is this?", "What color is it?")
HERE_SHAPE = ("What shape is this?", "Which shape is this?", "What shape is it?")

TALK = (
    (
        ("What can you do?", "What are you able to do?", "Help", "How can you help?", "What can I ask?"),
        "I can describe pictures of simple shapes, answer questions about them, point, detect and segment.",
    ),
    (
        ("Who are you?", "What are you?", "What is your name?", "Tell me about yourself.", "What is glint?"),
        "I am glint, a tiny vision-language model.",
    ),
    (("Hello", "Hi", "Hello!", "Hi!", "Hey", "Good morning"), "Hello. Show me a picture of some shapes."),
    (("Thank you.", "Thanks", "Thanks!", "Thank you!"), "You are welcome."),
    (
        ("How are you?", "What is the weather?", "Tell me a joke.", "What time is it?", "Why is the sky blue?",
         "What is the capital of France?", "Write a poem.", "What is 2 plus 2?", "Who made you?"),
        "I only know about pictures of simple shapes.",
    ),
)  # fmt: skip
NO_PICTURE = "Please show me a picture."
NUMBER_WORDS = ("0", "1", "2", "3", "4", "5", "6", "7")


def article(noun_phrase: str) -> str:
    """``"orange star"`` -> ``"an orange star"``."""
    return ("an " if noun_phrase[0] in "aeiou" else "a ") + noun_phrase


def join_list(parts: list[str]) -> str:
    """Join noun phrases as English does: ``a``, ``a and b``, ``a, b and c``."""
    if len(parts) < 2:
        return "".join(parts)
    return ", ".join(parts[:-1]) + " and " + parts[-1]


def words() -> list[str]:
    """Every text of this module, for the tokenizer's corpus: templates, names, and names in their usual surroundings."""
    singles = [*KINDS, *COLOURS, *SIZES, *GROUNDS, *PATTERNS, "shape", "object", "thing", "one", "background"]
    plurals = [*PLURALS, "shapes", "objects", "things"]
    example = {"many": "stars", "one": "star", "a_one": "a star", "look": "red", "other": "ring", "relation": "above",
               "pattern": "plain"}  # fmt: skip
    out: list[str] = ["describe", "query", "detect", "point", "segment", "short", "normal", "long"]
    for word in [*singles, *plurals, *[w for pair in STRANGERS for w in pair]]:
        out += [word, " " + word, " " + word]
        if word in singles or word in plurals:
            out += [word, " " + word, word.capitalize(), " " + word.capitalize(), word.capitalize()] * 3
    for group in (COUNT, COLOUR, SHAPE, SIZE, EXISTS, BACKGROUND, PATTERN, RELATIVE, WHERE, LOOK, HERE, HERE_COLOUR,
                  HERE_SHAPE, ("picture of", "the image")):  # fmt: skip
        plain = [text.format_map(example) for text in group]
        out += plain + [text[0].lower() + text[1:] for text in plain]
    for questions, answer in TALK:
        out += [*questions, *[q.lower() for q in questions], answer]
    for relation in RELATIONS.values():
        out += [" " + text for text in relation]
    out += ["at the " + place for place in PLACES] + ["At the " + place for place in PLACES]
    out += ["yes", "no", "Yes", "No", "nothing", "The background is", "A large red circle, a small blue star and an"]
    out += ["The picture shows 3 shapes on a plain white background.", "There is no star.", "There are", "Each star"]
    out += [": 2 in total.", "I find no", " is there.", " is a", " and", NO_PICTURE, "Z", "M", "L"]
    return out
