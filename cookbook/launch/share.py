"""How servers that compute on the CPU share it with each other and with the notebook beside them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

__all__ = ["put_pollers_last", "weigh_less"]

WATCH_S = 0.5
BUSY_SHARE = 0.1  # of a core; five pollers of one core have more than that each
LAST = 15


def weigh_less(pid: int) -> None:
    """Give a session less weight than the other sessions of this machine.

    After each request vLLM's workers spin for a second, waiting for the next, and on two cores nothing else ran
    meanwhile: a rehearsal's notebook took 14.7 s from the server's start to its end, and 6.6 s with this. Linux
    schedules sessions as groups; where it does not, there is nothing to set.

    Args:
        pid: Of the leader of the session.
    """
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text("10")


def put_pollers_last(processes: Iterable[psutil.Process]) -> list[int]:
    """Have the threads that keep a core busy while their server is idle run only when nothing else wants the core.

    NIXL's progress thread polls without a pause in each worker, whether anything is to be transferred or not. It is
    not a main thread, where vLLM computes.

    Args:
        processes: Of servers that have nothing to do at the moment.

    Returns:
        The ids of those threads.
    """
    processes = list(processes)
    if not processes:
        return []
    before = _seconds(processes)
    time.sleep(WATCH_S)
    after = _seconds(processes)
    found = [thread for thread, used in after.items() if used - before.get(thread, used) > BUSY_SHARE * WATCH_S]
    for thread in found:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, LAST)
    return found


def _seconds(processes: Iterable[psutil.Process]) -> dict[int, float]:
    """CPU time by thread, without the main ones."""
    seconds: dict[int, float] = {}
    for process in processes:
        with suppress(psutil.Error):
            for thread in process.threads():
                if thread.id != process.pid:
                    seconds[thread.id] = thread.user_time + thread.system_time
    return seconds
