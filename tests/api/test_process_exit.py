"""How a whole process ends: no hang, no traceback that is not the script's own, the right exit code."""

import pytest
from tests.api.scripts import BEGIN, run


def test_a_script_that_just_ends(endless_folder):
    """With a stream half read and a daemon thread's call running: the one is cancelled, the other gets its answer."""
    done = run(
        """
    import atexit
    atexit.register(lambda: asking.join(40))  # called after the engine's own: else Python may be gone before it prints
"""
        + BEGIN
        + """
    stream = vlm.caption(image, stream=True, settings=long)["caption"]
    next(stream)

    def ask():
        print(vlm.caption(image, settings={"max_tokens": 150})["metrics"]["output_tokens"], flush=True)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    while vlm.stats()["prefill_steps"] < 2:  # the stream's was one
        time.sleep(0.001)
    """,
        endless_folder,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "150\n"


@pytest.mark.slow  # as by Ctrl-C, which is an exception too
def test_a_script_killed_by_its_own_exception(endless_folder):
    done = run(
        BEGIN
        + """
    for piece in vlm.caption(image, stream=True, settings=long)["caption"]:
        raise ZeroDivisionError("mine")
    """,
        endless_folder,
    )
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1 and done.stderr.endswith("ZeroDivisionError: mine\n")


def test_a_script_stopped_by_ctrl_c_while_it_waits(endless_folder):
    done = run(
        BEGIN
        + """
    import os, signal
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    vlm.caption(image, settings=long)
    """,
        endless_folder,
    )
    assert done.stderr.count("Traceback") == 1 and done.stderr.endswith("KeyboardInterrupt\n")


def test_a_script_that_exits_in_the_block_or_drops_its_model(endless_folder):
    done = run(
        BEGIN
        + """
    other = gapless.load(sys.argv[1])
    other.caption(image, stream=True, settings=long)["caption"].__next__()
    del other
    with vlm:
        stream = vlm.caption(image, stream=True, settings=long)["caption"]
        sys.exit(3)
    """,
        endless_folder,
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        ("import gapless; gapless.__version__; gapless.errors.InvalidImage", ("torch", "numpy", "PIL", "tokenizers")),
        ("from gapless.errors import GaplessError", ("torch", "numpy", "PIL")),
        ("from gapless import VLM, AsyncVLM, EncodedImage, load", ("torch",)),
    ],
)
def test_what_an_import_costs(statement, forbidden):
    done = run(f"{statement}\nimport sys\nprint([m for m in {forbidden} if m in sys.modules])")
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_unknown_names_are_attribute_errors():
    import gapless

    with pytest.raises(AttributeError, match="nothing"):
        _ = gapless.nothing
    assert {name: getattr(gapless, name) for name in gapless.__all__}
