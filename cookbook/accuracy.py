"""Accuracy of a served model, measured by lm-evaluation-harness (lm_eval) in a process of its own.

It asks through `/v1/completions`. With a reasoning parser the chat API may put an answer into the reasoning field,
which lm_eval does not read; and raw completions need no tokenizer, so nothing of the model is fetched from a hub.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from cookbook import client
from cookbook.checks import made
from cookbook.deployment import Claim, Source
from cookbook.errors import InputError, ServerError
from cookbook.evidence import CheckResult, Verdict, write_bytes
from cookbook.launch import tool

__all__ = [
    "SMALL_QUESTIONS",
    "Accuracy",
    "accuracy_check",
    "against_baseline",
    "evaluate",
    "installed",
    "measured",
    "read_questions",
    "scored",
]

DATA = Path(__file__).parent / "data"
# Written for rehearsals. It is no benchmark: a model that gets all of it right has shown nothing.
SMALL_QUESTIONS = DATA / "arithmetic_small.jsonl"
TASK = DATA / "word_problems.yaml"
FORM = re.compile(r"####\s*-?\$?\d[\d,]*(?:\.\d+)?\s*$")
NO_NUMBER = "[invalid]"
HUB: Mapping[str, Any] = {"task": "gsm8k", "dataset_path": "openai/gsm8k", "dataset_name": "main"}

# Normal quantile of a 95 % interval.
Z = 1.959964
# Half the width of the interval, in points, up to which a run may pass by coming close. 400 answers at 96 % reach it;
# the 1319 of GSM8K come to 1.1.
TELLS = 2.0

HARNESS = Source(title="lm-evaluation-harness", url="https://github.com/EleutherAI/lm-evaluation-harness")
PROBE_TIMEOUT_S = 10.0
SHOWN = 300


@dataclass(frozen=True)
class Accuracy:
    """What an evaluation found.

    Attributes:
        task: "gsm8k" for the questions of the hub, else the name of the file without its ending.
        asked: How many questions were asked.
        samples: How many answers were scored.
        answered: How many of those had a number in them.
        correct: How many had the right one.
        seconds: For all of it, with the start of lm_eval.
        lm_eval: Its version.
        samples_file: JSON lines, one an answer: question, expected, answer, number, correct.
    """

    task: str
    asked: int
    samples: int
    answered: int
    correct: int
    seconds: float
    lm_eval: str
    samples_file: Path

    @property
    def accuracy(self) -> float:
        """Right answers in percent; 0 where none was scored."""
        return 100 * self.correct / self.samples if self.samples else 0.0

    @property
    def standard_error(self) -> float:
        """Of the accuracy, in points, as lm_eval states it (sample standard deviation over the root of the count)."""
        share = self.accuracy / 100
        return 100 * math.sqrt(share * (1 - share) / (self.samples - 1)) if self.samples > 1 else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of the accuracy in percent, by Wilson: it holds for few samples and near 100 %."""
        if not self.samples:
            return 0.0, 100.0
        n, share = self.samples, self.accuracy / 100
        middle = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
        half = Z / (1 + Z**2 / n) * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
        return max(0.0, 100 * (middle - half)), min(100.0, 100 * (middle + half))

    @property
    def text(self) -> str:
        """Counts, interval and version, for the detail of a check."""
        low, high = self.interval
        silent = self.samples - self.answered
        return (
            f"{self.correct} of {self.samples} right, 95 % interval {low:.2f} to {high:.2f}, standard error"
            f" {self.standard_error:.2f}, lm_eval {self.lm_eval}."
            + (f" {silent} of the answers had no number." if silent else "")
        )


def read_questions(path: Path) -> list[dict[str, str]]:
    """Read JSON lines of "question" and "answer"; an answer ends with "#### 42", as in GSM8K.

    Raises:
        InputError: The file is missing or empty, or a line is broken; the line is named.
    """
    todo = 'Each line is a JSON object of "question" and "answer", and an answer ends with "#### 42".'
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(f"{path} cannot be read: {why}.", "Name a file of questions, as JSON lines.") from error
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        problem, question = _question(line)
        if problem:
            raise InputError(f"{path}, line {number}: {problem}.", todo)
        found.append(question)
    if not found:
        raise InputError(f"{path} has no questions.", todo)
    return found


def _question(line: str) -> tuple[str, dict[str, str]]:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        return f"not JSON: {error}", {}
    if not isinstance(entry, dict):
        return "not an object", {}
    for key in ("question", "answer"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            return f'no text under "{key}"', {}
    if not FORM.search(entry["answer"]):
        return 'the answer does not end with "#### " and a number', {}
    return "", {"question": entry["question"], "answer": entry["answer"]}


def evaluate(
    base_url: str,
    model: str,
    *,
    questions: Path | None,
    limit: int | None,
    concurrency: int,
    max_tokens: int,
    time_limit_s: float,
    folder: Path,
) -> Accuracy:
    """Ask the questions, score the answers, and leave `accuracy.jsonl` and `logs/accuracy.log` in `folder`.

    With a file of questions nothing is fetched from anywhere. lm_eval is gone when this returns or raises.

    Args:
        base_url: Of the server, with or without `/v1`. Its key is VLLM_API_KEY.
        model: The name that clients use.
        questions: JSON lines as of `read_questions`; None takes the 1319 test questions of GSM8K from the hub.
        limit: Only the first ones; None for all.
        concurrency: Requests at a time.
        max_tokens: Longest answer, in tokens.
        time_limit_s: Bound on all of it, in seconds.
        folder: Of the run.

    Raises:
        InputError: lm_eval is not installed, the questions cannot be had, the server has another model, or lm_eval
            failed for a reason of its own.
        ServerError: The server does not answer, or no more.
        TimeLimitError: `time_limit_s` was reached.
    """
    version = _version()
    if limit is not None and limit < 1:
        raise InputError(f"The limit is {limit}.", "It is a number of questions above 0, or none for all.")
    asked = None if questions is None else read_questions(questions)[:limit]
    url = client.server_url(base_url)
    _probe(url, model, "No server answers")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cookbook-accuracy-") as work_folder:
        work = Path(work_folder)
        task = _write_task(work, questions, asked)
        words = _words(
            url, model, work, limit=limit, concurrency=concurrency, max_tokens=max_tokens, seconds=time_limit_s
        )
        environment = _environment(os.environ, url, work, offline=asked is not None)
        log = folder / "logs" / "accuracy.log"
        code = tool.run(words, environment, what="The accuracy", log=log, time_limit_s=time_limit_s)
        outputs = sorted(work.glob("out/**/samples_*.jsonl"))
        if code != 0 or not outputs:
            raise _failure(code, log, url, model, from_hub=asked is None)
        scores = [_score(json.loads(line)) for line in outputs[-1].read_text(encoding="utf-8").splitlines()]
    samples_file = folder / "accuracy.jsonl"
    write_bytes(samples_file, "".join(json.dumps(score, ensure_ascii=False) + "\n" for score in scores).encode())
    return Accuracy(
        task=task,
        asked=len(scores) if asked is None else len(asked),
        samples=len(scores),
        answered=sum(score["number"] is not None for score in scores),
        correct=sum(score["correct"] for score in scores),
        seconds=time.monotonic() - began,
        lm_eval=version,
        samples_file=samples_file,
    )


def installed() -> bool:
    """Whether lm_eval is in this Python environment."""
    return importlib.util.find_spec("lm_eval") is not None


def _version() -> str:
    try:
        return importlib.metadata.version("lm_eval")
    except importlib.metadata.PackageNotFoundError as error:
        raise InputError(
            "lm_eval, which measures accuracy, is not installed beside the cookbook.",
            'Install it: pip install "cookbook[eval]" (it brings no torch), or scripts/install eval.',
        ) from error


def _probe(url: str, model: str, what: str) -> None:
    try:
        with client.http(url, PROBE_TIMEOUT_S) as http:
            models = http.get("/v1/models").raise_for_status().json()
        served = [str(entry["id"]) for entry in models["data"]]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise ServerError(
            f"{what} at {url}: {error}.", "Check base_url and VLLM_API_KEY, and that it is up."
        ) from error
    if model not in served:
        raise InputError(f'The server at {url} has no model "{model}".', f"It has {', '.join(served) or 'none'}.")


def _write_task(work: Path, questions: Path | None, asked: Sequence[Mapping[str, str]] | None) -> str:
    """Write the task for lm_eval, with the questions beside it, and return its name."""
    task: dict[str, Any] = {"include": str(TASK), **HUB}
    if questions is not None and asked is not None:
        # A copy: the harness's reader stumbles over other keys that differ from line to line.
        copy = work / "questions.jsonl"
        copy.write_text("".join(json.dumps(question) + "\n" for question in asked), encoding="utf-8")
        name = re.sub(r"\W", "_", questions.stem)
        task = {
            "include": str(TASK),
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(copy)}},
        }
    (work / "task.yaml").write_text(yaml.safe_dump(task), encoding="utf-8")
    return str(task["task"])


def _words(
    url: str, model: str, work: Path, *, limit: int | None, concurrency: int, max_tokens: int, seconds: float
) -> list[str]:
    arguments = {
        "model": model,
        "base_url": f"{url}/v1/completions",
        "tokenizer_backend": "None",
        "tokenized_requests": False,
        "num_concurrent": concurrency,
        "max_retries": 2,
        "timeout": math.ceil(seconds),
        "max_gen_toks": max_tokens,
    }
    return [
        *(
            sys.executable,
            "-m",
            "lm_eval",
            "run",
            "--model",
            "local-completions",
            "--model_args",
            json.dumps(arguments),
        ),
        *("--tasks", str(work / "task.yaml"), "--output_path", str(work / "out"), "--log_samples"),
        # No seeds for numpy and torch: nothing is drawn at random, and torch takes seconds to import.
        *("--seed", "0,None,None,1234"),
        *(() if limit is None else ("--limit", str(limit))),
    ]


def _environment(environ: Mapping[str, str], url: str, work: Path, *, offline: bool) -> dict[str, str]:
    nowhere = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_DATASETS_CACHE": str(work / "cache")}
    return {
        **tool.toward(environ, httpx.URL(url).host, client.api_key(environ)),
        **(nowhere if offline else {}),
    }


def _failure(code: int, log: Path, url: str, model: str, *, from_hub: bool) -> InputError:
    """Why lm_eval failed.

    Raises:
        ServerError: The server no longer answers; that is why.
    """
    _probe(url, model, "While the accuracy was measured, the server stopped answering")
    text = log.read_text(encoding="utf-8")
    last = next((line.strip(" .") for line in reversed(text.splitlines()) if line.strip()), "it said nothing")
    refused = re.search(r"API request failed.*?(?=\.? Retrying|$)", text, re.MULTILINE)
    reason = (refused[0] if refused else last)[:SHOWN]
    if from_hub and "Running generate_until requests" not in text:
        return InputError(
            f"The questions of GSM8K cannot be had from the hub: {reason}.",
            f"Without a network, name a file of them instead. The log of lm_eval: {log}.",
        )
    return InputError(f"lm_eval ended with exit code {code}: {reason}.", f"Its log: {log}.")


def _score(sample: Mapping[str, Any]) -> dict[str, Any]:
    number = sample["filtered_resps"][0]
    return {
        "question": sample["doc"]["question"],
        "expected": sample["target"].rpartition("####")[2].strip(),
        "answer": sample["resps"][0][0],
        "number": None if number == NO_NUMBER else number,
        "correct": bool(sample["exact_match"]),
    }


# The checks


def accuracy_check(accuracy: Accuracy, claim: Claim, source: Source) -> CheckResult:
    """The accuracy is the published one, less the claim's tolerance.

    Left out where the claim is about other questions than those that were asked, or where these are too few to tell.
    A rehearsal takes `scored` instead.

    Args:
        accuracy: Of the server.
        claim: In percent; its statement names the task.
        source: Of the claim.
    """
    title = f"Accuracy on {accuracy.task}"
    floor = claim.value * (1 - claim.tolerance)
    if not re.search(rf"\b{re.escape(accuracy.task)}\b", claim.statement, re.IGNORECASE):
        why = f'The questions are "{accuracy.task}", and the published figure is of others: {claim.statement}'
        return _result("accuracy", title, accuracy, floor, source, verdict="left_out", why=why)
    return _judged("accuracy", title, accuracy, floor, source, why=claim.statement)


def against_baseline(accuracy: Accuracy, baseline: float, *, points: float, made_by: str) -> CheckResult:
    """The accuracy is that of another run on the same questions, less a few points.

    Args:
        accuracy: Of the server.
        baseline: Of the other run, in percent.
        points: By how much it may be lower, in points of percent.
        made_by: The other run, for a reader, as of `cookbook.baseline.names`.
    """
    source = Source(title=f"Evidence of {made_by}")
    why = f"The baseline, {made_by}, has {baseline:.2f} %; {points:g} points less still count."
    title = f"Accuracy on {accuracy.task} against the baseline"
    return _judged("accuracy_baseline", title, accuracy, baseline - points, source, why=why)


def scored(accuracy: Accuracy) -> CheckResult:
    """Every question was asked and scored, and some answers had a number. It says nothing on how many were right.

    For a rehearsal, whose small model is not the one that a recipe is for.
    """
    return made(
        "accuracy_path",
        f"Accuracy can be measured ({accuracy.task})",
        holds=0 < accuracy.asked == accuracy.samples and accuracy.answered > 0,
        expected=f"{accuracy.asked} answers scored",
        measured=f"{accuracy.samples} answers scored, {accuracy.answered} with a number",
        detail=f"By lm_eval {accuracy.lm_eval} in {accuracy.seconds:.0f} s.",
        source=HARNESS,
    )


def measured(accuracy: Accuracy) -> CheckResult:
    """The accuracy, where no figure is published that it could be held against. A baseline for other runs."""
    title = f"Accuracy on {accuracy.task}"
    return CheckResult(
        name="accuracy",
        title=title,
        expected="no figure is published",
        measured=f"{accuracy.accuracy:.2f}",
        unit="%",
        verdict="left_out",
        detail=f"{accuracy.text} It passes nothing and fails nothing; other runs may be held against it.",
        source=HARNESS.title,
        source_url=HARNESS.url,
    )


def _verdict(accuracy: Accuracy, floor: float) -> Verdict:
    """Fail where the whole interval is below the floor, pass where it is above; between, pass only if it is narrow.

    A wide interval reaches every floor, so few samples would always pass.
    """
    low, high = accuracy.interval
    if high < floor:
        return "fail"
    return "pass" if low >= floor or high - low <= 2 * TELLS else "left_out"


def _judged(name: str, title: str, accuracy: Accuracy, floor: float, source: Source, *, why: str) -> CheckResult:
    verdict = _verdict(accuracy, floor)
    if verdict == "left_out":
        why = f"Too few answers to tell, as the interval is wider than {2 * TELLS:g} points. {why}"
    return _result(name, title, accuracy, floor, source, verdict=verdict, why=why)


def _result(
    name: str, title: str, accuracy: Accuracy, floor: float, source: Source, *, verdict: Verdict, why: str
) -> CheckResult:
    return CheckResult(
        name=name,
        title=title,
        expected=f"at least {floor:.2f}, or an interval that reaches it",
        measured="" if verdict == "left_out" else f"{accuracy.accuracy:.2f}",
        unit="%",
        verdict=verdict,
        detail=f"{accuracy.text} {why}",
        source=source.title,
        source_url=source.url,
    )
