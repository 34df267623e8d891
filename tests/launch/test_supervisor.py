"""The supervisor around real commands: exit codes, ends, and the log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cookbook.launch.supervisor import LONGEST_LINE, LineFilter
from cookbook.redact import Redactor

SUPERVISOR = ("-m", "cookbook.launch.supervisor")
# The same program with a short grace, for commands that do not listen.
IMPATIENT = (
    "-c",
    "import sys, cookbook.launch.supervisor as s; s.GRACE_S = s.LEFT_BEHIND_GRACE_S = 0.3;"
    "sys.exit(s.main(sys.argv[1:]))",
)


def supervise(
    log: Path,
    *command: str,
    program: tuple[str, ...] = SUPERVISOR,
    owner: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    words = [sys.executable, *program, "--owner", str(owner or os.getpid()), "--log", str(log), "--", *command]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, env={**os.environ, **(environ or {})}
    )


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", code)


def run(log: Path, *command: str, environ: Mapping[str, str] | None = None) -> tuple[int, str]:
    """The exit code, and what the supervisor says on stderr."""
    with supervise(log, *command, environ=environ) as supervisor:
        assert supervisor.stderr
        said = supervisor.stderr.read().decode()
    return supervisor.returncode, said


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import os; os.kill(os.getpid(), 11)", 139),
    ],
)
def test_it_ends_with_the_exit_code_of_the_command(code: str, expected: int, tmp_path: Path) -> None:
    assert run(tmp_path / "log", *python(code)) == (expected, "")


def test_a_command_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    with supervise(tmp_path / "log", "/no/such/command") as supervisor:
        assert supervisor.stdout
        assert json.loads(supervisor.stdout.readline()) == {"error": "/no/such/command: No such file or directory"}
    assert supervisor.returncode == 127


def test_nothing_is_started_for_an_owner_that_is_gone(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with supervise(tmp_path / "log", "true", owner=gone.pid) as supervisor:
        assert supervisor.stdout
        assert supervisor.stdout.read() == b""
    assert supervisor.returncode == 143


def test_the_command_gets_its_own_session_and_its_signals(tmp_path: Path) -> None:
    code = "import os, signal; print(os.getsid(0) == os.getpid(), signal.getsignal(signal.SIGINT).__name__)"
    assert run(tmp_path / "log", *python(code))[0] == 0
    assert (tmp_path / "log").read_text() == "True default_int_handler\n"


LEAVES_ONE = (
    "import subprocess, sys; p = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'],"
    "start_new_session=True, stdout=subprocess.DEVNULL); print(p.pid)"
)


def test_what_the_command_leaves_behind_is_ended(tmp_path: Path) -> None:
    assert run(tmp_path / "log", *python(LEAVES_ONE))[0] == 0
    assert not psutil.pid_exists(int((tmp_path / "log").read_text()))


def test_orphans_do_not_stay_as_zombies(tmp_path: Path) -> None:
    """A server may run for weeks, and each short-lived orphan would stay until its end."""
    orphan = "import subprocess; print(subprocess.Popen(['true']).pid)"
    code = f"""
import os, subprocess, sys, time
orphan = int(subprocess.run([sys.executable, "-S", "-c", {orphan!r}], stdout=subprocess.PIPE).stdout)
until = time.monotonic() + 10
while os.path.exists(f"/proc/{{orphan}}") and time.monotonic() < until:
    time.sleep(0.01)
sys.exit(os.path.exists(f"/proc/{{orphan}}"))
"""
    assert run(tmp_path / "log", *python(code))[0] == 0


@pytest.mark.parametrize("by", ["pipe", "signal"])
def test_a_command_that_ignores_sigterm_is_killed(by: str, tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    fifo = tmp_path / "log"
    os.mkfifo(fifo)
    with supervise(fifo, *python(code), program=IMPATIENT) as supervisor, fifo.open("rb") as log:
        assert log.readline() == b"up\n"
        if by == "signal":
            supervisor.send_signal(signal.SIGTERM)
        else:
            assert supervisor.stdin
            supervisor.stdin.close()
        assert supervisor.wait(10) == 137


# The log

MORE_THAN_A_PIPE_HOLDS = "[print('x' * 79) for _ in range(10_000)]"


def test_stdout_and_stderr_are_merged_in_order(tmp_path: Path) -> None:
    code = "import os; [os.write(1 + n % 2, b'%d\\n' % n) for n in range(1000)]"
    run(tmp_path / "log", *python(code))
    assert (tmp_path / "log").read_text().split() == [str(number) for number in range(1000)]


def test_the_log_is_appended_to(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    run(tmp_path / "log", "echo", "after")
    assert (tmp_path / "log").read_text() == "before\nafter\n"


def test_a_full_disk_stops_the_log_and_not_the_command(tmp_path: Path) -> None:
    code, said = run(Path("/dev/full"), *python(MORE_THAN_A_PIPE_HOLDS))
    assert code == 0
    assert said == "/dev/full cannot be written (No space left on device): the log has a gap here.\n"


def test_a_log_that_cannot_be_opened_stops_nothing(tmp_path: Path) -> None:
    code, said = run(tmp_path, *python(MORE_THAN_A_PIPE_HOLDS))
    assert code == 0
    assert said.count("Is a directory") == 1


def test_binary_garbage_is_kept(tmp_path: Path) -> None:
    garbage = bytes(range(256)) * 40
    run(tmp_path / "log", *python(f"import os; os.write(1, {garbage!r})"))
    assert (tmp_path / "log").read_bytes() == garbage


def test_a_line_without_an_end_is_kept_whole(tmp_path: Path) -> None:
    run(tmp_path / "log", *python("import sys; [sys.stdout.write('ab' * 500) for _ in range(300)]"))
    assert (tmp_path / "log").read_text() == "ab" * 150_000


def test_a_secret_in_two_writes_is_taken_out(tmp_path: Path) -> None:
    code = (
        "import os, time; os.write(1, b'token: sec'); time.sleep(0.05); os.write(1, b'ret-value end\\r50%\\rdone\\n')"
    )
    run(tmp_path / "log", *python(code), environ={"HF_TOKEN": "secret-value"})
    assert (tmp_path / "log").read_bytes() == b"token: [redacted:HF_TOKEN] end\r50%\rdone\n"


def filtered(pieces: list[bytes], secret: str) -> bytes:
    lines = LineFilter(Redactor([("KEY", secret)]))
    return b"".join([*map(lines.feed, pieces), lines.flush()])


@given(cuts=st.lists(st.integers(0, 60), max_size=6))
def test_a_secret_is_found_wherever_the_output_is_cut(cuts: list[int]) -> None:
    text = b"a line\rwith s3cr3t-value in it\nand s3cr3t-value\r\nend"
    at = [0, *sorted(cuts), len(text)]
    pieces = [text[begin:end] for begin, end in pairwise(at)]
    assert filtered(pieces, "s3cr3t-value") == text.replace(b"s3cr3t-value", b"[redacted:KEY]")


@pytest.mark.parametrize("before", [LONGEST_LINE - n for n in (1100, 1024, 1018, 6, 0)])
def test_a_secret_is_found_where_an_endless_line_is_cut(before: int) -> None:
    text = b"a" * before + b"s3cr3t-value" + b"b" * 20_000
    pieces = [text[begin : begin + 4096] for begin in range(0, len(text), 4096)]
    assert filtered(pieces, "s3cr3t-value") == text.replace(b"s3cr3t-value", b"[redacted:KEY]")


def test_the_supervisor_is_small(tmp_path: Path) -> None:
    with supervise(tmp_path / "log", "sleep", "600") as supervisor:
        assert supervisor.stdout
        supervisor.stdout.readline()
        assert psutil.Process(supervisor.pid).memory_info().rss < 30 * 2**20
