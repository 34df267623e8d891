"""A stub server that can be launched, a free port, and the rule that a test leaves no process."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from cookbook.deployment import Argument, EnvVar, Origin, Process
from cookbook.launch.processes import become_subreaper, is_alive, members
from tests.launch.programs import stub_server

ORIGIN = Origin(layer="test", why="For a test.", basis="chosen")
MakeProcess = Callable[..., Process]


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    become_subreaper()  # so that an orphan of a test is found below this process
    before = {process.pid for process in members((), below=os.getpid())}
    yield
    left = [process for process in members((), below=os.getpid()) if process.pid not in before]
    names = [" ".join(process.cmdline()) for process in left if is_alive(process)]
    for process in left:
        process.kill()
    psutil.wait_procs(left, timeout=5)
    assert not names


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    return number


@pytest.fixture
def stub_server_process(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> MakeProcess:
    """Makes a process of a deployment whose program is the stub server, found on PATH like any other."""
    command = tmp_path / "bin" / "stub-server"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable} -S\n{Path(stub_server.__file__).read_text()}")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")

    def make(*words: str, **environment: str) -> Process:
        return Process(
            name="engine-0",
            role="engine",
            node=0,
            program=("stub-server", "serve", "m", *words),
            arguments=(Argument(flag="--port", value=port, origins=(ORIGIN,)),),
            environment=tuple(EnvVar(name=name, value=value, origin=ORIGIN) for name, value in environment.items()),
            host="127.0.0.1",
            port=port,
            devices=0,
        )

    return make
