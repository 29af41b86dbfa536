"""Only the forking thread is in a forked child: it must hear so from a model, and never wait for the other threads."""

import os

import pytest
from tests.api.scripts import BEGIN, run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

PREPARE = (
    BEGIN
    + """
    import faulthandler, os, warnings
    from PIL import Image
    from tests.fakes.held_locks import held_elsewhere, locks_of

    warnings.simplefilter("ignore")  # newer Pythons warn of any fork beside threads

    def forked(locks=()):
        with held_elsewhere(locks):
            child = os.fork()
            if child == 0:
                faulthandler.dump_traceback_later(40, exit=True)  # says where it hangs
                return True
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        return False

    def told(ask):
        try:
            ask()
        except gapless.errors.EngineDead as error:
            assert "fork" in str(error), error
        else:
            raise AssertionError("was answered")
"""
)
"""`forked` is true in the child, which is to exit with 3; the parent goes on when it has."""

CHILD = """
        told(stream.result)
        told(lambda: vlm.caption(image))
        stream.close()
        vlm.close()
        sys.exit(3)
    stream.close()
    print(vlm.caption(image, settings={"max_tokens": 5})["metrics"]["output_tokens"])
"""


@pytest.mark.slow  # the same and more with locks held
def test_a_forked_child_is_told_and_its_parent_goes_on(endless_folder):
    """Threads do not survive a fork: without a word, whoever asks in the child would wait for ever."""
    done = run(
        PREPARE
        + """
    stream = vlm.caption(image, stream=True, settings=long)["caption"]
    next(stream)
    if forked():
"""
        + CHILD,
        endless_folder,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "5\n", "")


def test_a_child_waits_for_no_lock_that_another_thread_held_at_the_fork(endless_folder):
    """Every lock of the package is held, wherever the engine and its workers happen to be."""
    done = run(
        PREPARE
        + """
    vlm.caption(Image.fromarray(image), settings={"max_tokens": 1})
    stream = vlm.caption(image, stream=True, settings=long)["caption"]
    next(stream)
    locks = locks_of(vlm)
    runner, streams = vlm.desk.runner, vlm.desk.runner._device._streams
    for lock in (runner._lock, streams._compute._door, streams._copy._door):
        assert lock._lock in locks
    if forked(locks):
        assert vlm.stats()["tokens"] > 0
        told(lambda: vlm.caption(Image.fromarray(image)))
"""
        + CHILD,
        endless_folder,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "5\n", "")


def test_a_child_may_load_its_own_model(endless_folder):
    """Nothing runs at the fork, since torch has locks of its own; all of the package's are held again."""
    done = run(
        PREPARE
        + """
    vlm.caption(image, settings={"max_tokens": 1})
    if forked(locks_of(vlm)):
        assert sys.getswitchinterval() == 0.005  # the default again: no engine's thread is here
        with gapless.load(sys.argv[1]) as own:
            print(own.caption(Image.fromarray(image), settings={"max_tokens": 4})["metrics"]["output_tokens"])
            assert sys.getswitchinterval() < 0.005
        sys.exit(3)
    print(vlm.caption(image, settings={"max_tokens": 5})["metrics"]["output_tokens"])
    """,
        endless_folder,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "4\n5\n", "")


def test_a_fork_just_when_the_last_news_is_handed_over(endless_folder):
    """The engine's thread stops within the delivery of a finish: in the child that finish never arrives."""
    done = run(
        PREPARE
        + """
    from gapless.api.channel import Channel

    reached, further = threading.Event(), threading.Event()
    put = Channel.put

    def slow(channel, emission):
        if emission.finish is not None and threading.current_thread().name == "gapless-engine":
            reached.set()
            further.wait()
        put(channel, emission)

    Channel.put = slow
    stream = vlm.caption(image, stream=True, settings={"max_tokens": 3})["caption"]
    assert reached.wait(40)
    child = forked()
    Channel.put = put
    if child:
        told(stream.result)
        sys.exit(3)
    further.set()
    assert stream.result()["metrics"]["output_tokens"] == 3
    """,
        endless_folder,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
