"""`cookbook run --on slurm` on a real Slurm of two nodes, with the real vLLM."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cookbook import evidence
from cookbook.evidence import Evidence
from tests.e2e import cluster
from tests.e2e.cluster import Slurm, until

MISSING = [program for program in cluster.PROGRAMS if not shutil.which(program)]
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)} here: apt-get install slurm-wlm munge"),
]

TWO_NODES = "ppu_810e_tp32"
# `cookbook`, with the recipes of another folder.
WITH_RECIPES = (
    "import sys, pathlib, cookbook.notebook as n; "
    "n.RECIPES = pathlib.Path(sys.argv.pop(1)); import cookbook.cli; cookbook.cli.main()"
)
SHORT = """\
# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% tags=["parameters"]
model: str = "moonshotai/Kimi-K3.1-Pro"  # hub name or folder to load; with base_url, the name that is served
rehearse: bool = False  # cut the recipe down to this machine's CPU

# %%
from cookbook import experiments
from cookbook.session import open_run

run = open_run("{recipe}", globals())
base_url = run.start()
run.check_server()
{body}

# %%
run.stop()
run.finish()
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    # Slurm does not take a folder that others may write to.
    folder = tmp_path_factory.mktemp("slurm")
    with cluster.slurm(folder) as running:
        yield running


class Submitted:
    """A `cookbook run --on slurm` that goes on."""

    def __init__(self, slurm: Slurm, folder: Path, recipe: str, *options: str, body: str = "") -> None:
        self.slurm, self.recipe, self.runs = slurm, recipe, folder / "runs"
        recipes = folder / "recipes"
        recipes.mkdir()
        (recipes / f"{recipe}.py").write_text(SHORT.format(recipe=recipe, body=body))
        words = ["run", recipe, "--on", "slurm", "--parameters", "rehearse=true", "--output", str(self.runs), *options]
        self._output = folder / "output"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", WITH_RECIPES, str(recipes), *words],
                env={**slurm.environ, "PYTHONUNBUFFERED": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def output(self) -> str:
        """What it printed so far."""
        return self._output.read_text()

    def wait_for(self, words: str) -> None:
        """Wait until it has printed that."""
        until(lambda: words in self.output or self.process.poll() is not None, f"it prints '{words}'", 200)
        assert words in self.output, self.output

    def end(self, limit_s: float = 400) -> tuple[int, Evidence]:
        """Its exit code and evidence; by then no job is left, and no process."""
        code = self.process.wait(limit_s)
        assert self.slurm.queue() == []
        left = [p.cmdline() for p in psutil.process_iter() if any("vllm" in word.lower() for word in words_of(p))]
        assert left == []
        assert "Traceback" not in self.output, self.output
        folder = evidence.latest(self.runs, self.recipe)
        assert folder, self.output
        return code, evidence.read(folder / "evidence.json")


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline() if process.status() != psutil.STATUS_ZOMBIE else []
    except psutil.Error:
        return []


def paragraph(output: str) -> str:
    """The error that was printed, on one line."""
    return " ".join(output.rpartition("cookbook: ")[2].split())


@pytest.fixture
def small(small_model: Path, tmp_path: Path) -> Path:
    return tmp_path


def test_two_nodes_tensor_parallel(slurm: Slurm, small: Path) -> None:
    run = Submitted(slurm, small, TWO_NODES, body='run.examples("chat")\nexperiments.answers(run)')
    code, found = run.end()
    assert code == 0, run.output
    assert found.status == "passed"
    assert {command.name: command.node for command in found.commands} == {"engine-0": 0, "engine-1": 1}
    assert found.environment["SLURM_JOB_ID"]
    folder = evidence.latest(run.runs, TWO_NODES)
    assert folder
    for name in ("engine-0", "engine-1", "job", "papermill"):
        assert (folder / "logs" / f"{name}.log").exists()
    assert "engine-0: on n0" in (folder / "logs" / "job.log").read_text()
    assert "engine-1: on n1" in (folder / "logs" / "job.log").read_text()
    for words in ("is submitted: 2 nodes", "runs on n[0-1]", "HEAD_IP is 127.0.0.1", "engine-0: Ready", "is cancelled"):
        assert words in run.output
    # Start-up and log lines of every role.
    assert "engine-1: (" in run.output


def test_prefill_on_one_node_and_decode_on_the_other(slurm: Slurm, small: Path) -> None:
    body = "found = experiments.prefill_then_decode(run)\nexperiments.same_as_alone(run, found)"
    run = Submitted(slurm, small, "gb300_pd", body=body + "\nexperiments.without_prefill(run)")
    code, found = run.end()
    assert code == 0, run.output
    verdicts = {check.name: check.verdict for check in found.checks}
    assert {verdicts[name] for name in ("nixl", "prefill_then_decode", "same_tokens")} == {"pass"}
    assert verdicts["without_prefill"] == "left_out"
    assert {command.role: command.node for command in found.commands} == {"prefill": 0, "decode": 1, "router": 0}


def test_a_job_that_waits_too_long_as_the_nodes_are_drained(slurm: Slurm, small: Path) -> None:
    slurm.run("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=maintenance")
    try:
        run = Submitted(slurm, small, TWO_NODES, "--queue-limit", "5")
        code, found = run.end()
    finally:
        slurm.run("scontrol", "update", "NodeName=n1", "State=RESUME")
    assert (code, found.status) == (4, "timed_out")
    assert "was still in the queue after 5 s" in paragraph(run.output)
    assert "--queue-limit" in paragraph(run.output)


def test_a_job_that_is_cancelled_from_outside(slurm: Slurm, small: Path) -> None:
    run = Submitted(slurm, small, TWO_NODES)
    run.wait_for("engine-0: Engine is initialising")
    slurm.run("scancel", *slurm.queue())
    code, found = run.end()
    assert (code, found.status) == (3, "server_failed"), run.output
    assert "was cancelled from outside" in paragraph(run.output)
    assert found.notebook


def test_ctrl_c(slurm: Slurm, small: Path) -> None:
    run = Submitted(slurm, small, TWO_NODES)
    run.wait_for("engine-0: Engine is initialising")
    run.process.send_signal(signal.SIGINT)
    code, found = run.end()
    assert (code, found.status) == (130, "interrupted")
    assert found.notebook


def test_a_server_that_dies(slurm: Slurm, small: Path) -> None:
    run = Submitted(slurm, small, TWO_NODES)
    run.wait_for("engine-0: Engine is initialising")
    victim = next(p for p in psutil.process_iter() if "--headless" in words_of(p) and "serve" in words_of(p)[:4])
    victim.kill()
    code, found = run.end()
    assert (code, found.status) == (3, "server_failed"), run.output
    assert "engine-1 of Slurm job" in paragraph(run.output)
    assert "ended by signal 9" in paragraph(run.output)


def test_a_node_that_goes_down(slurm: Slurm, small: Path) -> None:
    run = Submitted(slurm, small, TWO_NODES)
    run.wait_for("engine-0: Engine is initialising")
    slurm.kill_node("n1")
    code, found = run.end()
    slurm.start_node("n1")
    until(lambda: set(slurm.states().values()) == {"idle"}, "both nodes are idle")
    assert (code, found.status) == (3, "server_failed"), run.output
    assert "lost a node: one of n[0-1] went down" in paragraph(run.output)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--partition", "nowhere"), "Slurm refuses the job: invalid partition specified: nowhere"),
        (("--sbatch", "no-such=1"), "Slurm refuses the job: "),
    ],
)
def test_a_job_that_slurm_refuses(slurm: Slurm, small: Path, options: tuple[str, ...], words: str) -> None:
    run = Submitted(slurm, small, TWO_NODES, *options)
    code, found = run.end()
    assert (code, found.exit_code) == (2, 2)
    assert words in paragraph(run.output)
    assert "--partition" in paragraph(run.output)


def test_no_slurm_here(small: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cookbook", "run", TWO_NODES, "--on", "slurm", "--parameters", "rehearse=true"],
        env={**os.environ, "PATH": "/nonexistent"},
        cwd=small,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 2
    assert "There is no sbatch command here" in done.stderr
