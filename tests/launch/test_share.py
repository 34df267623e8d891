from __future__ import annotations

import os
import subprocess
import sys

import psutil

from cookbook.launch.share import put_pollers_last

ONE_POLLS = """
import threading, time
def poll():
    while True: pass
def rest():
    time.sleep(600)
threads = [threading.Thread(target=work, daemon=True) for work in (poll, rest)]
for thread in threads: thread.start()
print(*(thread.native_id for thread in threads), flush=True)
time.sleep(600)
"""


def test_a_thread_that_polls_runs_last_and_no_other_does() -> None:
    with subprocess.Popen([sys.executable, "-c", ONE_POLLS], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            polls, rests = map(int, process.stdout.readline().split())
            assert put_pollers_last([psutil.Process(process.pid)]) == [polls]
            nice = [os.getpriority(os.PRIO_PROCESS, thread) for thread in (polls, rests, process.pid)]
            assert nice == [15, 0, 0]
        finally:
            process.kill()


def test_a_main_thread_that_is_busy_computes() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            assert put_pollers_last([psutil.Process(process.pid)]) == []
        finally:
            process.kill()


def test_a_process_that_has_ended_is_passed_over() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        gone = psutil.Process(process.pid)
    assert put_pollers_last([gone]) == []
