"""Who belongs to a run, and that all of them can be ended."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

from cookbook.launch.processes import end, members, wait

SLEEP = (sys.executable, "-S", "-c", "import time; time.sleep(600)")


def test_members_of_a_session_and_marked_ones_are_found_and_ended() -> None:
    first = subprocess.Popen(SLEEP, start_new_session=True)
    marked = subprocess.Popen(SLEEP, start_new_session=True, env={"TEST_MARK": "a-b"})
    other = subprocess.Popen(SLEEP, start_new_session=True, env={"TEST_MARK": "a-bc"})
    try:
        assert {process.pid for process in members([first.pid])} == {first.pid}
        assert {process.pid for process in members((), mark="TEST_MARK=a-b")} == {marked.pid}
        assert end([first.pid], mark="TEST_MARK=a-b", grace_s=5) == []
        assert first.wait() == marked.wait() == -15
        assert other.poll() is None
    finally:
        for process in (first, marked, other):
            process.kill()
            process.wait()


def test_without_a_grace_nobody_is_asked() -> None:
    process = subprocess.Popen(SLEEP, start_new_session=True)
    assert end([process.pid], grace_s=0) == []
    assert process.wait() == -9


def test_a_zombie_is_not_alive_and_keeps_its_exit_code() -> None:
    process = subprocess.Popen(["sh", "-c", "exit 7"], start_new_session=True)
    zombie = psutil.Process(process.pid)
    assert wait([zombie], timeout_s=10) == []
    assert members([process.pid]) == []
    assert members((), below=os.getpid()) == []
    assert process.wait() == 7


def test_waiting_has_a_bound() -> None:
    process = subprocess.Popen(SLEEP)
    try:
        assert [left.pid for left in wait([psutil.Process(process.pid)], timeout_s=0.05)] == [process.pid]
    finally:
        process.kill()
        process.wait()


def test_a_session_that_does_not_exist_has_no_members() -> None:
    assert members([2**22 + 1], below=2**22 + 1) == []
    assert end([2**22 + 1], grace_s=5) == []
