"""Launching, with a stub in place of vLLM: readiness, the errors, the environment, and that nothing is left."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from cookbook.deployment import Process
from cookbook.errors import InputError, ServerError, TimeLimitError
from cookbook.launch.local import Server, launch
from cookbook.launch.phases import Phase
from cookbook.launch.preflight import check_log, check_port, find_executable
from tests.launch.conftest import MakeProcess

SAMPLES = Path(__file__).parent / "samples"


def start(process: Process, folder: Path, *, limit_s: float = 30, on_phase: Any = None, environ: Any = None) -> Server:
    return launch(
        process,
        log=folder / "logs" / "server.log",
        served_model_name="kimi",
        ready_timeout_s=limit_s,
        on_phase=on_phase or (lambda _: None),
        environ=os.environ if environ is None else environ,
    )


def test_a_stub_server_becomes_ready_and_is_stopped(stub_server_process: MakeProcess, tmp_path: Path) -> None:
    told: list[Phase] = []
    process = stub_server_process("--replay", str(SAMPLES / "healthy.log"))
    with start(process, tmp_path, on_phase=told.append) as server:
        assert server.alive()
        server.check_alive()
        assert server.base_url == f"http://127.0.0.1:{process.port}"
        names = [phase.name for phase in told]
        assert names == ["started", "engine", "loading", "loading", "loaded", "kv_cache", "init", "server", "ready"]
        assert server.phases == told
        assert [phase.seconds for phase in told] == sorted(phase.seconds for phase in told)
    assert not server.alive()
    assert server.stop() == server.stop() == 143
    with pytest.raises(ServerError, match="stopped by this run"):
        server.check_alive()


def test_the_environment_of_a_stub_server(stub_server_process: MakeProcess, tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "VLLM_PORT": "1",
        "COOKBOOK_RUN_FOLDER": "x",
        "KEPT": "1",
        "CHANGED": "1",
        "MY_TOKEN": "s3cr3t-value",
    }
    with start(stub_server_process(CHANGED="2", ADDED="3"), tmp_path, environ=environ) as server:
        seen = json.loads(server.read_log().splitlines()[0])
    assert "VLLM_PORT" not in seen
    assert "COOKBOOK_RUN_FOLDER" not in seen
    assert (seen["KEPT"], seen["CHANGED"], seen["ADDED"]) == ("1", "2", "3")
    assert seen["MY_TOKEN"] == "[redacted:MY_TOKEN]"


@pytest.mark.parametrize(
    ("devices", "role", "nice"), [(0, "engine", "nice 10"), (8, "engine", "nice 0"), (0, "router", "nice 0")]
)
def test_only_a_stub_server_that_computes_on_the_cpu_yields_to_others(
    stub_server_process: MakeProcess, tmp_path: Path, devices: int, role: str, nice: str
) -> None:
    if not Path("/proc/self/autogroup").exists():
        pytest.skip("this kernel does not schedule sessions as groups")
    process = stub_server_process().model_copy(update={"devices": devices, "role": role})
    with start(process, tmp_path) as server:
        assert Path(f"/proc/{server.pid}/autogroup").read_text().strip().endswith(nice)


def test_a_stub_server_is_asked_with_its_key(stub_server_process: MakeProcess, tmp_path: Path) -> None:
    environ = {**os.environ, "VLLM_API_KEY": "s3cr3t-value"}
    with start(stub_server_process("--key", "s3cr3t-value"), tmp_path, environ=environ) as server:
        assert server.alive()


def test_a_stub_server_that_refuses_the_key(stub_server_process: MakeProcess, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="refuses the key of VLLM_API_KEY"):
        start(stub_server_process("--key", "another"), tmp_path)


def test_a_stub_server_with_another_model(stub_server_process: MakeProcess, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="serves other, not kimi"):
        start(stub_server_process("--model", "other"), tmp_path)


def test_a_stub_server_that_dies_at_its_start(stub_server_process: MakeProcess, tmp_path: Path) -> None:
    process = stub_server_process("--exit", "1", "--replay", str(SAMPLES / "corrupt.log"))
    began = time.monotonic()
    with pytest.raises(
        ServerError, match=r"The server died \(Worker\): SafetensorError: .*fetch the model again"
    ) as caught:
        start(process, tmp_path)
    assert time.monotonic() - began < 10
    assert "safe_open" in caught.value.log_tail
    assert str(tmp_path / "logs" / "server.log") in str(caught.value)


def test_a_stub_server_that_dies_later(stub_server_process: MakeProcess, tmp_path: Path) -> None:
    with start(stub_server_process(), tmp_path) as server:
        os.kill(server.pid, 9)
        assert server.died_within(10)
        with pytest.raises(ServerError, match="ended by signal 9") as first:
            server.check_alive()
        with pytest.raises(ServerError) as second:
            server.check_alive()
        assert str(first.value) == str(second.value)


def test_a_stub_server_that_is_not_ready_in_time(stub_server_process: MakeProcess, tmp_path: Path) -> None:
    process = stub_server_process("--never-ready", "--replay", str(SAMPLES / "healthy.log"))
    with pytest.raises(
        TimeLimitError, match=r"not ready after 2 s; its last phase: HTTP server is starting.*server\.log"
    ):
        start(process, tmp_path, limit_s=2)


def test_an_exception_of_the_caller_stops_the_stub_server(stub_server_process: MakeProcess, tmp_path: Path) -> None:
    def interrupt(phase: Phase) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(stub_server_process(), tmp_path, on_phase=interrupt)


def test_the_log_of_an_earlier_stub_server_is_kept_and_not_read(
    stub_server_process: MakeProcess, tmp_path: Path
) -> None:
    log = tmp_path / "logs" / "server.log"
    log.parent.mkdir()
    log.write_text("Starting to load model\nValueError: of another time\n")
    with start(stub_server_process(), tmp_path) as server:
        assert [phase.name for phase in server.phases] == ["started", "ready"]
        assert "another time" not in server.read_log()
    assert log.read_text().startswith("Starting to load model\n")
    with pytest.raises(ServerError) as caught:
        start(stub_server_process("--exit", "5"), tmp_path)
    assert "another time" not in str(caught.value)


class OtherServer(BaseHTTPRequestHandler):
    """Serves the same model, as a second run of the same recipe would."""

    def do_GET(self) -> None:
        body = b'{"data": [{"id": "kimi"}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def test_another_server_that_took_the_port_is_not_taken_for_the_stub(
    stub_server_process: MakeProcess, tmp_path: Path
) -> None:
    process = stub_server_process("--never-ready")
    others: list[HTTPServer] = []

    def take_the_port(phase: Phase) -> None:
        others.append(HTTPServer(("127.0.0.1", process.port), OtherServer))
        threading.Thread(target=others[0].serve_forever).start()

    try:
        with pytest.raises(ServerError, match=rf"another process listens there: .*pid {os.getpid()}"):
            start(process, tmp_path, on_phase=take_the_port)
    finally:
        others[0].shutdown()
        others[0].server_close()


# Before anything is started


def test_a_port_in_use_is_told_with_its_holder(stub_server_process: MakeProcess, tmp_path: Path) -> None:
    process = stub_server_process()
    told = rf"Port {process.port} on 127\.0\.0\.1 .*pid {os.getpid()}.*parameter port"
    with socket.create_server(("127.0.0.1", process.port)), pytest.raises(InputError, match=told):
        start(process, tmp_path)
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_machine(host: str, port: int) -> None:
    with pytest.raises(InputError, match=rf"Port {port} on {host} cannot be used"):
        check_port(host, port)


def test_a_missing_command_names_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=rf"no `no-vllm` command.*{sys.executable}.*scripts/install"):
        find_executable("no-vllm", {"PATH": "/usr/bin"})


def test_a_command_that_cannot_be_executed(stub_server_process: MakeProcess, tmp_path: Path) -> None:
    process = stub_server_process()
    (tmp_path / "bin" / "stub-server").write_text("#!/no/such/python\n")
    with pytest.raises(InputError, match=r"stub-server could not be started: .*No such file"):
        start(process, tmp_path)


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"The log .* cannot be written: Is a directory"):
        check_log(tmp_path)
