"""A process that owns a server, and then comes to an end in the way that a test wants to see.

    python -m tests.launch.programs.owner HOW PROCESS_JSON LOG

It says `ready` and the pids of the server's processes, waits for a line on stdin, and goes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from pathlib import Path

import psutil

from cookbook.deployment import Process
from cookbook.errors import ServerError
from cookbook.launch.local import launch


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def hear() -> None:
    """Wait for a line. A signal that comes just before a read blocks would not be seen until the read is over."""
    while not select.select([sys.stdin], [], [], 0.1)[0]:
        pass
    sys.stdin.readline()


def main(how: str, process: str, log: str) -> None:
    server = launch(
        Process.model_validate_json(process),
        log=Path(log),
        served_model_name="kimi",
        ready_timeout_s=60,
        on_phase=lambda _: None,
    )
    pids = [child.pid for child in psutil.Process().children(recursive=True)]
    helper = os.fork() if how == "fork" else None
    if helper == 0:
        time.sleep(600)
    say(json.dumps({"pids": pids, "helper": helper, "server": server.pid}))
    hear()
    if how == "raise":
        raise RuntimeError
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "check":
        try:
            server.check_alive()
            say("alive")
        except ServerError as error:
            say(str(error))
        hear()


if __name__ == "__main__":
    # A shell has what it starts in the background ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(*sys.argv[1:])
