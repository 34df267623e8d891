"""One process of a deployment becomes a running server on this machine."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import httpx
import psutil

from cookbook.deployment import Process
from cookbook.errors import InputError, ServerError, TimeLimitError
from cookbook.launch.phases import Phase, PhaseReader
from cookbook.launch.processes import end
from cookbook.launch.rootcause import root_cause, tail

__all__ = ["Server", "launch"]

LOOK_EVERY_S = 0.2
REQUEST_TIMEOUT_S = 5.0
# Known to make servers of one machine clash when it is inherited (srt-slurm#269).
NOT_INHERITED = ("VLLM_PORT",)


class Server:
    """A running server. It ends with `stop`, with the block that it is used in, or with this process.

    Attributes:
        process: What was started.
        base_url: Address, without a path.
        log: Its log file, free of secrets.
        pid: Of `vllm serve`; its workers are in the same session.
        phases: Of its start; the last is "ready".
    """

    def __init__(self, process: Process, log: Path, supervisor: subprocess.Popen[bytes], pid: int) -> None:
        self.process = process
        self.base_url = f"http://{process.host}:{process.port}"
        self.log = log
        self.pid = pid
        self.phases: list[Phase] = []
        self._supervisor = supervisor
        self._stopped = False
        # The supervisor may be killed too; then what it owned is ended from here.
        self._guard = threading.Thread(target=self._end_orphans, daemon=True)
        self._guard.start()

    def _end_orphans(self) -> None:
        self._supervisor.wait()
        end([self.pid], grace_s=0)

    def alive(self) -> bool:
        """Whether the server's main process lives."""
        return not self._stopped and _is_alive(self.pid) and self._supervisor.poll() is None

    def check_alive(self) -> None:
        """Do nothing, unless the server is dead.

        Raises:
            ServerError: It is; with the root cause out of its log.
        """
        if not self.alive():
            raise self._death()

    def _death(self) -> ServerError:
        code = self.stop()
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        cause = root_cause(text, code)
        where = f" ({cause.process})" if cause.process else ""
        return ServerError(
            f"The server died{where}: {cause.what.rstrip('.')}.",
            f"{cause.hint} Its log: {self.log}".strip(),
            tail(text),
        )

    def stop(self) -> int:
        """Stop the server and everything that came of it. Doing so again does nothing.

        Returns:
            The exit code of the server, 128 + n for a signal.
        """
        self._stopped = True
        with suppress(OSError):
            assert self._supervisor.stdin
            self._supervisor.stdin.close()
        code = self._supervisor.wait()
        self._guard.join()
        return code

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()


def launch(
    process: Process,
    *,
    log: Path,
    served_model_name: str,
    ready_timeout_s: float,
    on_phase: Callable[[Phase], None],
    environ: Mapping[str, str] = os.environ,
) -> Server:
    """Start a process of a deployment and wait until it is ready.

    Ready means: the process lives, the port is the one of this run, `/health` is 200, and `/v1/models` names the model.

    Args:
        process: What to start; its first word is "vllm".
        log: File for its output.
        served_model_name: The model that has to be named.
        ready_timeout_s: Bound on the start, in seconds.
        on_phase: Told of each phase of the start.
        environ: What the server inherits.

    Raises:
        InputError: vLLM is missing, the port is in use, or the log cannot be written.
        ServerError: It died, or another server answers on its port.
        TimeLimitError: It was not ready in time.
    """
    command = [_executable(process.argv[0]), *process.argv[1:]]
    _check_port(process.host, process.port)
    _check_log(log)
    inherited = {name: value for name, value in environ.items() if name not in NOT_INHERITED}
    supervisor = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "cookbook.launch.supervisor",
            "--owner",
            str(os.getpid()),
            "--log",
            str(log),
            "--",
            *command,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={**inherited, **{variable.name: variable.value for variable in process.environment}},
    )
    began = time.monotonic()
    assert supervisor.stdout
    first = supervisor.stdout.readline()
    if not first:
        supervisor.wait()
        raise ServerError(f"{command[0]} could not be started.", "Try the command of `cookbook show` by hand.")
    server = Server(process, log, supervisor, json.loads(first)["pid"])
    try:
        _wait_until_ready(server, served_model_name, began, ready_timeout_s, on_phase)
    except BaseException:
        server.stop()
        raise
    return server


def _wait_until_ready(
    server: Server, model: str, began: float, timeout_s: float, on_phase: Callable[[Phase], None]
) -> None:
    def tell(phase: Phase) -> None:
        server.phases.append(phase)
        on_phase(phase)

    reader = PhaseReader()
    log_position = 0
    key = os.environ.get("VLLM_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=server.base_url, timeout=REQUEST_TIMEOUT_S, headers=headers, trust_env=False) as client:
        while True:
            seconds = time.monotonic() - began
            log_position, lines = _new_lines(server.log, log_position)
            for line in lines:
                phase = reader.read(line, seconds)
                if phase:
                    tell(phase)
            server.check_alive()
            if _answers(client, model):
                tell(Phase("ready", "Ready", "", time.monotonic() - began))
                return
            if seconds > timeout_s:
                last = server.phases[-1].title if server.phases else "process started"
                server.stop()
                raise TimeLimitError(
                    f"The server was not ready after {timeout_s:g} s; its last phase: {last}.",
                    f"Give it more time (ready_timeout_s), or look at its log: {server.log}",
                )
            time.sleep(LOOK_EVERY_S)


def _answers(client: httpx.Client, model: str) -> bool:
    try:
        if client.get("/health").status_code != httpx.codes.OK:
            return False
        answer = client.get("/v1/models")
    except httpx.HTTPError:
        return False
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        raise ServerError("The server refuses the key of VLLM_API_KEY.", "Start it and ask it with the same key.")
    names = [str(entry.get("id")) for entry in answer.json().get("data", ())]
    if model not in names:
        raise ServerError(
            f"The server on {client.base_url} serves {', '.join(names) or 'nothing'}, not {model}.",
            "Another server may have taken the port: choose a free one.",
        )
    return True


def _new_lines(path: Path, position: int) -> tuple[int, list[str]]:
    if not path.exists():
        return position, []
    with path.open("rb") as file:
        file.seek(position)
        data = file.read()
    whole = data[: max(data.rfind(b"\n"), data.rfind(b"\r")) + 1]
    return position + len(whole), whole.decode(errors="replace").splitlines()


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _executable(name: str) -> str:
    """The command of this Python environment, else the one on PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise InputError(
            f"There is no `{name}` command, neither beside {sys.executable} nor on PATH.",
            "Run this in the image that the recipe names, or install the CPU engine: scripts/install cpu.",
        )
    return found


def _check_port(host: str, port: int) -> None:
    with socket.socket() as probe:
        # As the server does: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise InputError(
                f"Port {port} on {host} cannot be used: {error.strerror}{_holder(port)}.",
                "Stop what listens there, name another with the parameter port, or use that server with base_url.",
            ) from error


def _holder(port: int) -> str:
    with suppress(psutil.Error, StopIteration):
        pid = next(
            c.pid for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.laddr.port == port and c.pid
        )
        return f", it is held by {psutil.Process(pid).name()} (pid {pid})"
    return ""


def _check_log(log: Path) -> None:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab"):
            pass
    except OSError as error:
        raise InputError(
            f"The log {log} cannot be written: {error.strerror}.", "Name a folder that you may write to with --output."
        ) from error
