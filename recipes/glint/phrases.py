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
MORE_COUNT = (
    "How many {many} are in this picture?", "How many {many} are in this image?", "How many {many} are visible?",
    "Count the {many} in the picture.", "Count {many}", "Can you count the {many}?", "number of {many}",
    "Tell me how many {many} there are.", "How many {many} does the picture show?", "How many {one} are there?",
)  # fmt: skip
MORE_EXISTS = (
    "Is there {a_one} in this picture?", "Is there {a_one} in this image?", "Does the picture show {a_one}?",
    "Does this image contain {a_one}?", "Are there {many} in the image?", "Are there any {many} in the picture?",
    "Is there any {one}?", "Can you find {a_one}?",
)  # fmt: skip
MORE_COLOUR = ("{one} color?", "Tell me the color of the {one}.", "What color is the {one} in the picture?",
               "What's the color of the {one}?", "What colour does the {one} have?")  # fmt: skip
MORE_LOOK = (
    "What's in this image?", "What's in the picture?", "What is in the photo?", "Describe the scene.",
    "Describe this picture.", "What objects are there?", "What objects do you see?", "Which shapes do you see?",
    "Which shapes are there?", "What shapes are there?", "What shapes do you see?", "What shapes are in the picture?",
    "List all objects.", "List the shapes.", "List everything you see.", "Name the shapes.",
    "What is this a picture of?", "Can you describe this picture?", "Can you describe the image?",
    "Tell me about this image.", "What do you see in this picture?", "What do you see in the image?",
    "Please describe the image.", "What is happening in this picture?", "Caption this image.", "Write a caption.",
    "What does this image show?",
)  # fmt: skip
IS_IT = ("Is the {one} {value}?", "Is the {one} in the picture {value}?", "Is the color of the {one} {value}?")
EXTREMES = {
    "large": ("largest", "biggest"), "small": ("smallest", "tiniest"), "left": ("leftmost",), "right": ("rightmost",),
    "top": ("topmost", "highest"), "bottom": ("bottommost", "lowest"),
}  # fmt: skip
EXTREME = ("What is the {extreme} {noun}?", "Which is the {extreme} {noun}?", "Which {noun} is the {extreme}?",
           "Which {noun} is {extreme}?", "Describe the {extreme} {noun}.")  # fmt: skip
EXTREME_COLOUR = ("What color is the {extreme} {noun}?", "What colour is the {extreme} {noun}?",
                  "What is the color of the {extreme} {noun}?")  # fmt: skip
EXTREME_SHAPE = ("What shape is the {extreme} {noun}?", "What shape is the {extreme} one?")
WHERE_ALL = ("Where are the {many}?", "Where are the {many} in the picture?", "Where do you see {many}?")
AT_PLACE = ("What is in the {place}?", "What is at the {place}?", "What do you see in the {place}?",
            "What is in the {place} of the picture?", "What's in the {place}?")  # fmt: skip
PALETTE = ("What colors do you see?", "Which colors are there?", "What colors are in the picture?",
           "What colours do you see?", "Which colors do the {many} have?", "What colors are the {many}?")  # fmt: skip
COUNT_COLOURS = ("How many colors are there?", "How many different colors do you see?", "How many colours are there?")
ALL_ARE = ("Are all {many} {value}?", "Are all the {many} {value}?", "Is everything {value}?")
NOUNS = (
    "horse", "cup", "king", "river", "city", "book", "music", "world", "water", "phone", "computer", "song", "game",
    "school", "friend", "mountain", "planet", "engine", "bread", "country", "story", "movie", "history", "money",
    "president", "language", "train", "window", "garden", "bottle", "number", "mouse", "lion", "boat", "road", "hand",
    "coffee", "recipe", "winter", "ocean", "bicycle", "train station", "plane", "man", "woman", "child", "bear", "fish",
    "chair", "lamp", "shoe", "hat", "truck", "bus", "clock", "pizza", "banana", "elephant", "sheep", "cow", "kite",
    "umbrella", "bag", "sign", "traffic light", "spoon", "bowl", "keyboard", "pen", "door", "wall", "cloud", "sun",
    "rocket", "robot", "painting", "guitar", "ticket", "letter box", "hexagon", "oval", "line", "spiral", "pentagon",
)  # fmt: skip
FAR_AFIELD = (
    "What is the {a} of the {b}?", "Who is the {a} of {b}?", "Tell me about the {a}.", "Explain the {a}.",
    "Why is the {a} a {b}?", "Write a {a} about the {b}.", "How do I make a {a}?", "What does {a} mean?",
    "When was the {a} built?", "Who made the {a}?", "Can you sing a {a}?", "How old is the {a}?",
    "Translate {a} into the language of {b}.", "Do you like {a}?", "What is your favorite {a}?", "Give me a {a}.",
    "Tell me something about {a} and {b}.", "What is the meaning of {a}?", "How far is the {a} from the {b}?",
    "How much is a {a}?", "Is {a} better than {b}?", "What do you think of {a}?", "I like {a}.", "You are a {a}.",
    "Where can I buy a {a}?", "Who wrote the {a}?", "How does a {a} work?", "Which {a} is the best?",
)  # fmt: skip
NO_IDEA = "I only know about pictures of simple shapes."
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
    """The tokenizer's corpus: templates, names, and names in their usual surroundings."""
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
