"""Scripts with an engine process: it ends with them, however they end."""

import os

import pytest
from tests.api.engine_room import until
from tests.api.scripts import run
from tests.api.test_remote import lives

BEGIN = """
    import os, sys, threading, time
    from tests.api.test_remote import LONG, start, shown
    from tests.api.engine_room import submit
    from gapless.errors import EngineDead

    runner = start("slow")
    asked = submit(runner, LONG)
    asked.channel.get()
    print(runner.pid, flush=True)
"""


def gone(pid):
    until(lambda: not lives(int(pid)), "the end of the engine process")


@pytest.mark.slow
def test_a_killed_parent_takes_its_engine_along():
    done = run(BEGIN + "\n    os.kill(os.getpid(), 9)")
    assert done.returncode == -9 and done.stderr == ""
    gone(done.stdout)


@pytest.mark.slow
def test_a_script_that_just_ends_or_is_interrupted():
    done = run(BEGIN + "\n    sys.exit(3)")
    assert (done.returncode, done.stderr) == (3, "")
    gone(done.stdout)
    done = run(
        BEGIN + "\n    os.killpg(0, 2) if os.getpgid(0) == os.getpid() else os.kill(os.getpid(), 2)\n    time.sleep(9)"
    )
    assert done.stderr.count("Traceback") == 1 and done.stderr.endswith("KeyboardInterrupt\n")
    gone(done.stdout)


@pytest.mark.slow
def test_a_forked_child_is_told_its_parent_goes_on_and_the_engine_ends_with_the_parent():
    done = run(
        BEGIN
        + """
    import warnings
    warnings.simplefilter("ignore")
    child = os.fork()
    if child == 0:
        error = asked.hear().finish.error
        assert isinstance(error, EngineDead) and "fork" in str(error), error
        try:
            submit(runner)
        except EngineDead:
            runner.close()
            runner.accounting()
            os.write(1, b"told %d " % os.getpid())
            os.closerange(1, 3)  # what the test reads to its end
            time.sleep(300)
        os._exit(0)
    time.sleep(0.2)
    assert submit(runner, shown(1)).hear().finish.error is None
    os.kill(os.getpid(), 9)
    """
    )
    assert done.returncode == -9 and done.stderr == ""
    pid, told, child = done.stdout.split()
    assert told == "told"
    try:
        gone(pid)
        assert lives(int(child)), "it did not outlive the engine"
    finally:
        os.kill(int(child), 9)


@pytest.mark.parametrize("said", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_parent_killed_before_a_hello_leaves_no_folder(said, tmp_path, monkeypatch):
    """`said`: the engine's process has said hello, and nobody was there any more to hear it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = run(
        """
    import os, sys
    from gapless.api.spawn import EngineProcess

    process = EngineProcess(4096, "tests.fakes.sim_child")
    if sys.argv[1] == "True":
        process.line.wait(None)
    print(process.pid, os.listdir(os.environ["TMPDIR"]), flush=True)
    os.kill(os.getpid(), 9)
    """,
        said,
    )
    pid, _, folders = done.stdout.partition(" ")
    assert done.returncode == -9 and done.stderr == "" and "gapless-" in folders
    gone(pid)
    assert not list(tmp_path.iterdir())
