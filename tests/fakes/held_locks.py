"""The worst moment for a fork: a thread that will not be in the child holds every lock of the package."""

import gc
import sys
import threading
from contextlib import contextmanager

LOCKS = (type(threading.Lock()), type(threading.RLock()))
OPENED = (dict, list, tuple, set, threading.Condition, threading.Event)
"""What is looked into besides the package's own objects. Not threads, whose locks are held while they live, and not
deques: a condition keeps a lock in one for everybody who waits, held until the waiter may go on."""


def locks_of(*roots):
    """The locks in `roots`, in the package's modules, and in any of the package's objects reached from them."""
    modules = [vars(module) for name, module in list(sys.modules.items()) if name.split(".")[0] == "gapless"]
    found, seen, open_ = [], {}, [*roots, *modules]
    while open_:
        thing = open_.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing  # kept, so that no id comes twice
        if isinstance(thing, LOCKS):
            found.append(thing)
        elif isinstance(thing, OPENED) or type(thing).__module__.split(".")[0] == "gapless":
            open_ += gc.get_referents(thing)
    return found


@contextmanager
def held_elsewhere(locks):
    """Another thread holds `locks` inside the block. The block itself must need none of them."""
    have, enough = threading.Event(), threading.Event()

    def hold():
        for lock in locks:
            assert lock.acquire(timeout=20), f"{lock} was never free"
        have.set()
        enough.wait()
        for lock in locks:
            lock.release()

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert have.wait(30)
    try:
        yield
    finally:
        enough.set()
