"""One real rehearsal, with secrets planted, that several tests look at; and ways to start others."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from cookbook import evidence, smallmodel
from cookbook.evidence import Evidence

# Planted, not real.
TOKEN = "hf_" + "PlantedTokenForTheTest42"
KEY = "planted/key+for the test"


@dataclass(frozen=True)
class Done:
    """A finished run."""

    folder: Path
    evidence: Evidence
    output: str
    errors: str
    exit_code: int


@pytest.fixture(scope="session")
def small_model() -> Path:
    return smallmodel.prepare(on_step=print)


@pytest.fixture(scope="session")
def rehearsed(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """b300_tp8, run on the CPU with a token and a server key in the environment."""
    runs = tmp_path_factory.mktemp("runs")
    done = subprocess.run(
        [sys.executable, "-m", "cookbook", "run", "b300_tp8", "--on", "cpu", "--output", str(runs)],
        env={**os.environ, "HF_TOKEN": TOKEN, "VLLM_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    folder = evidence.latest(runs, "b300_tp8")
    assert folder, done.stdout + done.stderr
    return Done(folder, evidence.read(folder / "evidence.json"), done.stdout, done.stderr, done.returncode)
