"""The status of a recipe follows from its evidence, and nothing is green by default."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cookbook.evidence import Evidence, NotebookRecord
from cookbook.status import MAX_AGE, status
from tests.test_evidence import an_evidence

NOW = datetime(2026, 12, 2, tzinfo=UTC)


def a_passed_run(recipe: Path, **changes: object) -> Evidence:
    digest = hashlib.sha256(recipe.read_bytes()).hexdigest()
    note = NotebookRecord(file="notebook.ipynb", sha256="0", source_sha256=digest, code_cells=1, executed_cells=1)
    return an_evidence(notebook=note, **changes)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "b300_tp8.py"
    path.write_text("# %%\n")
    return path


def test_without_evidence_it_was_not_run(recipe: Path) -> None:
    assert status(None, recipe, NOW).state == "not_run"


@pytest.mark.parametrize(
    ("mode", "state", "words"),
    [
        ("hardware", "executed", "executed on NVIDIA B300, 2026-12-01, vLLM 0.32.0+cpu"),
        ("rehearsal", "rehearsed", "rehearsed on a CPU, 2026-12-01, vLLM 0.32.0+cpu"),
        ("attached", "attached", "executed on a running server"),
    ],
)
def test_where_it_ran_is_said(recipe: Path, mode: str, state: str, words: str) -> None:
    found = status(a_passed_run(recipe, mode=mode), recipe, NOW)
    assert found.state == state
    assert words in found.text


@pytest.mark.parametrize("outcome", ["failed", "server_failed", "timed_out", "interrupted", "error"])
def test_a_run_that_did_not_pass_is_failed(recipe: Path, outcome: str) -> None:
    found = status(an_evidence(mode="hardware", status=outcome), recipe, NOW)
    assert found.state == "failed"
    assert outcome.replace("_", " ") in found.text


def test_it_is_stale_when_the_recipe_changed(recipe: Path) -> None:
    found = a_passed_run(recipe)
    assert status(found, recipe, NOW).state == "rehearsed"
    recipe.write_text("# %%\nx = 1\n")
    assert status(found, recipe, NOW).state == "stale"


def test_a_run_on_the_hardware_without_its_notebook_is_not_green(recipe: Path) -> None:
    found = status(an_evidence(mode="hardware"), recipe, NOW)
    assert found.state == "not_run"
    assert "left no executed notebook" in found.text


def test_it_is_stale_when_it_is_old(recipe: Path) -> None:
    later = NOW + MAX_AGE + timedelta(days=1)
    assert status(a_passed_run(recipe, mode="hardware"), recipe, later).state == "stale"
