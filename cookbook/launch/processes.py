"""Processes on Linux: who belongs to a run, and how all of them are ended.

Only what a run started is touched: descendants of the caller, and members of sessions that it made.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable
from contextlib import suppress

import psutil

__all__ = ["become_subreaper", "die_with_parent", "end", "members"]

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Make orphans below this process its own children, whatever session they are in."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent ends. To be called in a child, between fork and exec.

    Args:
        parent: The parent's pid, taken before the fork: it may be gone already.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def members(sessions: Iterable[int], *, below: int | None = None) -> list[psutil.Process]:
    """The living processes of these sessions, and the descendants of `below`; zombies are not alive.

    Args:
        sessions: Session ids (the pids of their leaders).
        below: A pid; it is not a member itself.
    """
    wanted = set(sessions)
    found: dict[int, psutil.Process] = {}
    if below is not None:
        with suppress(psutil.NoSuchProcess):
            found |= {process.pid: process for process in psutil.Process(below).children(recursive=True)}
    for pid in psutil.pids():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if pid not in found and os.getsid(pid) in wanted:
                found[pid] = psutil.Process(pid)
    return [process for process in found.values() if _alive(process)]


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end(sessions: Iterable[int], *, below: int | None = None, grace_s: float) -> list[psutil.Process]:
    """End all members: SIGTERM, a grace, then SIGKILL until none is left.

    Args:
        sessions: As in `members`.
        below: As in `members`.
        grace_s: Seconds between SIGTERM and SIGKILL; 0 goes straight to SIGKILL.

    Returns:
        What is still there: processes that the kernel does not let go of (uninterruptible I/O).
    """
    wanted = tuple(sessions)
    if grace_s > 0:
        asked = members(wanted, below=below)
        _signal(asked, signal.SIGTERM)
        psutil.wait_procs(asked, timeout=grace_s)
    # Twice and more: a process may have forked while the list was made.
    for _ in range(5):
        left = members(wanted, below=below)
        if not left:
            return []
        _signal(left, signal.SIGKILL)
        psutil.wait_procs(left, timeout=2)
    return members(wanted, below=below)


def _signal(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
