"""A baseline is a run that passed in the same circumstances, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cookbook import evidence
from cookbook.baseline import baseline, names, no_baseline, number, value
from cookbook.evidence import CheckResult, Evidence
from tests.test_evidence import an_evidence

HARDWARE: dict[str, Any] = {
    "mode": "hardware",
    "image": "vllm/vllm-openai:v0.32.0",
    "image_digest": "sha256:aa",
    "versions": {"vllm": "0.32.0"},
    "model": "moonshotai/Kimi-K3.1-Pro",
    "parameters": {"revision": "abc"},
}


def a_run(day: int = 1, **changes: Any) -> Evidence:
    return an_evidence(**{"run_id": f"202612{day:02}T050000Z-abcd", **HARDWARE, **changes})


def keep(runs: Path, run: Evidence) -> None:
    folder = runs / run.recipe / run.run_id
    folder.mkdir(parents=True)
    evidence.write(folder / "evidence.json", run)


LIKE = a_run(9, recipe="b300_dcp8")


def test_the_newest_that_passed_is_taken(tmp_path: Path) -> None:
    for run in (a_run(1), a_run(2), a_run(3, status="failed", exit_code=1)):
        keep(tmp_path, run)
    found = baseline(tmp_path, "b300_tp8", LIKE)
    assert found
    assert names(found) == "run 20261202T050000Z-abcd of 2026-12-01"


@pytest.mark.parametrize(
    "change",
    [
        {"status": "failed"},
        {"mode": "rehearsal"},
        {"mode": "attached"},
        {"hardware": "gb300"},
        {"image": "vllm/vllm-openai:v0.33.0"},
        {"image": None},
        {"image_digest": "sha256:bb"},
        {"image_digest": None},
        {"versions": {"vllm": "0.33.0"}},
        {"versions": {}},
        {"model": "another"},
        {"parameters": {"revision": "def"}},
        {"parameters": {}},
        {"recipe": "b300_tep"},
    ],
)
def test_another_run_is_no_baseline(tmp_path: Path, change: dict[str, Any]) -> None:
    keep(tmp_path, a_run(2, **change))
    assert baseline(tmp_path, "b300_tp8", LIKE) is None
    keep(tmp_path, a_run(1))
    assert baseline(tmp_path, "b300_tp8", LIKE)


def test_what_does_not_matter_may_differ(tmp_path: Path) -> None:
    keep(tmp_path, a_run(1, versions={"vllm": "0.32.0", "papermill": "3"}, parameters={"revision": "abc", "port": 1}))
    assert baseline(tmp_path, "b300_tp8", LIKE)


def test_evidence_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    keep(tmp_path, a_run(1))
    folder = tmp_path / "b300_tp8" / "20261205T050000Z-abcd"
    folder.mkdir()
    (folder / "evidence.json").write_text('{"schema_version": 2}')
    assert baseline(tmp_path, "b300_tp8", LIKE) == a_run(1)


def test_no_runs_at_all(tmp_path: Path) -> None:
    assert baseline(tmp_path / "missing", "b300_tp8", LIKE) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("18,500,000", 18_500_000),
        ("139776", 139_776),
        ("96.21 (1269 of 1319)", 96.21),
        ("-3", -3),
        ("HTTP 200 after 25.0", 25),
        ("HTTP 200", None),
        ("no such line in the log", None),
        ("model-7", None),
        ("", None),
    ],
)
def test_a_measurement_begins_with_its_number(text: str, expected: float | None) -> None:
    assert number(text) == expected


def test_the_value_of_a_check() -> None:
    def check(name: str, measured: str) -> CheckResult:
        return CheckResult(name=name, title="", expected="", measured=measured, verdict="pass", source="")

    run = a_run(checks=(check("a", "1.5"), check("b", "none")))
    assert [value(run, name) for name in ("a", "b", "c")] == [1.5, None, None]


def test_without_a_baseline_a_check_is_left_out_and_says_how_to_make_one() -> None:
    check = no_baseline("dcp_decode_step", "Decode step", "at most 1.25", "b300_tp8")
    assert check.verdict == "left_out"
    assert check.detail.startswith("no baseline: ")
    assert "cookbook run b300_tp8" in check.detail
