"""What a run's end means: neither papermill's exit code nor its metadata is believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cookbook.errors import ChecksFailed, InputError, ServerError, TimeLimitError
from cookbook.evidence import NotebookRecord, RunRecord
from cookbook.execute import look_at, verdict
from tests.test_evidence import an_evidence


def code(source: str, count: int | None, *outputs: dict[str, Any]) -> dict[str, Any]:
    return {"cell_type": "code", "source": source, "execution_count": count, "outputs": list(outputs), "metadata": {}}


def error(name: str, message: str) -> dict[str, Any]:
    return {"output_type": "error", "ename": name, "evalue": message, "traceback": []}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.py"
    path.write_text("# %%\nx = 1\n")
    return path


def executed(folder: Path, *cells: dict[str, Any], **metadata: Any) -> Path:
    path = folder / "notebook.ipynb"
    path.write_text(json.dumps({"cells": list(cells), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}))
    return path


def record(**changes: object) -> RunRecord:
    fields = an_evidence(**changes).model_dump(include=set(RunRecord.model_fields))
    return RunRecord.model_validate(fields)


def note(**changes: object) -> NotebookRecord:
    fields: dict[str, object] = {
        "file": "n",
        "sha256": "0",
        "source_sha256": "0",
        "code_cells": 2,
        "executed_cells": 2,
    }
    return NotebookRecord.model_validate(fields | changes)


def test_cells_are_counted_by_their_execution_counts(tmp_path: Path, recipe: Path) -> None:
    """papermill marks cells that never ran as completed when a kernel dies."""
    path = executed(
        tmp_path,
        {"cell_type": "markdown", "source": "# Title", "metadata": {}},
        code("x = 1", 1),
        code("x = 2", None),
        code("", None),
        papermill={"exception": None},
    )
    found = look_at(path, recipe)
    assert found
    assert (found.code_cells, found.executed_cells, found.error) == (2, 1, "")
    failure = verdict(found, record())
    assert isinstance(failure, ChecksFailed)
    assert "Only 1 of 2 cells" in str(failure)


def test_no_notebook_is_a_failure(tmp_path: Path, recipe: Path) -> None:
    assert look_at(tmp_path / "none.ipynb", recipe) is None
    assert isinstance(verdict(None, record()), ChecksFailed)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ServerError", ServerError),
        ("TimeLimitError", TimeLimitError),
        ("InputError", InputError),
        ("ChecksFailed", ChecksFailed),
        ("ZeroDivisionError", ChecksFailed),
        ("CookbookError", ChecksFailed),
    ],
)
def test_an_error_output_decides_and_keeps_its_exit_code(tmp_path: Path, recipe: Path, name: str, kind: type) -> None:
    path = executed(tmp_path, code("x", 1, error(name, "It broke.")))
    failure = verdict(look_at(path, recipe), record())
    assert type(failure) is kind
    assert "It broke." in str(failure)


def test_a_check_that_fell_short_decides() -> None:
    failing = an_evidence().checks[0].model_copy(update={"verdict": "fail"})
    failure = verdict(note(), record(checks=(failing,)))
    assert isinstance(failure, ChecksFailed)
    assert "A" in str(failure)


def test_a_run_without_checks_does_not_pass() -> None:
    assert isinstance(verdict(note(), record(checks=())), ChecksFailed)
    left_out = an_evidence().checks[0].model_copy(update={"verdict": "left_out"})
    assert isinstance(verdict(note(), record(checks=(left_out,))), ChecksFailed)


def test_a_server_that_died_under_the_notebook_is_a_server_error(tmp_path: Path, recipe: Path) -> None:
    path = executed(tmp_path, code("x", 1, error("APIConnectionError", "Connection error.")))
    failure = verdict(look_at(path, recipe), record(server_error="The server died (Worker): out of memory."))
    assert isinstance(failure, ServerError)
    assert "out of memory" in str(failure)


def test_all_is_well_when_all_cells_ran_and_all_checks_hold() -> None:
    assert verdict(note(), record()) is None
