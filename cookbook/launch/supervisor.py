"""Owns one command, outside the process that asked for it.

    python -m cookbook.launch.supervisor --owner PID --log FILE -- COMMAND…

    owner (a kernel, `cookbook run`) ──stdin pipe──> supervisor ──> command ──> its workers

The command and all that comes of it end when the owner ends, however it ends: end of file on stdin, a pidfd on the
owner (a process that the owner forked may hold the pipe open), SIGTERM to the supervisor. When the command ends by
itself, what it left behind is ended too. SIGINT is ignored: a Ctrl-C belongs to the owner, who then decides.

The command's output goes through here line by line, without secrets, into the log file. The supervisor's own stdout
gets one line of JSON with the command's pid. It ends with the command's exit code, 128 + n for a signal.

Standard library and psutil only: one of these runs beside every server.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from cookbook.launch.processes import become_subreaper, die_with_parent, end
from cookbook.redact import Redactor

__all__ = ["GRACE_S", "LineFilter", "main"]

# vLLM with workers was gone 1.4 s after SIGTERM on a CPU; on GPUs it also frees device memory.
GRACE_S = 10.0
CHUNK = 2**16
LONGEST_LINE = 2**16


class LineFilter:
    """Bytes as they come, lines without secrets as they go. A carriage return ends a line too (progress bars)."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """What can be written now. An unfinished line waits for its end, so that no secret is cut in two."""
        self._rest += data
        cut = max(self._rest.rfind(b"\n"), self._rest.rfind(b"\r")) + 1
        if cut == 0 and len(self._rest) < LONGEST_LINE:
            return b""
        # A line without an end is cut at its last space, to leave words whole.
        cut = cut or self._rest.rfind(b" ") + 1 or len(self._rest)
        ready, self._rest = self._rest[:cut], self._rest[cut:]
        return self._clean(ready)

    def flush(self) -> bytes:
        """The rest, when no more comes."""
        ready, self._rest = self._rest, b""
        return self._clean(ready)

    def _clean(self, data: bytes) -> bytes:
        return self._redactor.text(data.decode(errors="replace")).encode()


class Log:
    """The log file. When it cannot be written the command goes on, and the supervisor says so once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self._say(error)

    def write(self, data: bytes) -> None:
        """Append bytes; after the first failure they are dropped, so that the command never blocks."""
        if self._file is None:
            return
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self._say(error)
            self._file = None

    def _say(self, error: OSError) -> None:
        sys.stderr.write(f"{self._path} cannot be written ({error.strerror}): the log ends here.\n")


def main(arguments: list[str]) -> int:
    """Run a command until it or its owner ends. Returns its exit code."""
    options = _options(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    become_subreaper()
    with selectors.DefaultSelector() as selector:
        if not _watch_owner(selector, options.owner):
            return 128 + signal.SIGTERM
        _watch_sigterm(selector)
        me = os.getpid()
        command = subprocess.Popen(
            options.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Safe here: this process has one thread so far. It covers a SIGKILL of the supervisor for the command.
            preexec_fn=lambda: die_with_parent(me),  # noqa: PLW1509
        )
        pump = threading.Thread(target=_pump, args=(command, options.log), daemon=True)
        pump.start()
        with suppress(BrokenPipeError):
            os.write(1, json.dumps({"pid": command.pid}).encode() + b"\n")
        selector.register(os.pidfd_open(command.pid), selectors.EVENT_READ, "command")
        ready = {key.data for key, _ in selector.select()}
        if "command" not in ready:
            # To the command alone: a server ends its own workers in better order than we could.
            command.terminate()
            with suppress(subprocess.TimeoutExpired):
                command.wait(GRACE_S)
        end([command.pid], below=me, grace_s=GRACE_S + 2)
        code = command.wait()
        _reap()
        pump.join(GRACE_S)
    return code if code >= 0 else 128 - code


def _reap() -> None:
    """Take leave of the orphans that this process adopted; an init that never does would keep them as zombies."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _pump(command: subprocess.Popen[bytes], path: Path) -> None:
    """Carry the command's output into the log until everybody who could write is gone."""
    log = Log(path)
    lines = LineFilter(Redactor.from_environ(os.environ))
    assert command.stdout
    while data := os.read(command.stdout.fileno(), CHUNK):
        log.write(lines.feed(data))
    log.write(lines.flush())


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="cookbook.launch.supervisor")
    parser.add_argument("--owner", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("command", nargs="+")
    return parser.parse_args(arguments)


def _watch_owner(selector: selectors.BaseSelector, owner: int) -> bool:
    """Watch the pipe and the owner's process; False when it is gone already."""
    selector.register(0, selectors.EVENT_READ, "stdin")
    try:
        selector.register(os.pidfd_open(owner), selectors.EVENT_READ, "owner")
    except ProcessLookupError:
        return False
    return True


def _watch_sigterm(selector: selectors.BaseSelector) -> None:
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(writer)
    selector.register(reader, selectors.EVENT_READ, "sigterm")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
