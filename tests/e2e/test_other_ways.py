"""The same notebook in other ways: by papermill alone (as in JupyterLab), and against a server that already runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import papermill
import psutil
import pytest

from cookbook import begin, evidence
from cookbook.catalog import load
from cookbook.launch.local import launch
from cookbook.notebook import RECIPES
from tests.roadrunner import write

pytestmark = pytest.mark.e2e
MODEL = "moonshotai/Kimi-K3.1-Pro"


def cookbook(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cookbook", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.filterwarnings("ignore")  # papermill's own, here in this process
def test_papermill_alone_leaves_evidence_too(small_model: Path, tmp_path: Path) -> None:
    """Nobody stands around the notebook, as in JupyterLab: it makes its own folder in the working directory."""
    source = tmp_path / "b300_tp8.ipynb"
    nbformat.write(jupytext.read(RECIPES / "b300_tp8.py"), source)
    papermill.execute_notebook(
        source, tmp_path / "out.ipynb", {"rehearse": True}, cwd=tmp_path, kernel_name="python3", progress_bar=False
    )
    folder = evidence.latest(tmp_path / "runs", "b300_tp8")
    assert folder
    found = evidence.read(folder / "evidence.json")
    assert (found.status, found.mode, found.notebook) == ("passed", "rehearsal", None)


def test_recipes_that_differ_in_nothing_here_use_one_server_and_say_so(small_model: Path, tmp_path: Path) -> None:
    recipes = ("b300_dcp8", "b300_dcp8_low_latency")
    done = cookbook("run", *recipes, "--on", "cpu", "--output", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Ready") == done.stdout.count("Process started") == 1
    for recipe in recipes:
        folder = evidence.latest(tmp_path, recipe)
        assert folder
        found = evidence.read(folder / "evidence.json")
        assert found.status == "passed"
        shared = next(change for change in found.substitutions if change.what == "server")
        assert shared.replacement == "one for the pages of b300_dcp8, b300_dcp8_low_latency"
        assert {path.name for path in (folder / "logs").iterdir()} == {"papermill.log", "engine-0.log"}
        assert not (folder / "loan.json").exists()
    assert not [process for process in psutil.Process().children(recursive=True) if process.is_running()]


def test_hardware_of_a_folder_of_its_own_is_rehearsed(small_model: Path, tmp_path: Path) -> None:
    """The command, papermill's process and the kernel all read the catalog with that folder laid over it."""
    folder = tmp_path / "own"
    folder.mkdir()
    runs = tmp_path / "runs"
    options = ("--catalog", str(write(folder)), "--on", "cpu", "--output", str(runs))
    done = cookbook("run", "roadrunner_tp8", *options)
    assert done.returncode == 0, done.stderr
    newest = evidence.latest(runs, "roadrunner_tp8")
    assert newest
    found = evidence.read(newest / "evidence.json")
    assert (found.status, found.hardware) == ("passed", "roadrunner")
    assert any(change.what == "ACME_TURBO" for change in found.substitutions)


def test_a_server_that_already_runs_is_used_and_left_alone(small_model: Path, tmp_path: Path) -> None:
    plan = begin.plan(load(), "b300_tp8", begin.Parameters(model=MODEL, rehearse=True), on_step=print)
    with launch(
        plan.deployment.processes[0],
        log=tmp_path / "server.log",
        served_model_name=plan.deployment.served_model_name,
        ready_timeout_s=300,
        on_phase=lambda _: None,
    ) as server:
        parameters = ("--parameters", f"base_url={server.base_url}/v1", "--parameters")
        done = cookbook(
            *("run", "b300_tp8", "--output", str(tmp_path / "runs"), *parameters),
            f"model={plan.deployment.served_model_name}",
        )
        assert server.alive()
        other = cookbook("run", "b300_tp8", "--output", str(tmp_path / "runs"), *parameters[:-1])
    found = evidence.read(evidence_of(tmp_path, 0))
    assert found.mode == "attached"
    assert found.commands == ()
    assert found.versions["vllm"] == "0.32.0"
    verdicts = {check.name: check.verdict for check in found.checks}
    left_out = {name for name, verdict in verdicts.items() if verdict == "left_out"}
    # Nothing is known of its log, its parser or its tokenizer.
    assert {"kv_cache_tokens", "reasoning_low", "effort_refused", "load"} <= left_out
    assert {verdict for name, verdict in verdicts.items() if name not in left_out} == {"pass"}
    assert (done.returncode, found.status) == (0, "passed"), done.stderr
    # Asked for the model of the recipe, the same server is the wrong one.
    assert other.returncode == 2
    assert evidence.read(evidence_of(tmp_path, 1)).exit_code == 2
    assert f"does not serve {MODEL}; it serves SmolLM2-135M-Instruct" in other.stderr


def evidence_of(folder: Path, index: int) -> Path:
    return sorted((folder / "runs" / "b300_tp8").glob("*/evidence.json"))[index]


def test_a_server_that_dies_while_it_loads(small_model: Path, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.json")
    done = cookbook(
        *("run", "b300_tp8", "--on", "cpu", "--output", str(tmp_path / "runs")), VLLM_LOGGING_CONFIG_PATH=missing
    )
    found = evidence.read(evidence_of(tmp_path, 0))
    assert (done.returncode, found.status, found.exit_code) == (3, "server_failed", 3)
    assert "The server died" in done.stderr
    assert "missing.json" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_server_at_the_address(tmp_path: Path) -> None:
    done = cookbook(
        *("run", "b300_tp8", "--output", str(tmp_path / "runs"), "--parameters", "base_url=http://127.0.0.1:9")
    )
    assert done.returncode == 3
    assert "No vLLM server answers at http://127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr
