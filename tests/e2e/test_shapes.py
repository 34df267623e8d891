"""One recipe of each shape, rehearsed for real: two nodes, two groups, and prefill, decode and router with offload."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cookbook import evidence

pytestmark = pytest.mark.e2e

# What the feature is for, as far as a CPU can show it.
SHAPES = {
    "gb300_nvfp4_kv": {"bytes_per_token", "nvfp4_kv_tokens", "needles", "accuracy_path"},
    "ppu_m890_dep32": {"layout", "load", "accuracy_path"},
    "gb300_pd_kv_offload": {
        *("nixl", "prefill_then_decode", "same_tokens", "kv_returned", "returning_faster", "second_tier"),
    },
}


@pytest.mark.parametrize("recipe", SHAPES)
def test_a_recipe_of_each_shape(recipe: str, small_model: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cookbook", "run", recipe, "--on", "cpu", "--output", str(tmp_path)],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    folder = evidence.latest(tmp_path, recipe)
    assert folder
    found = evidence.read(folder / "evidence.json")
    verdicts = {check.name: check.verdict for check in found.checks}
    assert {name for name in SHAPES[recipe] if verdicts.get(name) != "pass"} == set()
    # Every process has its log, and the second tier has gone with its servers.
    assert {command.name.split()[0] for command in found.commands} <= {log.stem for log in folder.rglob("*.log")}
    assert not (folder / "second-tier").exists()
    assert not [process for process in psutil.Process().children(recursive=True) if process.is_running()]
