"""Evidence is written whole or not at all, and read strictly."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cookbook import evidence
from cookbook.errors import InputError
from cookbook.evidence import CheckResult, Evidence, Machine


def an_evidence(**changes: object) -> Evidence:
    fields: dict[str, object] = {
        "run_id": "20261201T050000Z-abcd",
        "recipe": "b300_tp8",
        "title": "B300: tensor parallel 8",
        "mode": "rehearsal",
        "status": "passed",
        "exit_code": 0,
        "started_at": datetime(2026, 12, 1, 5, tzinfo=UTC),
        "ended_at": datetime(2026, 12, 1, 6, tzinfo=UTC),
        "hardware": "b300",
        "hardware_title": "NVIDIA B300",
        "machine": Machine(system="Linux", processor="CPU", cores=2, memory_bytes=2**34),
        "versions": {"vllm": "0.32.0+cpu"},
        "model": "small",
        "served_model_name": "small",
        "checks": (CheckResult(name="a", title="A", expected="1", measured="1", verdict="pass", source="This recipe"),),
    }
    return Evidence.model_validate(fields | changes)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    evidence.write(path, an_evidence())
    assert evidence.read(path) == an_evidence()
    assert [file.name for file in tmp_path.iterdir()] == ["evidence.json"]


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(InputError, match=r"file/evidence\.json cannot be written: Not a directory"):
        evidence.write(blocked / "evidence.json", an_evidence())


def test_a_disk_that_fills_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, tiny_disk: Callable[[Path, str], None]
) -> None:
    folder = tmp_path / "disk"
    tiny_disk(folder, "16k")
    path = folder / "evidence.json"
    evidence.write(path, an_evidence())
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"No space left on device.*Free some space"):
        evidence.write(path, an_evidence(error="x" * 2**15))
    assert path.read_bytes() == before
    assert [file.name for file in folder.iterdir()] == ["evidence.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("{}", "run_id: Field required"), ("nonsense", "Invalid JSON")],
)
def test_what_is_not_evidence_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "evidence.json"
    path.write_text(text)
    with pytest.raises(InputError, match=f"is not evidence of schema version 1: .*{message}"):
        evidence.read(path)


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    path.write_text(an_evidence().model_dump_json().replace('"schema_version":1', '"schema_version":2'))
    with pytest.raises(InputError, match="schema version 1: schema_version"):
        evidence.read(path)


def test_an_unknown_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    path.write_text(an_evidence().model_dump_json().replace('"recipe"', '"colour":"green","recipe"', 1))
    with pytest.raises(InputError, match="colour"):
        evidence.read(path)


def test_the_latest_run_is_the_newest_that_finished(tmp_path: Path) -> None:
    for name in ("20261201T050000Z-abcd", "20261202T050000Z-0000", "20261203T050000Z-0000"):
        (tmp_path / "b300_tp8" / name).mkdir(parents=True)
    for name in ("20261201T050000Z-abcd", "20261202T050000Z-0000"):
        evidence.write(tmp_path / "b300_tp8" / name / "evidence.json", an_evidence())
    latest = evidence.latest(tmp_path, "b300_tp8")
    assert latest
    assert latest.name == "20261202T050000Z-0000"
    assert evidence.latest(tmp_path, "gb300_tp8") is None
