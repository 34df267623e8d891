"""Owns one command, outside the process that asked for it.

    python -m cookbook.launch.supervisor --owner PID --log FILE [--all-at-once] -- COMMAND…

    owner (a kernel, `cookbook run`) ──stdin pipe──> supervisor ──> command ──> its workers

The command and all that comes of it end when the owner ends, however it ends: end of file on stdin, a pidfd on the
owner (a process that the owner forked may hold the pipe open), SIGTERM or SIGHUP to the supervisor. When the command
ends by itself, what it left behind is ended too. With --all-at-once what came of the command is asked to end at the
same time as it. SIGINT is ignored: a Ctrl-C belongs to the owner, who then decides.

The command's output goes through here line by line, without secrets, into the log file. The supervisor's own stdout
gets one line of JSON: the command's pid, or the error that kept it from starting. It ends with the command's exit
code, 128 + n for a signal.

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

import psutil

from cookbook.launch.processes import become_subreaper, die_with_parent, end, wait
from cookbook.redact import Redactor

__all__ = ["GRACE_S", "LEFT_BEHIND_GRACE_S", "LineFilter", "main"]

# Measured with vLLM 0.32.0 and two workers on a CPU: the whole server was gone 1.1 to 1.5 s after SIGTERM. An engine
# core whose API server was killed took 9 s: it waits twice for its workers. GPUs also have memory to free.
GRACE_S = 10.0
# What a command left behind may be such an engine core, or a supervisor itself, which needs its own grace.
LEFT_BEHIND_GRACE_S = GRACE_S + 2
CHUNK = 2**16
LONGEST_LINE = 2**16
# No secret is searched for that is longer; a key of several lines is found line by line.
LONGEST_SECRET = 2**10


class LineFilter:
    """Bytes as they come, lines without secrets as they go. A carriage return ends a line too (progress bars)."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """What can be written now. An unfinished line waits for its end, so that no secret is cut in two."""
        self._rest += data
        cut = max(self._rest.rfind(b"\n"), self._rest.rfind(b"\r")) + 1
        if cut == 0:
            if len(self._rest) < LONGEST_LINE:
                return b""
            cut = self._cut()
        ready, self._rest = self._rest[:cut], self._rest[cut:]
        return self._clean(ready)

    def flush(self) -> bytes:
        """The rest, when no more comes."""
        ready, self._rest = self._rest, b""
        return self._clean(ready)

    def _cut(self) -> int:
        """Where a line without an end can be cut: not inside of a secret, so both parts are clean as the whole is."""
        whole = self._clean(self._rest)
        for cut in range(len(self._rest) - LONGEST_SECRET, 0, -LONGEST_SECRET):
            if self._clean(self._rest[:cut]) + self._clean(self._rest[cut:]) == whole:
                return cut
        return len(self._rest)

    def _clean(self, data: bytes) -> bytes:
        return self._redactor.text(data.decode(errors="surrogateescape")).encode(errors="surrogateescape")


class Log:
    """The log file. When it cannot be written the command goes on, and the supervisor says so once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._said = False
        self._lost = 0
        self._file: int | None = None
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self._say(error)

    def write(self, data: bytes) -> None:
        """Append bytes. What does not fit on a full disk is dropped, so that the command never blocks."""
        if self._file is None:
            return
        try:
            if self._lost and data:
                os.write(self._file, f"\n[{self._lost} bytes of the log were lost: it could not be written]\n".encode())
                self._lost = 0
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self._lost += len(data)
            self._say(error)

    def _say(self, error: OSError) -> None:
        if not self._said:
            self._said = True
            with suppress(OSError):
                os.write(2, f"{self._path} cannot be written ({error.strerror}): the log has a gap here.\n".encode())


def main(arguments: list[str]) -> int:
    """Run a command until it or its owner ends. Returns its exit code."""
    options = _options(arguments)
    become_subreaper()
    with selectors.DefaultSelector() as selector:
        signals = _watch_signals(selector)
        if not _watch_owner(selector, options.owner):
            return 128 + signal.SIGTERM
        try:
            command = _start(options.command)
        except OSError as error:
            _report({"error": f"{error.filename or options.command[0]}: {error.strerror}"})
            return 127
        pump = threading.Thread(target=_pump, args=(command, options.log), daemon=True)
        pump.start()
        _report({"pid": command.pid})
        if not _wait_for_end(selector, signals, command.pid) and not options.all_at_once:
            # To the command alone: a server ends its own workers in better order than we could.
            command.terminate()
            with suppress(psutil.NoSuchProcess):
                wait([psutil.Process(command.pid)], timeout_s=GRACE_S)
        end([command.pid], below=os.getpid(), grace_s=LEFT_BEHIND_GRACE_S)
        code = command.wait()
        _reap()
        pump.join(GRACE_S)
    return code if code >= 0 else 128 - code


def _start(words: list[str]) -> subprocess.Popen[bytes]:
    me = os.getpid()

    def prepare() -> None:
        # Ignoring SIGINT would be inherited.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        die_with_parent(me)

    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        # Safe here: this process has one thread so far. It covers a SIGKILL of the supervisor for the command.
        preexec_fn=prepare,  # noqa: PLW1509
    )


def _report(line: dict[str, object]) -> None:
    with suppress(OSError):
        os.write(1, json.dumps(line).encode() + b"\n")


def _wait_for_end(selector: selectors.BaseSelector, signals: int, command: int) -> bool:
    """Sleep until the command has ended (True) or its owner has, or a signal says that it is to end (False)."""
    while True:
        if _reap(keep=command):
            return True
        ready = {key.data for key, _ in selector.select()}
        if "owner" in ready:
            return False
        if any(number != signal.SIGCHLD for number in os.read(signals, 64)):
            return False


def _reap(keep: int = 0) -> bool:
    """Take leave of the orphans that this process adopted; an init that never does would keep them as zombies.

    Args:
        keep: A child whose exit code is wanted.

    Returns:
        Whether `keep` has ended.
    """
    with suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == keep:
                return True
            os.waitpid(ended.si_pid, 0)
    return False


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
    parser.add_argument("--all-at-once", action="store_true")
    parser.add_argument("command", nargs="+")
    return parser.parse_args(arguments)


def _watch_owner(selector: selectors.BaseSelector, owner: int) -> bool:
    """Watch the pipe and the owner's process; False when it is gone already."""
    selector.register(0, selectors.EVENT_READ, "owner")
    try:
        selector.register(os.pidfd_open(owner), selectors.EVENT_READ, "owner")
    except ProcessLookupError:
        return False
    return True


def _watch_signals(selector: selectors.BaseSelector) -> int:
    """Have signals wake the selector. Returns where their numbers can be read."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writer)
    selector.register(reader, selectors.EVENT_READ, "signal")
    return reader


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
