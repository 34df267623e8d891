"""The b300_tp8 recipe, rehearsed for real: vLLM, papermill, checks, evidence, secrets, page."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from urllib.parse import quote

import pytest

from cookbook import site
from cookbook.evidence import CheckResult
from cookbook.measure import PROMPTS
from tests.e2e.conftest import KEY, TOKEN, Done

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parent.parent.parent


def check(done: Done, name: str) -> CheckResult:
    return next(result for result in done.evidence.checks if result.name == name)


def test_it_passes(rehearsed: Done) -> None:
    assert rehearsed.exit_code == 0, rehearsed.output + rehearsed.errors
    assert rehearsed.evidence.status == "passed"
    assert rehearsed.evidence.mode == "rehearsal"
    assert rehearsed.evidence.error == ""


def test_every_check_was_made_or_says_why_not(rehearsed: Done) -> None:
    verdicts = {result.name: result.verdict for result in rehearsed.evidence.checks}
    assert verdicts == {
        "answer": "pass",
        "streaming": "pass",
        "reasoning_low": "left_out",
        "reasoning_high": "left_out",
        "reasoning_max": "left_out",
        "effort_refused": "left_out",
        "reasoning_none": "pass",
        "anthropic_messages": "pass",
        "tool_call": "pass",
        "tool_turns": "pass",
        "streamed_tool_call": "pass",
        "structured_output": "pass",
        "image_refused": "pass",
        "long_input": "pass",
        "context_limit": "pass",
        "many_clients": "pass",
        "cancelled": "pass",
        "ready": "pass",
        "model": "pass",
        "kv_cache_tokens": "pass",
        "prefix_cache": "pass",
        "client_flat": "pass",
        "load": "pass",
    }
    assert all(result.detail for result in rehearsed.evidence.checks if result.verdict == "left_out")
    assert "Paris" in check(rehearsed, "answer").measured


def test_the_notebook_ran_whole(rehearsed: Done) -> None:
    note = rehearsed.evidence.notebook
    assert note
    assert note.executed_cells == note.code_cells > 15
    assert hashlib.sha256((rehearsed.folder / note.file).read_bytes()).hexdigest() == note.sha256


def test_the_evidence_says_what_ran(rehearsed: Done) -> None:
    found = rehearsed.evidence
    assert found.versions["vllm"] == "0.32.0+cpu"
    assert found.commands[0].argv[:2] == ("vllm", "serve")
    assert ("--tensor-parallel-size", "2") in zip(found.commands[0].argv, found.commands[0].argv[1:], strict=False)
    assert {"model", "--tensor-parallel-size", "--tool-call-parser", "image"} <= {s.what for s in found.substitutions}
    assert any(timing.name == "server start" for timing in found.timings)
    assert found.machine.cores >= 1
    assert found.image is None


def test_curves_answers_and_memory_are_in_the_record(rehearsed: Done) -> None:
    series = {one.name: one for one in rehearsed.evidence.series}
    assert {"ttft", "client_cost", "decode_step"} <= set(series)
    assert [point.x for point in series["decode_step"].points] == [1, 2]
    assert all(len(point.values) == 3 for point in series["ttft"].points)
    assert len(rehearsed.evidence.answers) == len(PROMPTS)


def test_progress_was_shown(rehearsed: Done) -> None:
    for words in ("cell ", "server: Weights loaded", "server: KV cache allocated", "server: Ready", "check: pass"):
        assert words in rehearsed.output


def test_nothing_but_notebook_log_and_evidence_is_left(rehearsed: Done) -> None:
    left = {str(path.relative_to(rehearsed.folder)) for path in rehearsed.folder.rglob("*") if path.is_file()}
    assert left == {"evidence.json", "notebook.ipynb", "logs/bench.log", "logs/engine-0.log", "logs/papermill.log"}


def test_no_secret_is_in_any_byte_that_was_written(rehearsed: Done, tmp_path: Path) -> None:
    site.build(ROOT, tmp_path / "site", rehearsed.folder.parent.parent)
    forms = [
        secret
        for value in (TOKEN, KEY)
        for secret in (value, quote(value), quote(value, safe=""), base64.b64encode(value.encode()).decode())
    ]
    files = [path for folder in (rehearsed.folder, tmp_path) for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 20
    for path in files:
        content = path.read_bytes().decode(errors="replace")
        assert not [form for form in forms if form in content], path
    for form in forms:
        assert form not in rehearsed.output + rehearsed.errors


def test_the_key_was_really_used(rehearsed: Done) -> None:
    """Else the search for it would prove nothing: without the key the server answers 401."""
    notebook = json.loads((rehearsed.folder / "notebook.ipynb").read_text())
    text = json.dumps(notebook)
    assert "Bearer $VLLM_API_KEY" in text
    assert "Unauthorized" not in text


def test_the_page_shows_outputs_checks_and_the_rehearsal_notice(rehearsed: Done, tmp_path: Path) -> None:
    built = site.build(ROOT, tmp_path / "site", rehearsed.folder.parent.parent)
    page = (built / "recipes" / "b300_tp8" / "index.html").read_text()
    assert "no number on this page is a number of the hardware" in page
    assert "19 of 19 hold, 4 left out" in page
    assert page.count("<svg") > 4
    assert "The capital of France is Paris." in page
    assert "Replaced or added in this rehearsal" in page
