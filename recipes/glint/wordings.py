"""How people ask: every question in several wordings, some of which training never uses.

A :class:`Wording` is one question. ``trained`` are the wordings of training and of the ordinary evaluation;
``held_out`` (about one in ten) are never trained, so that answers to them say what another wording costs. The names
in braces: ``{one}`` "red star", ``{a_one}`` "a red star", ``{many}`` "red stars", ``{look}`` "red", ``{others}``,
``{a_other}`` and ``{other}`` a second thing, ``{a}`` and ``{b}`` two values, ``{noun}`` "shape".
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wording:
    """The wordings of one question: those of training, and those that training never sees."""

    trained: tuple[str, ...]
    held_out: tuple[str, ...]


COUNT = Wording(
    (
        "How many {many} are there?", "How many {many}?", "How many {many} are in the picture?",
        "How many {many} are in the image?", "How many {many} do you see?", "How many {many} can you see?",
        "How many {many} are shown?", "Count the {many}.", "What is the number of {many}?",
        "How many {many} are in this picture?", "How many {many} are in this image?", "How many {many} are visible?",
        "Count the {many} in the picture.", "Count {many}", "Can you count the {many}?", "number of {many}",
        "Tell me how many {many} there are.", "How many {many} does the picture show?", "How many {one} are there?",
        "How many {many} are here?", "Count all {many}.",
    ),
    ("How many {many} can you find?", "Please count the {many}."),
)  # fmt: skip
COLOUR = Wording(
    (
        "What color is the {one}?", "What colour is the {one}?", "What is the color of the {one}?",
        "What is the colour of the {one}?", "Which color is the {one}?", "Which colour is the {one}?",
        "What color does the {one} have?", "{one} color?", "Tell me the color of the {one}.", "color of the {one}",
        "What color is the {one} in the picture?", "What's the color of the {one}?", "What colour does the {one} have?",
        "What color is the {one} in this image?", "Which color does the {one} have?", "{one} colour?",
    ),
    ("Can you tell me the color of the {one}?", "The {one} has which color?"),
)  # fmt: skip
SHAPE = Wording(
    (
        "What shape is {look}?",
        "What shape is the {look} object?",
        "What shape is the {look} one?",
        "What shape is the {look} thing?",
        "Which shape is {look}?",
        "What is the {look} shape?",
        "What is the {look} object?",
        "What is the shape of the {look} object?",
        "What is the {look} thing?",
        "Tell me the shape of the {look} object.",
        "Which shape is the {look} one?",
        "What is {look}?",
    ),
    ("What shape does the {look} object have?",),
)
SIZE = Wording(
    (
        "What size is the {one}?",
        "How big is the {one}?",
        "What is the size of the {one}?",
        "How large is the {one}?",
        "{one} size?",
        "Tell me the size of the {one}.",
        "What size does the {one} have?",
        "How big is the {one} in the picture?",
    ),
    ("Which size is the {one}?",),
)
EXISTS = Wording(
    (
        "Is there {a_one}?", "Is there {a_one} in the picture?", "Is there {a_one} in the image?",
        "Are there any {many}?", "Are there {many}?", "Do you see {a_one}?", "Do you see any {many}?",
        "Can you see {a_one}?", "Is there {a_one} in this picture?", "Is there {a_one} in this image?",
        "Does the picture show {a_one}?", "Does this image contain {a_one}?", "Are there {many} in the image?",
        "Are there any {many} in the picture?", "Is there any {one}?", "Can you find {a_one}?", "any {many}?",
        "Is {a_one} there?", "Can you see any {many}?", "Does it show {a_one}?",
    ),
    ("Can you see {a_one} in the picture?", "Are any {many} visible?"),
)  # fmt: skip
BACKGROUND = Wording(
    (
        "What color is the background?",
        "What colour is the background?",
        "What is the color of the background?",
        "What is the background color?",
        "Which color is the background?",
        "background color?",
        "Tell me the color of the background.",
        "What color does the background have?",
        "What color is the background of the picture?",
    ),
    ("What's the background color?",),
)
PATTERN = Wording(
    ("What pattern is the background?", "What does the background look like?", "What is the background pattern?",
     "Which pattern does the background have?", "What is the pattern of the background?"),
    ("What pattern does the background have?",),
)  # fmt: skip
IS_PATTERN = Wording(
    ("Is the background {a}?", "Does the picture have {a_one} background?", "Is there {a_one} background?",
     "Is this {a_one} background?", "Is the background of the picture {a}?"),
    ("Do you see {a_one} background?",),
)  # fmt: skip
RELATIVE = Wording(
    (
        "Is the {one} {relation} the {other}?", "Is the {one} {relation} the {other} in the picture?",
        "Is {a_one} {relation} the {other}?", "Is {one} {relation} {other}?",
        "Do you see the {one} {relation} the {other}?",
    ),
    ("Does the {one} lie {relation} the {other}?",),
)  # fmt: skip
SIDE = Wording(
    (
        "What is {relation} the {one}?", "What do you see {relation} the {one}?",
        "What can you see {relation} the {one}?",
        "What things are {relation} the {one}?", "What lies {relation} the {one}?", "What's {relation} the {one}?",
        "What is {relation} the {one} in the picture?", "List everything {relation} the {one}.",
        "What is there {relation} the {one}?", "what is {relation} {one}",
    ),
    ("Tell me what is {relation} the {one}.",),
)  # fmt: skip
SIDE_SHAPES = Wording(
    (
        "Which shapes are {relation} the {one}?",
        "What shapes are {relation} the {one}?",
        "Which objects are {relation} the {one}?",
        "What objects do you see {relation} the {one}?",
        "Which shape is {relation} the {one}?",
        "List the shapes {relation} the {one}.",
        "Which object is {relation} the {one}?",
    ),
    ("Name the shapes {relation} the {one}.",),
)
NEXT = Wording(
    (
        "What is next to the {one}?",
        "What is closest to the {one}?",
        "What is nearest to the {one}?",
        "Which shape is closest to the {one}?",
        "What is beside the {one}?",
        "What is near the {one}?",
        "Which object is next to the {one}?",
        "Which shape is nearest to the {one}?",
        "What's next to the {one}?",
        "What is the closest shape to the {one}?",
    ),
    ("What lies next to the {one}?",),
)
COUNT_SIDE = Wording(
    (
        "How many {many} are {relation} the {one}?",
        "How many {many} do you see {relation} the {one}?",
        "Count the {many} {relation} the {one}.",
        "How many {many} are there {relation} the {one}?",
        "How many {many} {relation} the {one}?",
    ),
    ("How many {many} can you see {relation} the {one}?",),
)
WHERE = Wording(
    (
        "Where is the {one}?",
        "Where is the {one} in the picture?",
        "Where do you see the {one}?",
        "Where can I find the {one}?",
        "In which part of the picture is the {one}?",
        "Where's the {one}?",
        "Where is {a_one}?",
        "What is the position of the {one}?",
    ),
    ("Where in the image is the {one}?",),
)
WHERE_ALL = Wording(
    (
        "Where are the {many}?",
        "Where are the {many} in the picture?",
        "Where do you see {many}?",
        "Where are {many}?",
        "Where can I find the {many}?",
        "Where are all the {many}?",
    ),
    ("Where in the image are the {many}?",),
)
LOOK = Wording(
    (
        "What is in the picture?", "What is in the image?", "What is in this picture?", "What is in this image?",
        "What do you see?", "What can you see?", "What is shown?", "Describe the picture.", "Describe the image.",
        "Describe this image.", "What does the picture show?", "What's in this image?", "What's in the picture?",
        "What is in the photo?", "Describe the scene.", "Describe this picture.", "What do you see in this picture?",
        "List everything you see.", "What is this a picture of?", "Can you describe this picture?",
        "Can you describe the image?", "Tell me about this image.", "What do you see in the image?",
        "Please describe the image.", "What is happening in this picture?", "Caption this image.", "Write a caption.",
        "What does this image show?", "What's in the image?", "What is there?",
    ),
    ("What can be seen in this image?", "Describe what you see.", "Tell me what is in the picture."),
)  # fmt: skip
SHAPES = Wording(
    (
        "What objects are there?", "What objects do you see?", "Which shapes do you see?", "Which shapes are there?",
        "What shapes are there?", "What shapes do you see?", "What shapes are in the picture?", "List all objects.",
        "List the shapes.", "Name the shapes.", "Which objects are in the image?",
    ),
    ("Name all the shapes.",),
)  # fmt: skip
HERE = Wording(
    ("What is this?", "What is here?", "What is that?", "What is at this point?", "What do you see here?",
     "What is shown here?", "What object is this?", "What's this?", "What's here?", "Describe this."),
    ("What can you see here?",),
)  # fmt: skip
HERE_COLOUR = Wording(
    ("What color is this?", "What colour is this?", "What color is it?", "Which color is this?", "What color is here?",
     "What is the color of this?", "What color is that?"),
    ("What colour is that?",),
)  # fmt: skip
HERE_SHAPE = Wording(
    ("What shape is this?", "Which shape is this?", "What shape is it?", "What kind of shape is this?",
     "What shape is here?"),
    ("What shape is that?",),
)  # fmt: skip
IS_IT = Wording(
    ("Is the {one} {a}?", "Is the {one} in the picture {a}?", "Is the {one} in the image {a}?",
     "Can you see if the {one} is {a}?", "{one} is {a}?"),
    ("Would you say the {one} is {a}?",),
)  # fmt: skip
IS_OR = Wording(
    ("Is the {one} {a} or {b}?", "Is the {one} in the picture {a} or {b}?", "What is the {one}, {a} or {b}?",
     "{a} or {b}: what is the {one}?", "{one}: {a} or {b}?"),
    ("Would you say the {one} is {a} or {b}?",),
)  # fmt: skip
EXTREME = Wording(
    ("What is the {one}?", "Which is the {one}?", "What is the {one} in the picture?", "Describe the {one}.",
     "Which {noun} is the {extreme}?", "Which {noun} is {extreme}?", "What's the {one}?", "Tell me the {one}."),
    ("Name the {one}.",),
)  # fmt: skip
EXTREME_SHAPE = Wording(
    ("What shape is the {one}?", "What is the shape of the {one}?", "Which shape is the {one}?",
     "Tell me the shape of the {one}.", "What kind of shape is the {one}?"),
    ("What shape does the {one} have?",),
)  # fmt: skip
AT_PLACE = Wording(
    ("What is in the {one}?", "What is at the {one}?", "What do you see in the {one}?", "What's at the {one}?",
     "What is in the {one} of the picture?", "What's in the {one}?", "What is at the {one} of the image?"),
    ("What can you see at the {one}?",),
)  # fmt: skip
PALETTE = Wording(
    ("What colors do you see?", "Which colors are there?", "What colors are in the picture?",
     "What colours do you see?", "What colors are there?", "Which colors do the shapes have?", "List the colors."),
    ("What colors can you see?",),
)  # fmt: skip
PALETTE_OF = Wording(
    ("Which colors do the {many} have?", "What colors are the {many}?", "What color are the {many}?",
     "What are the colors of the {many}?", "Which colors are the {many}?"),
    ("What colors do the {many} have?",),
)  # fmt: skip
COUNT_COLOURS = Wording(
    ("How many colors are there?", "How many different colors do you see?", "How many colours are there?",
     "How many colors do you see?", "How many different colors are there?"),
    ("How many different colors can you see?",),
)  # fmt: skip
COUNT_KINDS = Wording(
    ("How many different shapes are there?", "How many kinds of shapes are there?", "How many kinds of shape?",
     "How many different shapes do you see?", "How many types of shapes are there?",
     "How many different kinds of shapes are in the picture?"),
    ("How many different shapes can you see?",),
)  # fmt: skip
ALL_ARE = Wording(
    ("Are all {many} {a}?", "Are all the {many} {a}?", "Are the {many} all {a}?", "Is every {one} {a}?",
     "Are all of the {many} {a}?"),
    ("Is each {one} {a}?",),
)  # fmt: skip
EVERYTHING = Wording(
    ("Is everything {a}?", "Is it all {a}?", "Is everything in the picture {a}?"), ("Is everything here {a}?",)
)
MORE_THAN = Wording(
    ("Are there more {many} than {others}?", "Do you see more {many} than {others}?", "More {many} than {others}?",
     "Are there more {many} than {others} in the picture?", "Does the picture show more {many} than {others}?"),
    ("Can you see more {many} than {others}?",),
)  # fmt: skip
FEWER_THAN = Wording(
    ("Are there fewer {many} than {others}?", "Do you see fewer {many} than {others}?",
     "Are there less {many} than {others}?", "Fewer {many} than {others}?",
     "Are there fewer {many} than {others} in the picture?"),
    ("Can you see fewer {many} than {others}?",),
)  # fmt: skip
COUNT_BOTH = Wording(
    ("How many {many} and {others} are there?", "How many {many} and {others}?", "Count the {many} and {others}.",
     "How many {many} and {others} do you see?", "How many {many} and {others} are in the picture?",
     "How many {many} or {others} are there?", "What is the number of {many} and {others}?"),
    ("How many {many} and {others} can you see?",),
)  # fmt: skip
EITHER = Wording(
    ("Is there {a_one} or {a_other}?", "Are there any {many} or {others}?", "Do you see {a_one} or {a_other}?",
     "Is there {a_one} or {a_other} in the picture?", "Can you see {a_one} or {a_other}?"),
    ("Does the picture show {a_one} or {a_other}?",),
)  # fmt: skip
BOTH = Wording(
    ("Is there {a_one} and {a_other}?", "Are there {many} and {others}?", "Do you see {a_one} and {a_other}?",
     "Are there both {many} and {others}?", "Is there {a_one} and {a_other} in the picture?"),
    ("Does the picture show {a_one} and {a_other}?",),
)  # fmt: skip
READ = Wording(
    (
        "What does it say?",
        "What is written here?",
        "Read the text.",
        "What is the text?",
        "What does the text say?",
        "What is written?",
        "What is written in the picture?",
        "What text is shown?",
        "What does the picture say?",
        "What text do you see?",
        "What is printed?",
        "Read it.",
        "read this",
        "What is the printed text?",
        "What does the image say?",
        "What text is in the image?",
        "Read the text in the picture.",
    ),
    ("What text can you see?", "Please read the text."),
)
READ_ONE = Wording(
    (
        "What {one} is printed?",
        "What is the {one}?",
        "Which {one} is shown?",
        "What {one} is shown?",
        "Read the {one}.",
        "What {one} do you see?",
        "What does the {one} say?",
        "Which {one} is printed?",
        "Which {one} is it?",
        "What {one} is in the picture?",
        "What {one} is written here?",
        "Tell me the {one}.",
    ),
    ("What {one} can you see?",),
)
WRITTEN = Wording(
    (
        "Is there any text?",
        "Is there text?",
        "Is there text in the picture?",
        "Does the image contain text?",
        "Is something written?",
        "Is there any text in the image?",
        "Do you see any text?",
        "any text?",
        "Is anything written here?",
        "Is anything printed?",
        "Can you see text?",
    ),
    ("Does the picture have any text?",),
)
SAYS = Wording(
    ("Does it say {a}?", "Is the {one} {a}?", "Does the {one} say {a}?", "Does the picture say {a}?",
     "Is {a} written here?", "Does the text say {a}?"),
    ("Is {a} printed?",),
)  # fmt: skip


def all_wordings() -> dict[str, Wording]:
    """Every question by its name."""
    return {name: value for name, value in globals().items() if isinstance(value, Wording)}
