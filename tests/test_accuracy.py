"""Accuracy: the questions, lm_eval against a double of the server, the ways it goes wrong, and the checks."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from cookbook import accuracy
from cookbook.accuracy import Accuracy, accuracy_check, against_baseline, evaluate, read_questions, scored
from cookbook.deployment import Claim, Source
from cookbook.errors import InputError, ServerError, TimeLimitError
from cookbook.launch import tool

SOURCE = Source(title="Somewhere", url="https://example.org/claim")
CLAIM = Claim(
    name="nvfp4_gsm8k",
    statement="GSM8K 96.1 % on 8 GPUs.",
    value=96.1,
    unit="%",
    tolerance=0.005,
    basis="stated",
    source="spec",
)
KEY = "planted-key-for-the-test-42"

# What a model may write, the right answer, and whether it counts.
ANSWERS = {
    "How many apples?": (" 3 + 4 = 7 apples.\n#### 7", "#### 7", True),
    "How many liters?": (" They are $1,000.00.", "Half of 2000.\n#### 1,000", True),
    "How cold is it?": (" 5 - 10 = -5.\n#### -5", "#### -5", True),
    "How many birds?": (" There are 12, or 13.", "#### 12", False),
    "How many trees?": (" Many trees.", "#### 3", False),
}


def found(correct: int, total: int, **changes: Any) -> Accuracy:
    fields: dict[str, Any] = {
        "task": "gsm8k",
        "asked": total,
        "samples": total,
        "answered": total,
        "correct": correct,
        "seconds": 10.0,
        "lm_eval": "0.4.13",
        "samples_file": Path("accuracy.jsonl"),
    }
    return Accuracy(**fields | changes)


# The questions


def test_the_small_questions_can_be_read_and_are_not_called_gsm8k() -> None:
    questions = read_questions(accuracy.SMALL_QUESTIONS)
    assert len(questions) == len({question["question"] for question in questions}) == 20
    assert "gsm8k" not in accuracy.SMALL_QUESTIONS.name


GOOD = json.dumps({"question": "How many?", "answer": "#### 1"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no questions"),
        (f"{GOOD}\n{{", "line 2: not JSON"),
        (f"{GOOD}\n\n[]", "line 3: not an object"),
        ('{"answer": "#### 1"}', 'line 1: no text under "question"'),
        ('{"question": "How many?", "answer": 1}', 'line 1: no text under "answer"'),
        ('{"question": "How many?", "answer": "1"}', 'line 1: the answer does not end with "#### " and a number'),
        ('{"question": "How many?", "answer": "#### many"}', "line 1: the answer does not end"),
    ],
)
def test_a_broken_file_of_questions_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=f"questions.jsonl.*{message}"):
        read_questions(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"missing\.jsonl cannot be read: No such file"):
        read_questions(tmp_path / "missing.jsonl")
    (tmp_path / "latin").write_bytes(b"\xe9")
    with pytest.raises(InputError, match="it is not UTF-8"):
        read_questions(tmp_path / "latin")


# lm_eval against a double of the server


class ServerDouble(BaseHTTPRequestHandler):
    """Answers as a vLLM server with a key would; `refuses` makes it turn completions down."""

    refuses = False

    def do_GET(self) -> None:
        self._send(200, {"data": [{"id": "small"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.refuses or self.headers["Authorization"] != f"Bearer {KEY}":
            self._send(400, {"error": "the prompt is too long"})
            return
        question = body["prompt"].rpartition("Question: ")[2].removesuffix("\nAnswer:")
        assert body["prompt"].count("####") == 5
        assert body["max_tokens"] == 64
        assert body["temperature"] == 0
        self._send(200, {"choices": [{"index": 0, "text": ANSWERS[question][0]}]})

    def _send(self, status: int, body: Any) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", "the user's own, and not for this server")
    double = ThreadingHTTPServer(("127.0.0.1", 0), ServerDouble)
    thread = threading.Thread(target=double.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{double.server_port}"
    double.shutdown()
    thread.join()
    double.server_close()


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "made-up.jsonl"
    lines = [json.dumps({"question": text, "answer": answer}) for text, (_, answer, _) in ANSWERS.items()]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.4.13")


def run(base_url: str, folder: Path, questions: Path | None, **changes: Any) -> Accuracy:
    fields: dict[str, Any] = {"limit": None, "concurrency": 2, "max_tokens": 64, "time_limit_s": 60}
    return evaluate(base_url, "small", questions=questions, folder=folder, **fields | changes)


@pytest.mark.e2e
@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="lm_eval is not installed")
def test_lm_eval_asks_the_server_and_scores_numbers_however_they_are_written(
    server: str, questions: Path, tmp_path: Path
) -> None:
    done = run(f"{server}/v1", tmp_path / "run", questions)
    lines = [json.loads(line) for line in done.samples_file.read_text().splitlines()]
    assert {line["question"]: line["correct"] for line in lines} == {
        key: right for key, (_, _, right) in ANSWERS.items()
    }
    assert (done.task, done.asked, done.samples, done.answered, done.correct) == ("made_up", 5, 5, 4, 3)
    assert lines[4]["number"] is None
    assert done.lm_eval
    log = (tmp_path / "run" / "logs" / "accuracy.log").read_text()
    assert "made_up" in log
    assert KEY not in log


@pytest.mark.e2e
@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="lm_eval is not installed")
def test_a_server_that_refuses_is_told_with_its_words(
    server: str, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServerDouble, "refuses", True)
    with pytest.raises(InputError, match=r"exit code 1: .*the prompt is too long.*Its log: .*accuracy\.log"):
        run(server, tmp_path, questions, limit=1)


def test_lm_eval_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(InputError, match=r'not installed.* pip install "cookbook\[eval\]"'):
        run("http://127.0.0.1:9", tmp_path, None)


@pytest.mark.usefixtures("installed")
def test_no_server(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"No server answers at http://127\.0\.0\.1:9: "):
        run("http://127.0.0.1:9", tmp_path, None)


@pytest.mark.usefixtures("installed")
def test_another_model(server: str, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"limit": None, "concurrency": 1, "max_tokens": 1, "time_limit_s": 1}
    with pytest.raises(InputError, match=r'has no model "large"\. It has small'):
        evaluate(server, "large", questions=None, folder=tmp_path, **fields)


@pytest.mark.usefixtures("installed")
def test_a_limit_below_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="The limit is 0"):
        run("http://127.0.0.1:9", tmp_path, None, limit=0)


@pytest.mark.usefixtures("installed")
def test_nothing_is_left_running_when_time_is_up(
    server: str, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A double of lm_eval that has started a process of its own, and waits for it."""
    pids = tmp_path / "pid"
    child = (
        "import subprocess, os;"
        f"p = subprocess.Popen(['sleep', '60']); open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{p.pid}}');"
        "print('password=hunter2hunter2', flush=True); p.wait()"
    )
    monkeypatch.setattr(tool, "CHILD", child)
    with pytest.raises(TimeLimitError, match=r"not measured within 2 s\. .*accuracy\.log"):
        run(server, tmp_path, questions, time_limit_s=2)
    assert pids.read_text()
    assert not any(psutil.pid_exists(int(pid)) and _runs(int(pid)) for pid in pids.read_text().split())
    assert "hunter2" not in (tmp_path / "logs" / "accuracy.log").read_text()


def _runs(pid: int) -> bool:
    return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("from_hub", "message"),
    [(True, "cannot be had from the hub: no such host.*name a file"), (False, "ended with exit code 3: no such host")],
)
def test_lm_eval_that_fails(
    server: str, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_hub: bool, message: str
) -> None:
    monkeypatch.setattr(tool, "CHILD", "import sys; print('first'); print('no such host'); sys.exit(3)")
    with pytest.raises(InputError, match=message):
        run(server, tmp_path, None if from_hub else questions)


@pytest.mark.usefixtures("installed")
def test_a_server_that_dies_meanwhile(
    server: str, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([None])

    def first_time_only(url: str, model: str, what: str) -> None:
        if next(answers, what):
            raise ServerError(f"{what} at {url}.")

    monkeypatch.setattr(accuracy, "_probe", first_time_only)
    monkeypatch.setattr(tool, "CHILD", "raise SystemExit(1)")
    with pytest.raises(ServerError, match="the server stopped answering at http"):
        run(server, tmp_path, questions)


def test_only_questions_of_the_hub_leave_the_machine(tmp_path: Path) -> None:
    environ = {"NO_PROXY": "example.org", "OPENAI_API_KEY": "own", "HF_HOME": "/cache"}
    local = accuracy._environment(environ, "http://10.0.0.1:8000", tmp_path, offline=True)
    assert (local["HF_HUB_OFFLINE"], local["HF_DATASETS_OFFLINE"], local["HF_HUB_DISABLE_TELEMETRY"]) == ("1", "1", "1")
    assert local["NO_PROXY"] == "example.org,10.0.0.1"
    assert local["OPENAI_API_KEY"] == "EMPTY"
    assert "HF_HUB_OFFLINE" not in accuracy._environment(environ, "http://10.0.0.1:8000", tmp_path, offline=False)


# The figures


def test_the_interval_is_wilsons() -> None:
    # By scipy.stats.binomtest(…).proportion_ci(method="wilson").
    assert found(1269, 1319).interval == pytest.approx((95.037, 97.113), abs=0.002)
    assert found(20, 20).interval == pytest.approx((83.887, 100.0), abs=0.002)
    assert found(0, 20).interval == pytest.approx((0.0, 16.113), abs=0.002)
    assert found(0, 0).interval == (0.0, 100.0)


def test_the_standard_error_is_lm_evals() -> None:
    assert found(6, 20).standard_error == pytest.approx(10.51315, abs=1e-4)
    assert found(1, 1).standard_error == 0


# The checks


@pytest.mark.parametrize(
    ("correct", "samples", "verdict"),
    [
        (1269, 1319, "pass"),
        (1262, 1319, "pass"),  # 95.68 %: within the tolerance
        (1252, 1319, "pass"),  # 94.92 %: below it, and the interval reaches it
        (1240, 1319, "fail"),  # 94.01 %: does not reach it
        (0, 20, "fail"),  # few, and enough to tell
        (19, 20, "left_out"),
        (20, 20, "left_out"),
        (192, 200, "left_out"),
        (384, 400, "pass"),
        (0, 0, "left_out"),
    ],
)
def test_the_accuracy_is_held_against_the_published_one(correct: int, samples: int, verdict: str) -> None:
    check = accuracy_check(found(correct, samples), CLAIM, SOURCE)
    assert check.verdict == verdict
    assert check.expected == "at least 95.62, or an interval that reaches it"
    assert ("Too few answers to tell" in check.detail) == (verdict == "left_out")
    assert bool(check.measured) == (verdict != "left_out")


def test_other_questions_than_those_of_the_claim_are_left_out() -> None:
    check = accuracy_check(found(20, 20, task="arithmetic_small"), CLAIM, SOURCE)
    assert check.verdict == "left_out"
    assert 'The questions are "arithmetic_small", and the published figure is of others' in check.detail


@pytest.mark.parametrize(("baseline", "verdict"), [(96.2, "pass"), (97.5, "pass"), (97.7, "fail")])
def test_the_accuracy_is_held_against_another_run(baseline: float, verdict: str) -> None:
    check = against_baseline(found(1269, 1319), baseline, points=0.5, made_by="run X of 2026-12-01")
    assert check.verdict == verdict
    assert check.source == "Evidence of run X of 2026-12-01"
    assert re.search(rf"has {baseline:.2f} %; 0.5 points less still count", check.detail)


def test_few_answers_cannot_be_held_against_another_run() -> None:
    assert against_baseline(found(19, 20), 96.2, points=0.5, made_by="run X").verdict == "left_out"


@pytest.mark.parametrize(
    ("change", "verdict"),
    [({}, "pass"), ({"samples": 19}, "fail"), ({"answered": 0}, "fail"), ({"asked": 0, "samples": 0}, "fail")],
)
def test_a_rehearsal_tells_what_was_scored_and_not_how_well(change: dict[str, int], verdict: str) -> None:
    check = scored(found(7, 20, task="arithmetic_small", **change))
    assert check.verdict == verdict
    assert "%" not in check.measured + check.detail
