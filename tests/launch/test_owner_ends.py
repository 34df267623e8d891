"""Whatever ends the owner or the supervisor, no process of the server is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from cookbook.launch.processes import wait
from tests.launch.conftest import MakeProcess

LIMIT_S = 15


@dataclass
class Owned:
    owner: subprocess.Popen[str]
    supervisor: psutil.Process
    server: psutil.Process
    processes: list[psutil.Process]
    helper: int | None

    def say(self) -> str:
        """Let the owner go on, and hear what it says."""
        assert self.owner.stdin
        assert self.owner.stdout
        self.owner.stdin.write("\n")
        self.owner.stdin.flush()
        return self.owner.stdout.readline().strip()


@contextmanager
def owned(how: str, make: MakeProcess, folder: Path) -> Iterator[Owned]:
    command = [sys.executable, "-m", "tests.launch.programs.owner", how, make().model_dump_json()]
    with subprocess.Popen(
        [*command, str(folder / "server.log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as owner:
        assert owner.stdout
        said = json.loads(owner.stdout.readline())
        processes = [psutil.Process(pid) for pid in said["pids"]]
        server = psutil.Process(said["server"])
        assert len(processes) == 4  # supervisor, server, worker, and the worker's own in another session
        assert len({os.getsid(process.pid) for process in processes}) == 3
        yield Owned(owner, psutil.Process(server.ppid()), server, processes, said["helper"])
        owner.kill()


@pytest.mark.parametrize("how", ["return", "raise", "kill"])
def test_the_owner_ends_by_itself(how: str, stub_server_process: MakeProcess, tmp_path: Path) -> None:
    with owned(how, stub_server_process, tmp_path) as run:
        run.say()
        assert wait(run.processes, timeout_s=LIMIT_S) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_the_owner_is_ended_by_a_signal(
    number: signal.Signals, stub_server_process: MakeProcess, tmp_path: Path
) -> None:
    with owned("return", stub_server_process, tmp_path) as run:
        run.owner.send_signal(number)
        assert wait(run.processes, timeout_s=LIMIT_S) == []


def test_the_supervisor_is_killed(stub_server_process: MakeProcess, tmp_path: Path) -> None:
    with owned("check", stub_server_process, tmp_path) as run:
        run.supervisor.kill()
        assert wait(run.processes, timeout_s=LIMIT_S) == []
        assert "supervisor was killed by signal 9" in run.say()


def test_the_supervisor_is_asked_to_end(stub_server_process: MakeProcess, tmp_path: Path) -> None:
    with owned("check", stub_server_process, tmp_path) as run:
        run.supervisor.terminate()
        assert wait(run.processes, timeout_s=LIMIT_S) == []


def test_the_server_is_killed(stub_server_process: MakeProcess, tmp_path: Path) -> None:
    with owned("check", stub_server_process, tmp_path) as run:
        run.server.kill()
        assert wait(run.processes, timeout_s=LIMIT_S) == []
        assert "ended by signal 9" in run.say()


def test_an_interrupt_of_the_owner_does_not_reach_the_server(stub_server_process: MakeProcess, tmp_path: Path) -> None:
    with owned("check", stub_server_process, tmp_path) as run:
        run.supervisor.send_signal(signal.SIGINT)
        assert run.say() == "alive"
        os.killpg(run.owner.pid, signal.SIGINT)
        assert run.owner.wait(LIMIT_S) != 0
        assert wait(run.processes, timeout_s=LIMIT_S) == []


def test_a_child_that_the_owner_forked_holds_the_pipe(stub_server_process: MakeProcess, tmp_path: Path) -> None:
    with owned("fork", stub_server_process, tmp_path) as run:
        assert run.helper
        helper = psutil.Process(run.helper)
        run.owner.kill()
        assert wait(run.processes, timeout_s=LIMIT_S) == []
        assert helper.is_running()
        helper.kill()
        assert wait([helper], timeout_s=LIMIT_S) == []
