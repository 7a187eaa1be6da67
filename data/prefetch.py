"""Prefetch: while a step is computed, a thread makes the batch of the next one."""

from concurrent.futures import ThreadPoolExecutor


def prefetch(batch, steps, pin=False):
    """batch(step) for each step, one ahead; pinned, where a GPU fetches it."""

    def make(step):
        made = batch(step)
        return made.pinned() if pin else made

    with ThreadPoolExecutor(1, "prefetch") as thread:
        ahead = None
        for step in steps:
            ahead, due = thread.submit(make, step), ahead
            if due:
                yield due.result()
        if ahead:
            yield ahead.result()
