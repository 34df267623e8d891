"""Load by `vllm bench serve`: its options are those that it has, and a failure says why. A double of the tool fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from cookbook import load
from cookbook.errors import InputError, TimeLimitError
from cookbook.launch import tool

WORDS = load.command(
    "http://127.0.0.1:8000",
    "m",
    "org/tokenizer",
    prompts=8,
    concurrency=2,
    input_tokens=64,
    output_tokens=16,
    trust_remote_code=True,
)


def bench(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch, limit: float = 30) -> load.Load:
    monkeypatch.setattr(tool, "CHILD", code)
    return load.bench(WORDS, time_limit_s=limit, folder=folder, offline=True)


@pytest.mark.e2e
def test_the_command_is_one_that_vllm_takes() -> None:
    # The parser is the real one.
    serve = pytest.importorskip("vllm.benchmarks.serve")
    argparse = pytest.importorskip("vllm.utils.argparse_utils")
    parser = argparse.FlexibleArgumentParser()
    serve.add_cli_args(parser)
    found = parser.parse_args(WORDS[3:])
    assert (found.num_prompts, found.max_concurrency, found.random_input_len, found.ignore_eos) == (8, 2, 64, True)
    assert found.tokenizer == "org/tokenizer"


def test_the_figures_of_a_double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys, json, pathlib; words = sys.argv[2:];"
        "folder = words[words.index('--result-dir') + 1]; name = words[words.index('--result-filename') + 1];"
        "found = {f'p{p}_{n}_ms': p for p in (50, 90, 99) for n in ('ttft', 'itl', 'e2el')};"
        "found |= dict(num_prompts=8, completed=7, duration=2.0, output_throughput=64.0);"
        "pathlib.Path(folder, name).write_text(json.dumps(found))"
    )
    found = bench(tmp_path, code, monkeypatch)
    assert (found.asked, found.done, found.output_tokens_per_s) == (8, 7, 64)
    assert found.percentiles["Whole request"] == {"p50": 50, "p90": 90, "p99": 99}
    assert "--result-dir" not in found.command


def test_a_tool_that_fails_says_why_by_a_double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; print('password=hunter2hunter2'); print('no tokenizer'); sys.exit(3)"
    with pytest.raises(InputError, match=r"exit code 3: no tokenizer.*bench\.log"):
        bench(tmp_path, code, monkeypatch)
    assert "hunter2" not in (tmp_path / "logs" / "bench.log").read_text()


def test_a_tool_that_leaves_no_result_is_an_error_by_a_double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="exit code 0: it said nothing"):
        bench(tmp_path, "pass", monkeypatch)


def test_a_tool_that_takes_too_long_is_stopped_by_a_double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TimeLimitError, match="The load was not measured within 1 s"):
        bench(tmp_path, "import signal; signal.pause()", monkeypatch, limit=1)
