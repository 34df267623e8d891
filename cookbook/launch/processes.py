"""Processes on Linux: who belongs to a run, and how all of them are ended.

Only what a run started is touched: descendants of the caller, members of sessions that it made, and processes that
carry its mark.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

__all__ = ["become_subreaper", "die_with_parent", "end", "is_alive", "members", "wait"]

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


def members(sessions: Iterable[int], *, below: int | None = None, mark: str = "") -> list[psutil.Process]:
    """The living processes of these sessions, the descendants of `below`, and whoever carries `mark`.

    Zombies are not alive: they hold nothing but a number.

    Args:
        sessions: Session ids (the pids of their leaders).
        below: A pid; it is not a member itself.
        mark: NAME=VALUE in the environment that a process was started with. It finds what made a session of its own
            and lost its parent. vLLM's workers overwrite theirs with a title; they stay in the server's session.
    """
    wanted = set(sessions)
    found: dict[int, psutil.Process] = {}
    if below is not None:
        with suppress(psutil.NoSuchProcess):
            found |= {process.pid: process for process in psutil.Process(below).children(recursive=True)}
    for pid in psutil.pids():
        with suppress(OSError, psutil.NoSuchProcess):
            if pid not in found and (os.getsid(pid) in wanted or (mark and _carries(pid, mark))):
                found[pid] = psutil.Process(pid)
    return [process for process in found.values() if is_alive(process)]


def _carries(pid: int, mark: str) -> bool:
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    return os.fsencode(mark) in environment.split(b"\0")


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs: not ended, not a zombie, and still the one that had this pid."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end(
    sessions: Iterable[int],
    *,
    below: int | None = None,
    mark: str = "",
    spare: Iterable[int] = (),
    grace_s: float,
) -> list[psutil.Process]:
    """End all members: SIGTERM, a grace, then SIGKILL until none is left.

    Args:
        sessions: As in `members`.
        below: As in `members`.
        mark: As in `members`.
        spare: Session ids whose processes are left alone.
        grace_s: Seconds between SIGTERM and SIGKILL; 0 goes straight to SIGKILL.

    Returns:
        What is still there: processes that the kernel does not let go of (uninterruptible I/O).
    """
    wanted, spared = tuple(sessions), frozenset(spare)

    def living() -> list[psutil.Process]:
        found = members(wanted, below=below, mark=mark)
        return [process for process in found if _session(process) not in spared] if spared else found

    if grace_s > 0:
        asked = living()
        _signal(asked, signal.SIGTERM)
        wait(asked, timeout_s=grace_s)
    # Twice and more: a process may have forked while the list was made.
    for _ in range(5):
        left = living()
        if not left:
            return []
        _signal(left, signal.SIGKILL)
        wait(left, timeout_s=2)
    return living()


def _session(process: psutil.Process) -> int | None:
    with suppress(OSError):
        return os.getsid(process.pid)
    return None


def wait(processes: Iterable[psutil.Process], *, timeout_s: float) -> list[psutil.Process]:
    """Wait until these processes have ended, whoever their parents are.

    A child's exit code is left for its parent: `psutil.wait_procs` would take it away from `subprocess`.

    Args:
        processes: What to wait for.
        timeout_s: For how long, in seconds.

    Returns:
        Those that still live.
    """
    deadline = time.monotonic() + timeout_s
    living = list(processes)
    with selectors.DefaultSelector() as selector, ExitStack() as descriptors:
        for process in living:
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(process.pid)
                descriptors.callback(os.close, descriptor)
                selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                selector.unregister(key.fileobj)
    return [process for process in living if is_alive(process)]


def _signal(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
