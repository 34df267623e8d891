"""Launching the real vLLM on this machine's CPU: its phases, its ends, and that none of its processes is left."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from cookbook.deployment import Argument, EnvVar, Origin, Process
from cookbook.errors import InputError, ServerError, TimeLimitError
from cookbook.launch.local import Server, launch
from cookbook.launch.phases import Phase, kv_cache_tokens
from cookbook.launch.processes import members, wait

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ORIGIN = Origin(layer="test", why="For a test.", basis="chosen")
READY_S = 300
FLAGS = {"--enforce-eager": None, "--max-model-len": 2048, "--host": "127.0.0.1", "--served-model-name": "small"}
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0|1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    return number


def vllm(model: Path, port: int, *, tensor_parallel: int = 2, **environment: str) -> Process:
    flags = {**FLAGS, "--tensor-parallel-size": tensor_parallel, "--port": port}
    variables = {**ENVIRONMENT, **environment}
    return Process(
        name="engine-0",
        role="engine",
        node=0,
        program=("vllm", "serve", str(model)),
        arguments=tuple(Argument(flag=flag, value=value, origins=(ORIGIN,)) for flag, value in flags.items()),
        environment=tuple(EnvVar(name=name, value=value, origin=ORIGIN) for name, value in variables.items()),
        host="127.0.0.1",
        port=port,
        devices=0,
    )


def start(
    process: Process, folder: Path, on_phase: Callable[[Phase], None] = lambda _: None, limit_s: float = READY_S
) -> Server:
    return launch(
        process,
        log=folder / "engine-0.log",
        served_model_name="small",
        ready_timeout_s=limit_s,
        on_phase=on_phase,
    )


def note_death(server: psutil.Process, deaths: list[float]) -> None:
    wait([server], timeout_s=READY_S)
    deaths.append(time.monotonic())


def below_me() -> list[psutil.Process]:
    return members((), below=os.getpid())


def test_it_becomes_ready_in_phases_answers_and_leaves_nothing(
    small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "s3cr3t-value")
    told: list[Phase] = []
    with start(vllm(small_model, free_port()), tmp_path, told.append) as server:
        names = list(dict.fromkeys(phase.name for phase in told))
        assert names == ["started", "engine", "loading", "loaded", "kv_cache", "init", "server", "ready"]
        assert sum(kv_cache_tokens(server.read_log())) > 10_000
        headers = {"Authorization": "Bearer s3cr3t-value"}
        question = {"model": "small", "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
        answer = httpx.post(
            f"{server.base_url}/v1/completions", json=question, headers=headers, timeout=60, trust_env=False
        )
        assert "Paris" in answer.json()["choices"][0]["text"]
        processes = below_me()
        assert len(processes) >= 5  # supervisor, API server, engine core, two workers
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 10
    assert wait(processes, timeout_s=0) == []
    assert "s3cr3t-value" not in (tmp_path / "engine-0.log").read_text()


@pytest.mark.parametrize("whom", ["supervisor", "api_server", "worker"])
def test_whoever_is_killed_while_it_serves_nothing_is_left(whom: str, small_model: Path, tmp_path: Path) -> None:
    with start(vllm(small_model, free_port()), tmp_path) as server:
        processes = below_me()
        api_server = psutil.Process(server.pid)
        workers = [process for process in processes if "Worker" in process.name()]
        victim = {"supervisor": psutil.Process(api_server.ppid()), "api_server": api_server, "worker": workers[0]}[whom]
        expected = {
            "supervisor": "supervisor was killed by signal 9",
            "api_server": "ended by signal 9",
            "worker": r"\(Worker\): The worker .* was ended by signal 9",
        }[whom]
        victim.send_signal(signal.SIGKILL)
        assert wait(processes, timeout_s=60) == []
        with pytest.raises(ServerError, match=expected):
            server.check_alive()


@pytest.mark.parametrize("wrong", ["missing", "heads", "corrupt", "too_large"])
def test_a_start_that_fails_names_its_reason(wrong: str, small_model: Path, tmp_path: Path) -> None:
    process, expected = vllm(small_model, free_port()), ""
    if wrong == "missing":
        process, expected = vllm(tmp_path / "nothere", free_port()), "Repo id must be in the form"
    if wrong == "heads":
        process, expected = vllm(small_model, free_port(), tensor_parallel=7), "divisible by tensor parallel size"
    if wrong == "corrupt":
        damaged = tmp_path / "damaged"
        shutil.copytree(small_model, damaged)
        for weights in damaged.glob("*.safetensors"):
            os.truncate(weights, weights.stat().st_size // 2)
        process, expected = vllm(damaged, free_port()), r"\(Worker\): SafetensorError"
    if wrong == "too_large":
        process = vllm(small_model, free_port(), VLLM_CPU_KVCACHE_SPACE="4000")
        expected = r"\(Worker\): ValueError: .*4000"
    deaths: list[float] = []
    watchers: list[threading.Thread] = []

    def watch(phase: Phase) -> None:
        if phase.name == "started":
            server = next(process for process in below_me() if process.ppid() != os.getpid())
            watchers.append(threading.Thread(target=note_death, args=(server, deaths)))
            watchers[0].start()

    with pytest.raises(ServerError, match=expected) as caught:
        start(process, tmp_path, watch)
    returned = time.monotonic()
    watchers[0].join()
    assert str(tmp_path) in caught.value.todo
    assert returned - deaths[0] < 2
    assert below_me() == []


def test_a_start_that_takes_too_long_is_stopped(small_model: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(TimeLimitError, match="not ready after 3 s; its last phase: Process started"):
        start(vllm(small_model, free_port()), tmp_path, limit_s=3)
    assert time.monotonic() - began < 3 + 12
    assert below_me() == []


def test_a_port_in_use_starts_nothing(small_model: Path, tmp_path: Path) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)), pytest.raises(InputError, match=f"Port {port}"):
        start(vllm(small_model, port), tmp_path)
    assert below_me() == []
