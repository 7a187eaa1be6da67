"""Processes wait for a slow one, and not for one that is lost."""

import threading
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore

from training import processes

pytestmark = pytest.mark.quick
LIMIT = 60


@pytest.fixture
def meeting(monkeypatch):
    """meeting(happens) is where process 0 of two waits, by a clock that goes on by a second, and
    calls happens(store, second), whenever it sleeps."""

    def meeting(happens):
        clock = SimpleNamespace(now=0)

        def sleep(seconds):
            if threading.current_thread() is not threading.main_thread():
                threading.Event().wait()  # the thread shows one sign of life, and no more
            clock.now += 1
            store.add("alive/0", 1)
            happens(store, clock.now)

        fake = SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep)
        monkeypatch.setattr("training.processes.time", fake)
        store = HashStore()
        return processes.Meeting(store, 0, 2, LIMIT)

    return meeting


def test_a_slow_process_is_waited_for(meeting):
    def happens(store, second):
        store.add("alive/1", 1)
        if second == 100 * LIMIT:
            store.add("meeting/0", 1)

    meeting(happens).wait()


def test_a_lost_process_is_not(meeting):
    def happens(store, second):
        assert second < 3 * LIMIT
        if second < LIMIT:
            store.add("alive/1", 1)

    with pytest.raises(RuntimeError, match="process 1 timed out after 60 seconds"):
        meeting(happens).wait()
