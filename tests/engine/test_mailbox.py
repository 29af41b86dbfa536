"""The mailbox between caller threads and the loop: nothing is lost, cancellations find their request, sleeps end."""

import threading

import pytest
from tests.fakes.scene import ask
from tests.fakes.sim_clock import SimClock, SimMailbox

from gapless.engine.mailbox import Mail, ThreadMailbox


def never() -> None:
    return None


@pytest.fixture(params=["thread", "sim"])
def mailbox(request):
    return ThreadMailbox() if request.param == "thread" else SimMailbox(SimClock(), never)


def test_requests_come_out_in_order_and_at_most_as_many_as_asked(mailbox):
    requests = [ask(i) for i in range(1, 6)]
    for request in requests:
        mailbox.submit(request)
    assert not mailbox.empty
    assert mailbox.take(3) == Mail(tuple(requests[:3]))
    assert mailbox.take(3) == Mail(tuple(requests[3:]))
    assert mailbox.empty and mailbox.take(3) == Mail()


def test_a_request_cancelled_before_it_was_taken_is_withdrawn(mailbox):
    first, second = ask(1), ask(2)
    mailbox.submit(first)
    mailbox.submit(second)
    mailbox.cancel(2)
    mail = mailbox.take(1)
    assert mail.requests == (first,) and mail.withdrawn == (second,) and mail.cancels == ()
    assert mailbox.empty


def test_a_cancellation_of_what_was_taken_is_handed_on(mailbox):
    mailbox.submit(ask(1))
    mailbox.take(8)
    mailbox.cancel(1)
    mailbox.cancel(77)
    assert not mailbox.empty
    assert mailbox.take(8) == Mail(cancels=(1, 77))
    assert mailbox.empty


@pytest.mark.parametrize("news", ["submit", "cancel", "notify"])
@pytest.mark.parametrize("early", [True, False])
def test_news_ends_a_sleep_whether_it_comes_before_or_during_it(news, early):
    mailbox, began, woke = ThreadMailbox(), threading.Event(), threading.Event()
    tell = {"submit": lambda: mailbox.submit(ask(1)), "cancel": lambda: mailbox.cancel(1), "notify": mailbox.notify}

    def sleeper():
        began.set()
        mailbox.sleep(None)
        woke.set()

    if early:
        tell[news]()
    thread = threading.Thread(target=sleeper, daemon=True)
    thread.start()
    assert began.wait(10)
    if not early:
        tell[news]()
    assert woke.wait(10), "the sleeper was not woken"
    thread.join()


def test_a_sleep_with_a_limit_ends_by_itself():
    mailbox = ThreadMailbox()
    mailbox.sleep(0.001)
    assert mailbox.empty


def test_many_threads_lose_nothing():
    mailbox, taken = ThreadMailbox(), []

    def caller(first):
        for i in range(first, first + 200):
            mailbox.submit(ask(i))

    threads = [threading.Thread(target=caller, args=(1000 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    while len(taken) < 800:
        mailbox.sleep(1.0)
        taken.extend(request.id for request in mailbox.take(8).requests)
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(1000 * k + i for k in range(4) for i in range(200))
    for k in range(4):
        own = [i for i in taken if i // 1000 == k]
        assert own == sorted(own)
