"""Phases and figures out of real logs, and out of lines as vLLM's source writes them for GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from cookbook.launch.phases import Phase, PhaseReader, attention_backend, kv_cache_tokens

SAMPLES = Path(__file__).parent / "samples"
HEALTHY = (SAMPLES / "healthy.log").read_text()


def phases(text: str) -> list[tuple[str, str]]:
    reader = PhaseReader()
    found = (reader.read(line, 0.0) for line in text.splitlines())
    return [(phase.name, phase.detail) for phase in found if phase]


def test_a_real_start_passes_its_phases_in_order() -> None:
    assert phases(HEALTHY) == [
        ("engine", "vLLM 0.32.0"),
        ("loading", ""),
        ("loading", "100 %"),
        ("loaded", "0.44 s"),
        ("kv_cache", "69,888 tokens"),
        ("init", "3.18 s"),
        ("server", ""),
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Model loading took 132.52 GiB memory and 341.120000 seconds", ("memory", "132.52 GiB")),
        ("torch.compile took 41.20 s in total", ("compile", "41.20 s")),
        ("Available KV cache memory: 101.30 GiB", ("kv_memory", "101.30 GiB")),
        (
            "GPU KV cache size: 2,600,000 tokens, Maximum concurrency for 262,144 tokens per request: 9.92x",
            ("kv_cache", "2,600,000 tokens"),
        ),
        ("Graph capturing finished in 21 secs, took 3.94 GiB", ("graphs", "21 s, 3.94 GiB")),
        (
            "init engine (profile, create kv cache, warmup model) took 151.33 s (compilation: 41.20 s)",
            ("init", "151.33 s"),
        ),
        ("Starting vLLM API server 0 on http://127.0.0.1:8000", ("server", "")),
        ("Loading safetensors checkpoint shards:  45% Completed | 43/96 [00:51<01:02,  1.2s/it]", ("loading", "45 %")),
        ("Multi-thread loading shards:  45% Completed | 43/96 [00:51<01:02,  1.2s/it]", ("loading", "45 %")),
        ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  60%|██████    | 31/51", ("capturing", "60 %")),
        ("Capturing prefill CUDA graphs:  60%|██████    | 31/51", ("capturing", "60 %")),
        ("DeepGEMM warmup:  30%|███       | 300/1000", ("warmup", "30 %")),
        ("JIT kernel warmup (12 compile keys):  50%|█████     | 6/12", ("warmup", "50 %")),
    ],
)
def test_lines_of_gpus(line: str, expected: tuple[str, str]) -> None:
    assert phases(f"(Worker_TP0 pid=1) INFO 12-01 04:52:59 [x.py:1] {line}") == [expected]


def test_each_phase_is_told_once_and_bars_in_steps_of_ten() -> None:
    bar = "Loading safetensors checkpoint shards: {:3}% Completed | 1/1"
    lines = [bar.format(percent) for percent in (0, 5, 11, 12, 19, 20, 20, 100)]
    assert phases("\r".join(lines)) == [("loading", "11 %"), ("loading", "20 %"), ("loading", "100 %")]
    took = "Loading weights took 0.44 seconds"
    assert len(phases(f"(Worker_TP0 pid=1) {took}\n(Worker_TP1 pid=2) {took}")) == 1


def test_two_kinds_of_graphs_have_a_bar_each() -> None:
    text = "Capturing CUDA graphs (PIECEWISE): 100%|█\nCapturing CUDA graphs (decode, FULL): 50%|█"
    assert phases(text) == [("capturing", "100 %"), ("capturing", "50 %")]


def test_the_time_is_the_callers() -> None:
    assert PhaseReader().read("Starting to load model m...", 7.5) == Phase("loading", "Loading weights", "", 7.5)


def test_tokens_of_the_kv_cache_of_each_engine() -> None:
    assert kv_cache_tokens(HEALTHY) == [69_888]
    assert kv_cache_tokens("GPU KV cache size: 1,000 tokens\nGPU + host KV cache size: 2,000 tokens") == [1000, 2000]
    assert kv_cache_tokens("") == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Using FLASHINFER_MLA attention backend out of potential backends: ['FLASHINFER_MLA'].", "FLASHINFER_MLA"),
        ("Using AttentionBackendEnum.FLASHMLA backend.", "FLASHMLA"),
        ("Using ROCM_AITER_MLA backend (selected via --attention-backend).", "ROCM_AITER_MLA"),
        ("Using CPU_MLA backend.", "CPU_MLA"),
        ("Using TRTLLM_RAGGED MLA prefill backend.", None),
        ("Using backend AttentionBackendEnum.FLASH_ATTN for vit attention", None),
        ("Cannot use FLASHMLA backend on CPU.", None),
        (HEALTHY, None),
    ],
)
def test_attention_backend(line: str, expected: str | None) -> None:
    assert attention_backend(line) == expected
