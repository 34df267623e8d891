"""Several servers, with stubs for vLLM and the router: the order, readiness, whose death it was, and the end."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cookbook.deployment import Argument, Process, Role
from cookbook.errors import ServerError, TimeLimitError
from cookbook.launch.fleet import Fleet, launch_all
from cookbook.launch.memory import MemoryWatch
from tests.launch.conftest import ORIGIN, MakeProcess


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    return number


def named(process: Process, name: str, role: Role, **changes: Any) -> Process:
    port = free_port()
    arguments = (Argument(flag="--port", value=port, origins=(ORIGIN,)),)
    update = {"name": name, "role": role, "port": port, "arguments": arguments, **changes}
    return process.model_copy(update=update)


def launch(processes: Sequence[Process], folder: Path, told: list[tuple[str, str]], *, limit_s: float = 30) -> Fleet:
    return launch_all(
        processes,
        logs=folder / "logs",
        served_model_name="kimi",
        ready_timeout_s=limit_s,
        on_phase=lambda process, phase: told.append((process.name, phase.name)),
        environ=os.environ,
    )


def test_engines_of_stubs_start_together_and_the_router_after_them(
    stub_server_process: MakeProcess, tmp_path: Path
) -> None:
    stub = stub_server_process()
    processes = (
        named(stub, "router-0", "router"),
        named(stub, "prefill-0", "prefill"),
        named(stub, "decode-0", "decode"),
        named(stub, "decode-1", "decode", serves=False),
    )
    told: list[tuple[str, str]] = []
    fleet = launch(processes, tmp_path, told)
    try:
        assert [server.process.name for server in fleet.servers] == ["prefill-0", "decode-0", "decode-1", "router-0"]
        assert fleet.base_url == f"http://127.0.0.1:{processes[0].port}"
        assert [server.process.name for server in fleet.of("decode")] == ["decode-0", "decode-1"]
        assert told.index(("router-0", "started")) > max(
            told.index(("prefill-0", "ready")), told.index(("decode-0", "ready"))
        )
        assert ("decode-1", "ready") not in told
        assert len(told) == len(set(told))
        assert fleet.alive()
        fleet.of("prefill")[0].stop()
        assert not fleet.alive()
        with pytest.raises(ServerError, match=r"^prefill-0 was stopped by this run"):
            fleet.check_alive()
    finally:
        fleet.stop()
    fleet.stop()
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {
        *("router-0.log", "prefill-0.log", "decode-0.log", "decode-1.log")
    }


@pytest.mark.parametrize("serves", [True, False])
def test_a_stub_that_dies_is_named_and_the_others_are_ended(
    stub_server_process: MakeProcess, tmp_path: Path, serves: bool
) -> None:
    processes = (
        named(stub_server_process("--never-ready"), "engine-0", "engine"),
        named(stub_server_process("--exit", "3"), "engine-1", "engine", serves=serves),
    )
    with pytest.raises(ServerError, match=r"^engine-1 died: The server ended with exit code 3"):
        launch(processes, tmp_path, [])


def test_a_stub_that_is_not_ready_in_time_is_named(stub_server_process: MakeProcess, tmp_path: Path) -> None:
    processes = (
        named(stub_server_process(), "prefill-0", "prefill"),
        named(stub_server_process("--never-ready"), "decode-0", "decode"),
    )
    with pytest.raises(TimeLimitError, match=r"^decode-0 was not ready after 2 s; its last phase: Process started"):
        launch(processes, tmp_path, [], limit_s=2)


def test_memory_is_sampled_until_the_end_and_events_are_marked() -> None:
    watch = MemoryWatch(every_s=0.01)
    watch.mark("before the start")
    watch.start()
    watch.start()
    watch.mark("ready")
    first = watch.marks["ready"]
    watch.mark("ready")
    watch.stop()
    watch.stop()
    host = next(series for series in watch.series() if series.name == "host_memory")
    assert watch.marks == {"ready": first}
    assert all(point.values[0] > 0.01 for point in host.points)
    assert [point.x for point in host.points] == sorted(point.x for point in host.points)
    assert host.unit == "GiB"
