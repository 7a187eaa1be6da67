"""Where processes wait for the slowest, however long it takes, as long as each shows that it is
alive."""

import threading
import time
from contextlib import suppress
from itertools import count
from typing import Any

PERIOD = 1.0  # seconds between two signs of life
POLL = 0.05


class Meeting:
    """store: that of torch.distributed. limit: the seconds after which a silent process is lost."""

    def __init__(self, store: Any, rank: int, size: int, limit: float) -> None:
        self.store = store
        self.rank = rank
        self.size = size
        self.limit = limit
        self.numbers = count()
        threading.Thread(target=self.show_life, daemon=True).start()

    def show_life(self) -> None:
        with suppress(RuntimeError):  # the store has ended with the run
            while True:
                self.store.add(f"alive/{self.rank}", 1)
                time.sleep(PERIOD)

    def wait(self) -> None:
        key = f"meeting/{next(self.numbers)}"
        self.store.add(key, 1)
        signs = [0] * self.size
        heard = [time.monotonic()] * self.size
        while self.store.add(key, 0) < self.size:
            time.sleep(POLL)
            if time.monotonic() - heard[self.rank] >= PERIOD:
                self.listen(signs, heard)

    def listen(self, signs: list[int], heard: list[float]) -> None:
        """Note which processes have shown a sign of life since the last time, and when."""
        now = time.monotonic()
        for rank in range(self.size):
            sign = self.store.add(f"alive/{rank}", 0)
            if sign != signs[rank]:
                signs[rank] = sign
                heard[rank] = now
            elif now - heard[rank] > self.limit:
                raise RuntimeError(f"process {rank} timed out after {self.limit:g} seconds")
