"""One process of a deployment becomes a running server on this machine."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeVar

import httpx
import psutil

from cookbook.deployment import Process
from cookbook.errors import InputError, ServerError, TimeLimitError
from cookbook.launch.phases import Phase, PhaseReader
from cookbook.launch.preflight import check_log, check_port, find_executable, port_holders
from cookbook.launch.processes import end, members
from cookbook.launch.rootcause import root_cause, tail
from cookbook.launch.share import weigh_less
from cookbook.launch.supervisor import GRACE_S, LEFT_BEHIND_GRACE_S

__all__ = ["LOG_END_BYTES", "Server", "Tail", "death", "launch", "reachable", "read_log", "start", "wait_until_ready"]

LOOK_EVERY_S = 0.2
REQUEST_TIMEOUT_S = 2.0
# The supervisor is killed when it needs much longer than its own graces and the kernel's time to end processes.
STOP_LIMIT_S = GRACE_S + LEFT_BEHIND_GRACE_S + 20
# A server that served for days leaves a long log; the reason of its end stands near the end.
LOG_END_BYTES = 2**21
# VLLM_PORT makes servers of one machine clash when it is inherited (srt-slurm#269).
NOT_INHERITED = ("VLLM_PORT",)
OWN_VARIABLES = "COOKBOOK_"
MARK = "COOKBOOK_SERVER"


class Watched(Protocol):
    """What waiting for a server needs of it. The attributes are those of `Server`; `pid` is None on another machine."""

    process: Process
    base_url: str
    called: str
    log: Path
    log_start: int
    phases: list[Phase]
    began: float

    @property
    def pid(self) -> int | None: ...

    def check_alive(self) -> None: ...

    def died_within(self, seconds: float) -> bool: ...


W = TypeVar("W", bound=Watched)


class Server:
    """A running server. It ends with `stop`, with the block that it is used in, or with this process.

    Attributes:
        process: What was started.
        base_url: Address for clients on this machine, without a path.
        called: What errors call it, at the beginning of a sentence.
        log: Its log file, free of secrets.
        log_start: Where in that file this server began, in bytes.
        pid: Of the command; its workers are in the same session.
        phases: Of its start; the last is "ready", where it listens at all.
    """

    def __init__(
        self,
        process: Process,
        *,
        called: str,
        log: Path,
        log_start: int,
        supervisor: subprocess.Popen[bytes],
        pid: int,
        mark: str,
    ) -> None:
        self.process = process
        self.base_url = f"http://{reachable(process.host)}:{process.port}"
        self.called = called
        self.log = log
        self.pid = pid
        self.phases: list[Phase] = []
        self.began = time.monotonic()
        self.log_start = log_start
        self._supervisor = supervisor
        self._mark = mark
        self._stopped = False
        self._end: ServerError | None = None
        # A descriptor stays with its process, while a number may be given to another.
        self._descriptor = os.pidfd_open(supervisor.pid)
        # The supervisor may be killed too; then what it owned is ended from here.
        self._guard = threading.Thread(target=self._end_orphans, daemon=True)
        self._guard.start()

    def _end_orphans(self) -> None:
        self._supervisor.wait()
        end([self.pid], mark=self._mark, grace_s=0)

    @property
    def sessions(self) -> tuple[int, int]:
        """Session ids of the supervisor and of the command with its workers."""
        return self._supervisor.pid, self.pid

    def alive(self) -> bool:
        """Whether the server's main process and its supervisor live."""
        return not self.died_within(0)

    def died_within(self, seconds: float) -> bool:
        """Wait for the end of the server, up to a bound; returns at once when it ends."""
        if self._stopped:
            return True
        with selectors.DefaultSelector() as selector:
            selector.register(self._descriptor, selectors.EVENT_READ)
            try:
                server = os.pidfd_open(self.pid)
            except ProcessLookupError:
                return True
            try:
                selector.register(server, selectors.EVENT_READ)
                return bool(selector.select(seconds))
            finally:
                os.close(server)

    def check_alive(self) -> None:
        """Do nothing, unless the server is dead.

        Raises:
            ServerError: It is; with the root cause out of its log.
        """
        if self._end is None and not self.alive():
            self._end = ServerError(f"{self.called} was stopped by this run.") if self._stopped else self._death()
        if self._end:
            raise self._end

    def _death(self) -> ServerError:
        code = self.stop()
        text = self.read_log(LOG_END_BYTES)
        if code < 0:
            return ServerError(
                f"{self.called} was ended: its supervisor was killed by signal {-code}.",
                f"Look for who sends that signal: the OOM killer or a batch system. Its log: {self.log}",
                tail(text),
            )
        return death(self.called, self.log, text, code)

    def read_log(self, last_bytes: int | None = None) -> str:
        """What this server has written, without what an earlier one wrote into the same file.

        Args:
            last_bytes: How much of its end to read; None for all.
        """
        return read_log(self.log, self.log_start, last_bytes)

    def ask_to_stop(self) -> None:
        """Have the server stopped, without waiting until it is gone."""
        self._stopped = True
        assert self._supervisor.stdin
        with suppress(OSError):
            self._supervisor.stdin.close()

    def stop(self) -> int:
        """Stop the server and everything that came of it. Doing so again does nothing.

        Returns:
            The exit code of the server, 128 + n for a signal; -n when its supervisor was killed by one.
        """
        self.ask_to_stop()
        assert self._supervisor.stdout
        self._guard.join(STOP_LIMIT_S)
        if self._guard.is_alive():
            self._supervisor.kill()
            self._guard.join()
        self._supervisor.stdout.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        return self._supervisor.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()


def read_log(log: Path, start: int, last_bytes: int | None = None) -> str:
    """What a server has written since `start`, in bytes; empty where its log cannot be read.

    Args:
        log: The file.
        start: Where in it that server began.
        last_bytes: How much of the end to read; None for all.
    """
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(start if last_bytes is None else max(start, size - last_bytes))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def death(called: str, log: Path, text: str, code: int | None) -> ServerError:
    """Why a server died, out of its log.

    Args:
        called: What the error calls it.
        log: The file, for whoever reads the error.
        text: What it wrote.
        code: Its exit code, 128 + n for a signal; None where it is not known.
    """
    cause = root_cause(text, code)
    where = f" ({cause.process})" if cause.process else ""
    lines = [*cause.context, "…", tail(text)] if cause.context else [tail(text)]
    return ServerError(
        f"{called} died{where}: {cause.what.rstrip('.')}.",
        f"{cause.hint} Its log: {log}".strip(),
        "\n".join(lines),
    )


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

    When this raises, whatever was started has been stopped.

    Args:
        process: What to start.
        log: File for its output; it is appended to.
        served_model_name: The model that has to be named.
        ready_timeout_s: Bound on the start, in seconds.
        on_phase: Told of each phase of the start.
        environ: What the server inherits, and where its key is (VLLM_API_KEY).

    Raises:
        InputError: As `start`.
        ServerError: As `wait_until_ready`.
        TimeLimitError: As `wait_until_ready`.
    """
    server = start(process, log=log, environ=environ)
    try:
        wait_until_ready(
            (server,),
            served_model_name=served_model_name,
            ready_timeout_s=ready_timeout_s,
            began=server.began,
            on_phase=lambda _, phase: on_phase(phase),
            environ=environ,
        )
    except BaseException:
        server.stop()
        raise
    return server


def start(
    process: Process, *, log: Path, called: str = "The server", environ: Mapping[str, str] = os.environ
) -> Server:
    """Start a process of a deployment, and leave it to load.

    Args:
        process: What to start; its first word is a command, for example "vllm".
        log: File for its output; it is appended to.
        called: What errors call it, at the beginning of a sentence.
        environ: What the server inherits.

    Raises:
        InputError: The command is missing, the port is in use, or the log cannot be written.
    """
    command = [find_executable(process.argv[0], environ), *process.argv[1:]]
    if process.serves:
        check_port(process.host, process.port)
    log_start = check_log(log)
    mark = uuid.uuid4().hex
    inherited = {n: v for n, v in environ.items() if n not in NOT_INHERITED and not n.startswith(OWN_VARIABLES)}
    own = {variable.name: variable.value for variable in process.environment}
    # vLLM 0.32.0: a headless rank closes the pipe of its workers first, which makes them deaf to the SIGTERM that it
    # sends next, so it kills them after 9 s. One that has the signal before that ends at once.
    all_at_once = process.has("--headless")
    supervisor, pid = _start(command, log, {**inherited, **own, MARK: mark}, all_at_once=all_at_once)
    server = Server(
        process,
        called=called,
        log=log,
        log_start=log_start,
        supervisor=supervisor,
        pid=pid,
        mark=f"{MARK}={mark}",
    )
    if process.computes_on_cpu:
        weigh_less(pid)
    return server


def wait_until_ready(
    servers: Sequence[W],
    *,
    served_model_name: str,
    ready_timeout_s: float,
    began: float,
    on_phase: Callable[[W, Phase], None],
    besides: Sequence[W] = (),
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Wait until each of the servers that listens is ready, and see that none dies meanwhile.

    Ready means: the process lives, it is the one that listens on the port, `/health` is 200, and `/v1/models` of an
    engine names the model. A rank that does not listen has nothing to wait for.

    Args:
        servers: What was started; they are left running whatever this raises.
        served_model_name: The model that has to be named.
        ready_timeout_s: Bound, in seconds.
        began: When that began, by the monotonic clock.
        on_phase: Told of each phase of each server.
        besides: Servers that have to live meanwhile.
        environ: Where the server's key is (VLLM_API_KEY).

    Raises:
        ServerError: One died, or another server answers on its port.
        TimeLimitError: One was not ready in time.
    """
    key = environ.get("VLLM_API_KEY")
    watches = [_Watch(server, served_model_name, key, partial(on_phase, server)) for server in servers]
    with ExitStack() as stack:
        for watch in watches:
            stack.callback(watch.close)
        while True:
            waiting = [watch for watch in watches if not watch.ready()]
            for server in (*servers, *besides):
                server.check_alive()
            if not waiting:
                return
            left = began + ready_timeout_s - time.monotonic()
            if left <= 0:
                late = waiting[0].server
                last = late.phases[-1]
                raise TimeLimitError(
                    f"{late.called} was not ready after {ready_timeout_s:g} s; its last phase: {last.title}.",
                    f"Give it more time (ready_timeout_s), or look at its log: {late.log}",
                )
            waiting[0].server.died_within(min(LOOK_EVERY_S, left))


class _Watch:
    """One server on its way to being ready."""

    def __init__(self, server: Watched, model: str, key: str | None, on_phase: Callable[[Phase], None]) -> None:
        self.server = server
        self._model = model
        self._on_phase = on_phase
        self._phases = PhaseReader()
        self._lines = Tail(server.log, server.log_start)
        self._ready = False
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.Client(
            base_url=server.base_url, timeout=REQUEST_TIMEOUT_S, headers=headers, trust_env=False
        )
        if not server.phases:
            self._tell(Phase("started", "Process started", "", 0.0))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def ready(self) -> bool:
        """Look once, and tell of new phases."""
        self._tell_new_phases()
        if self._ready or not self.server.process.serves:
            return True
        if _answers(self._client, self.server, self._model):
            self.server.check_alive()
            self._tell_new_phases()
            self._tell(Phase("ready", "Ready", "", time.monotonic() - self.server.began))
            self._ready = True
        return self._ready

    def _tell_new_phases(self) -> None:
        for line in self._lines.new():
            phase = self._phases.read(line, time.monotonic() - self.server.began)
            if phase:
                self._tell(phase)

    def _tell(self, phase: Phase) -> None:
        self.server.phases.append(phase)
        self._on_phase(phase)


def _start(
    command: list[str], log: Path, environ: Mapping[str, str], *, all_at_once: bool
) -> tuple[subprocess.Popen[bytes], int]:
    """Start the supervisor, and learn the pid of the command from it."""
    words = [sys.executable, "-m", "cookbook.launch.supervisor", "--owner", str(os.getpid()), "--log", str(log)]
    words += ["--all-at-once"] * all_at_once + ["--"]
    supervisor = subprocess.Popen(
        [*words, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=dict(environ)
    )
    assert supervisor.stdin
    assert supervisor.stdout
    try:
        line = supervisor.stdout.readline()
        answer = json.loads(line) if line else {"error": "its supervisor ended without a word"}
        if "pid" in answer:
            return supervisor, int(answer["pid"])
    except BaseException:
        _give_up(supervisor)
        raise
    _give_up(supervisor)
    raise InputError(
        f"{command[0]} could not be started: {answer['error']}.", "Try the command of `cookbook show` by hand."
    )


def _give_up(supervisor: subprocess.Popen[bytes]) -> None:
    with supervisor:  # closes the pipes and waits
        pass


class Tail:
    """The lines of a log as they come; a line without an end waits for it.

    Args:
        path: Of the log; it need not exist yet.
        position: Where to begin, in bytes.
    """

    def __init__(self, path: Path, position: int) -> None:
        self._path = path
        self._position = position

    def new(self) -> Iterator[str]:
        """Those that have come since."""
        with suppress(OSError), self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
            whole = data[: max(data.rfind(b"\n"), data.rfind(b"\r")) + 1]
            self._position += len(whole)
            yield from whole.decode(errors="replace").splitlines()


def _answers(client: httpx.Client, server: Watched, model: str) -> bool:
    """Whether the server is ready.

    Raises:
        ServerError: Something answers that cannot become it: another server, another model, another key.
    """
    try:
        if client.get("/health").status_code != httpx.codes.OK:
            return False
        if server.process.role == "router":
            return True
        answer = client.get("/v1/models")
        names = [str(entry["id"]) for entry in answer.json()["data"]] if answer.is_success else []
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return False
    # Before the name: a server of the same model may have taken the port while this one was starting.
    others = [] if server.pid is None else _strangers(server.pid, server.process.port)
    if others:
        who = f"{others[0].name()} (pid {others[0].pid})"
        raise ServerError(
            f"Port {server.process.port} was free, and now another process listens there: {who}.",
            "Choose a free port with the parameter port.",
        )
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        raise ServerError(f"{server.called} refuses the key of VLLM_API_KEY.", "Start it and ask it with the same key.")
    if answer.is_success and model not in names:
        raise ServerError(
            f"{server.called} on {server.base_url} serves {', '.join(names) or 'nothing'}, not {model}.",
            "Give it that name with --served-model-name.",
        )
    return answer.is_success


def _strangers(pid: int, port: int) -> list[psutil.Process]:
    """Who listens on this port and is not of that server."""
    own = {process.pid for process in members([pid], below=pid)}
    return [process for process in port_holders(port) if process.pid not in own]


def reachable(host: str) -> str:
    """The address for a client on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104
    return f"[{host}]" if ":" in host else host
