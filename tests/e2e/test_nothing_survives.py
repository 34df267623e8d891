"""Whatever ends a run, no process of it is left, and notebook and evidence are on disk. With the real vLLM."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from cookbook import evidence
from cookbook.notebook import RECIPES

pytestmark = pytest.mark.e2e

# `cookbook`, with the recipes of another folder.
WITH_RECIPES = (
    "import sys, pathlib, cookbook.notebook as n; "
    "n.RECIPES = pathlib.Path(sys.argv.pop(1)); import cookbook.cli; cookbook.cli.main()"
)


class Running:
    """A `cookbook run` that goes on."""

    def __init__(self, runs: Path, recipes: Path, *options: str) -> None:
        self.runs = runs
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-c", WITH_RECIPES, str(recipes)),
                *("run", "b300_tp8", "--on", "cpu", "--output", str(runs), *options),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.output: list[str] = []

    def wait_for(self, words: str) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.output.append(line)
            if words in line:
                return
        pytest.fail(f"it ended before '{words}': {''.join(self.output)}")

    def everything(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def find(self, *words: str) -> psutil.Process:
        """The one process with these words in its command, each as a word of its own or as the end of one."""
        found = [p for p in self.everything() if all(any(w.endswith(x) for w in p.cmdline()[:4]) for x in words)]
        return found[0]

    def end(self) -> int:
        assert self.process.stdout
        self.output += self.process.stdout.readlines()
        return self.process.wait(60)


@pytest.fixture
def start(small_model: Path, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(*options: str, recipes: Path = RECIPES) -> Running:
        started.append(Running(tmp_path / "runs", recipes, *options))
        return started[-1]

    yield start
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
        assert running.process.stdout
        running.process.stdout.close()
        running.process.wait()


def gone(processes: list[psutil.Process]) -> None:
    """Every one of them ends. Zombies count as gone: they wait for an init."""
    _, alive = psutil.wait_procs(processes, timeout=40)
    left = [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not left


def on_disk(running: Running, status: str, exit_code: int) -> None:
    folder = evidence.latest(running.runs, "b300_tp8")
    assert folder, "".join(running.output)
    found = evidence.read(folder / "evidence.json")
    assert (found.status, found.exit_code) == (status, exit_code), found.error
    assert found.error
    assert (folder / "notebook.ipynb").exists()
    assert found.notebook


def running_server(start: Callable[..., Running], *options: str) -> tuple[Running, list[psutil.Process]]:
    """A run whose server has all its processes; it need not be ready yet to be left behind."""
    running = start(*options)
    running.wait_for("server: KV cache allocated")
    processes = running.everything()
    names = [p.name() for p in processes] + [" ".join(p.cmdline()) for p in processes]
    assert sum("VLLM::" in name for name in names), names
    return running, processes


@pytest.mark.parametrize(
    ("signum", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_to_the_command(start: Callable[..., Running], signum: int, exit_code: int) -> None:
    running, processes = running_server(start)
    running.process.send_signal(signum)
    assert running.end() == exit_code
    gone(processes)
    on_disk(running, "interrupted", exit_code)


def test_sigterm_while_the_server_loads(start: Callable[..., Running]) -> None:
    running = start()
    running.wait_for("server: Loading weights")
    processes = running.everything()
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 143
    gone(processes)
    on_disk(running, "interrupted", 143)


@pytest.mark.parametrize(
    ("module", "signum"),
    [
        ("cookbook.notebook_process", signal.SIGINT),
        ("cookbook.notebook_process", signal.SIGTERM),
        ("cookbook.notebook_process", signal.SIGKILL),
        ("ipykernel_launcher", signal.SIGKILL),
    ],
    ids=["SIGINT to papermill", "SIGTERM to papermill", "SIGKILL of papermill", "SIGKILL of the kernel"],
)
def test_a_signal_to_a_part(start: Callable[..., Running], module: str, signum: int) -> None:
    running, processes = running_server(start)
    running.find("-m", module).send_signal(signum)
    assert running.end() == 1
    gone(processes)
    on_disk(running, "error", 1)


def test_sigkill_of_the_command(start: Callable[..., Running]) -> None:
    """Nobody is left to write evidence; the notebook is there as far as it came."""
    running, processes = running_server(start)
    running.process.kill()
    running.end()
    gone(processes)
    assert list(running.runs.glob("b300_tp8/*/notebook.ipynb"))


def test_sigkill_of_the_supervisor_of_papermill(start: Callable[..., Running]) -> None:
    running, processes = running_server(start)
    outer = next(p for p in processes if p.ppid() == running.process.pid)
    outer.kill()
    assert running.end() == 1
    gone(processes)
    on_disk(running, "error", 1)


def test_sigkill_of_the_supervisor_of_the_server(start: Callable[..., Running]) -> None:
    running, processes = running_server(start)
    kernel = running.find("-m", "ipykernel_launcher")
    inner = next(p for p in kernel.children() if "cookbook.launch.supervisor" in p.cmdline())
    running.wait_for("server: Ready")
    inner.kill()
    assert running.end() == 3
    gone(processes)
    on_disk(running, "server_failed", 3)


def test_sigkill_of_the_server(start: Callable[..., Running]) -> None:
    running, processes = running_server(start)
    server = next(p for p in processes if "serve" in p.cmdline()[2:4])
    running.wait_for("server: Ready")
    server.kill()
    assert running.end() == 3
    gone(processes)
    on_disk(running, "server_failed", 3)
    assert "The server died" in " ".join("".join(running.output).split())


def test_a_time_limit(start: Callable[..., Running]) -> None:
    running = start("--time-limit", "16")
    running.wait_for("cell 10 of")
    running.wait_for("server: ")
    processes = running.everything()
    assert running.end() == 4
    gone(processes)
    on_disk(running, "timed_out", 4)


def test_a_server_that_is_not_ready_in_time(start: Callable[..., Running]) -> None:
    running = start("--parameters", "ready_timeout_s=8")
    running.wait_for("cell 10 of")
    assert running.end() == 4
    gone(psutil.Process().children(recursive=True))
    on_disk(running, "timed_out", 4)


def altered(tmp_path: Path, old: str, new: str) -> Path:
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    text = (RECIPES / "b300_tp8.py").read_text()
    assert old in text
    (recipes / "b300_tp8.py").write_text(text.replace(old, new, 1))
    return recipes


FIRST_REQUEST = "run.curl()"
FALLS_SHORT = """from cookbook import checks

run.check(checks.answered("It is Rome.", contains="Paris", finish_reason="stop"))"""


@pytest.mark.parametrize(
    ("old", "new", "status", "words"),
    [
        (FIRST_REQUEST, "print(1 / 0)", "error", "ZeroDivisionError"),
        # papermill ends with 0 after this, and the rest never ran.
        (FIRST_REQUEST, "import sys\n\nsys.exit(0)", "error", "SystemExit: 0"),
        ("run.check_server()", FALLS_SHORT, "failed", "fell short: Question answered"),
    ],
    ids=["a cell that fails", "a cell that ends the kernel politely", "a check that falls short"],
)
def test_a_notebook_that_fails(
    start: Callable[..., Running], tmp_path: Path, old: str, new: str, status: str, words: str
) -> None:
    running = start(recipes=altered(tmp_path, old, new))
    running.wait_for("server: Ready")
    processes = running.everything()
    assert running.end() == 1
    gone(processes)
    on_disk(running, status, 1)
    assert words in " ".join("".join(running.output).split())


def test_a_disk_that_fills(
    start: Callable[..., Running], tmp_path: Path, tiny_disk: Callable[[Path, str], None]
) -> None:
    tiny_disk(tmp_path / "runs", "96k")
    running = start()
    running.wait_for("cell 10 of")
    processes = running.everything()
    assert running.end() == 2
    gone(processes)
    output = " ".join("".join(running.output).split())
    assert "the disk is full" in output or "No space left on device" in output
    assert "Traceback" not in output
    assert not list(running.runs.rglob("*.tmp"))


def test_a_port_in_use(start: Callable[..., Running]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        running = start("--parameters", f"port={taken.getsockname()[1]}")
        assert running.end() == 2
    assert "Address already in use" in "".join(running.output)
    assert not running.runs.exists()
