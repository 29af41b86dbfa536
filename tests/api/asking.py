"""What the library's tests ask, and how they compare."""

from tests.api.engine_room import until

WARM = {"temperature": 1.5, "top_p": 1.0, "max_tokens": 24}
REFS = [[0.2, 0.3], [0.1, 0.2, 0.6, 0.9]]


def calls(vlm, image, seed):
    """One call of every kind, as functions without arguments, by name."""
    warm, few = WARM | {"seed": seed}, {"max_objects": 3, "max_tokens": 20}
    return {
        "query": lambda: vlm.query(image, f"How many stars, {seed}?", settings=warm),
        "refs": lambda: vlm.query(image, "What is here?", settings=warm, spatial_refs=REFS),
        "reasoning": lambda: vlm.query(image, "Why?", settings=warm, reasoning=True),
        "text": lambda: vlm.query(question="Who are you?", settings=warm),
        "caption": lambda: vlm.caption(image, "long", settings=warm),
        "point": lambda: vlm.point(image, f"dog {seed}", settings=few, spatial_refs=REFS[:1]),
        "detect": lambda: vlm.detect(image, f"dog {seed}", settings=few),
        "segment": lambda: vlm.segment(image, f"dog {seed}", settings=few),
        "gaze": lambda: vlm.detect_gaze(image, (0.25, 0.5)),
    }


def told(result):
    """A result without what depends on time and company."""
    return {k: v for k, v in result.items() if k != "metrics"}


def idle(vlm):
    """Nothing is leased any more."""
    engine = vlm.desk.runner._engine
    rows = engine.ledgers.rows
    until(lambda: engine.standing().pages_used == 0 and rows.held() == [] and engine.book.idle, "idleness")
    engine.audit()
