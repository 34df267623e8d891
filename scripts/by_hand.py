"""The hand-written script that the cookbook is measured against: the same server, the same requests, nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
from openai import OpenAI

MODEL = "SmolLM2-135M-Instruct"
PORT = 8423
URL = f"http://127.0.0.1:{PORT}"
CACHE = Path(os.environ.get("COOKBOOK_CACHE") or Path.home() / ".cache" / "cookbook")
ENVIRONMENT = {
    "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0|1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
FLAGS = (
    "--max-model-len 4096 --enable-prefix-caching --kv-cache-dtype fp8 --tensor-parallel-size 2 --host 127.0.0.1 "
    f"--port {PORT} --enable-auto-tool-choice --tool-call-parser hermes --served-model-name {MODEL} --dtype bfloat16 "
    "--enforce-eager"
)
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
NO_THINKING = {"chat_template_kwargs": {"thinking": False}}
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "country": {"type": "string", "maxLength": 30},
        "is_capital": {"type": "boolean"},
    },
    "required": ["name", "country", "is_capital"],
    "additionalProperties": False,
}


def main() -> None:
    """Start the server, ask what the recipe's notebook asks, stop it."""
    vllm = Path(sys.executable).parent / "vllm"
    with Path(os.devnull).open("w") as log:
        server = subprocess.Popen(
            [str(vllm), "serve", str(CACHE / MODEL), *FLAGS.split()],
            env={**os.environ, **ENVIRONMENT},
            stdout=log,
            stderr=log,
        )
    try:
        wait_until_ready(server)
        ask()
    finally:
        server.terminate()
        server.wait()


def wait_until_ready(server: subprocess.Popen[bytes]) -> None:
    """Poll as often as the cookbook does."""
    while True:
        if server.poll() is not None:
            sys.exit(f"the server ended with {server.returncode}")
        try:
            if httpx.get(f"{URL}/v1/models", trust_env=False).status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)


def ask() -> None:
    """The requests of the notebook, in its order."""
    body = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 64, **NO_THINKING}
    httpx.get(f"{URL}/v1/models", trust_env=False)
    httpx.post(f"{URL}/v1/chat/completions", json=body, timeout=600, trust_env=False)
    chat = OpenAI(base_url=f"{URL}/v1", api_key="EMPTY", timeout=600, max_retries=0).chat.completions
    common = {"model": MODEL, "temperature": 0, "extra_body": NO_THINKING, "max_tokens": 64}
    chat.create(**common, messages=QUESTION)  # type: ignore[call-overload]
    list(chat.create(**common, messages=QUESTION, stream=True))  # type: ignore[call-overload]
    thought = [{"role": "user", "content": "Is 17 * 23 more than 400? Answer yes or no."}]
    chat.create(**{**common, "extra_body": None}, messages=thought, reasoning_effort="low")  # type: ignore[call-overload]
    tool = {"name": "get_weather", "description": "The weather in a city now.", "parameters": WEATHER, "strict": True}
    chat.create(  # type: ignore[call-overload]
        **common,
        messages=[{"role": "user", "content": "What is the weather in Paris, in celsius?"}],
        tools=[{"type": "function", "function": tool}],
        tool_choice="required",
    )
    chat.create(  # type: ignore[call-overload]
        **common,
        messages=[{"role": "user", "content": "Describe Paris as JSON with name, country and is_capital."}],
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}},
    )
    body = {"model": MODEL, "max_tokens": 32, "messages": QUESTION, **NO_THINKING}
    httpx.post(f"{URL}/v1/messages", json=body, timeout=600, trust_env=False)
    prompt = "\n".join(f"Line {number}: the server reads this once and remembers it." for number in range(150))
    once = {"model": MODEL, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    for _ in range(2):
        httpx.post(f"{URL}/v1/completions", json=once, timeout=600, trust_env=False)
        httpx.get(f"{URL}/metrics", trust_env=False)
    httpx.get(f"{URL}/health", trust_env=False)
    httpx.get(f"{URL}/v1/models", trust_env=False)


if __name__ == "__main__":
    main()
