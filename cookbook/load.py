"""Load on a server, by `vllm bench serve`: throughput, and the latencies of its requests as percentiles."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from cookbook import client
from cookbook.errors import InputError
from cookbook.launch import tool

__all__ = ["Load", "bench", "command"]

# As `vllm bench serve` names them, and for a reader.
LATENCIES: Mapping[str, str] = {
    "ttft": "Time to first token",
    "itl": "Between two tokens",
    "e2el": "Whole request",
}
PERCENTILES = (50, 90, 99)
SHOWN = 300


@dataclass(frozen=True)
class Load:
    """What `vllm bench serve` found.

    Attributes:
        command: As it was run.
        asked: Requests that were sent.
        done: Requests that were answered.
        seconds: For all of them.
        output_tokens_per_s: All answers together.
        percentiles: In milliseconds, by latency and percentile, for example ["Whole request"]["p90"].
    """

    command: str
    asked: int
    done: int
    seconds: float
    output_tokens_per_s: float
    percentiles: Mapping[str, Mapping[str, float]]


def command(
    base_url: str,
    model: str,
    tokenizer: str,
    *,
    prompts: int,
    concurrency: int,
    input_tokens: int,
    output_tokens: int,
    trust_remote_code: bool,
) -> list[str]:
    """The `vllm bench serve` command, without where the result goes.

    Args:
        base_url: Of the server.
        model: The name that clients use.
        tokenizer: Hub name or folder of the tokenizer that makes the prompts.
        prompts: Requests in all; as many as `concurrency` more warm the server up and do not count.
        concurrency: Requests at a time.
        input_tokens: Length of each prompt, of random tokens.
        output_tokens: Length of each answer.
        trust_remote_code: Whether the tokenizer comes with code of its own.
    """
    options = {
        "--backend": "openai",
        "--base-url": base_url,
        "--endpoint": "/v1/completions",
        "--model": model,
        "--tokenizer": tokenizer,
        "--dataset-name": "random",
        "--random-input-len": input_tokens,
        "--random-output-len": output_tokens,
        "--num-prompts": prompts,
        "--max-concurrency": concurrency,
        "--num-warmups": concurrency,
        "--percentile-metrics": ",".join(LATENCIES),
        "--metric-percentiles": ",".join(map(str, PERCENTILES)),
        "--seed": 0,
    }
    words = ["vllm", "bench", "serve", *(word for pair in options.items() for word in map(str, pair)), "--ignore-eos"]
    return [*words, "--trust-remote-code"] if trust_remote_code else words


def bench(words: list[str], *, time_limit_s: float, folder: Path, offline: bool) -> Load:
    """Run it, and leave its log in `logs/bench.log` of a folder. It is gone when this returns or raises.

    Args:
        words: Of `command`.
        time_limit_s: Bound on it, in seconds.
        folder: Of the run.
        offline: Nothing is fetched from a hub.

    Raises:
        InputError: vLLM is missing, or it failed for a reason of its own.
        TimeLimitError: `time_limit_s` was reached.
    """
    host = httpx.URL(words[words.index("--base-url") + 1]).host
    environment = tool.toward(os.environ, host, client.api_key()) | ({"HF_HUB_OFFLINE": "1"} if offline else {})
    log = folder / "logs" / "bench.log"
    with tempfile.TemporaryDirectory(prefix="cookbook-bench-") as work:
        result = Path(work) / "result.json"
        saved = ["--save-result", "--disable-tqdm", "--result-dir", work, "--result-filename", result.name]
        code = tool.run([*words, *saved], environment, what="The load", log=log, time_limit_s=time_limit_s)
        if code != 0 or not result.exists():
            text = log.read_text(encoding="utf-8")
            last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it said nothing")
            raise InputError(f"vllm bench serve ended with exit code {code}: {last[:SHOWN]}", f"Its log: {log}.")
        found = json.loads(result.read_text(encoding="utf-8"))
    return Load(
        command=shlex.join(words),
        asked=found["num_prompts"],
        done=found["completed"],
        seconds=found["duration"],
        output_tokens_per_s=found["output_throughput"],
        percentiles={
            title: {f"p{p}": found[f"p{p}_{name}_ms"] for p in PERCENTILES} for name, title in LATENCIES.items()
        },
    )
