"""The reason of a server's end, out of logs of a real vLLM that was broken on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

from cookbook.launch.hints import hint
from cookbook.launch.rootcause import root_cause, tail

SAMPLES = Path(__file__).parent / "samples"


@pytest.mark.parametrize(
    ("sample", "process", "what", "helps"),
    [
        ("arch", "APIServer", "['KimiK31ForConditionalGeneration'] are not supported", "use the image"),
        ("corrupt", "Worker", "SafetensorError: Error while deserializing header", "fetch the model again"),
        ("flag", "APIServer", "unrecognized arguments: --tensor-paralel 3", "cookbook check"),
        ("heads", "APIServer", "attention heads (9) must be divisible by tensor parallel size (2)", "tensor parallel"),
        ("hub", "APIServer", "LocalEntryNotFoundError: Cannot find", "name or folder"),
        ("kill", "", "A process of the server died without a word", "OOM killer"),
        ("kv", "Worker", "is less than requested memory for kv (4000.0 GiB)", "VLLM_CPU_KVCACHE_SPACE"),
        ("missing", "APIServer", "HFValidationError: Repo id must be in the form", "name or folder"),
        ("port", "APIServer", "OSError: [Errno 98] Address already in use", "another port"),
    ],
)
def test_real_logs(sample: str, process: str, what: str, helps: str) -> None:
    cause = root_cause((SAMPLES / f"{sample}.log").read_text(), 1)
    assert cause.process == process
    assert what in cause.what
    assert helps in cause.hint
    assert "\n" not in cause.what
    assert len(cause.what) < 500


def test_the_context_leads_to_the_reason() -> None:
    cause = root_cause((SAMPLES / "corrupt.log").read_text(), 1)
    assert cause.context[-1].startswith("safetensors._safetensors_rust.SafetensorError")
    assert 'with safe_open(st_file, framework="pt") as f:' in cause.context
    assert not any(line.startswith("(Worker") for line in cause.context)


WORKER = "(Worker_TP0 pid=1) ERROR 12-01 04:52:57 [x.py:1] "
CORE = "(EngineCore_DP0 pid=2) ERROR 12-01 04:52:58 [core.py:1] "


@pytest.mark.parametrize(
    ("log", "exit_code", "process", "what"),
    [
        # The deepest process counts, not the first or the last line.
        (f"{CORE}RuntimeError: late\n{WORKER}ValueError: deep\nOSError: shallow", 1, "Worker", "ValueError: deep"),
        (
            "(VllmWorker-0 pid=7) ERROR 12-01 04:52:57 [x.py:1] ValueError: deep\nOSError: x",
            1,
            "Worker",
            "ValueError: deep",
        ),
        # What was only a warning did not end anything.
        (
            f"(Worker pid=1) WARNING 12-01 04:52:57 [x.py:1] ImportError: no y\n{WORKER}ValueError: x",
            1,
            "Worker",
            "ValueError: x",
        ),
        # Without a prefix, as a single process writes.
        ("ERROR 12-01 04:52:57 [x.py:1] ValueError: x", 1, "APIServer", "ValueError: x"),
        ("torch.OutOfMemoryError: CUDA out of memory.", 1, "APIServer", "OutOfMemoryError: CUDA out of memory."),
        ("Process EngineCore:\nTraceback (most recent call last):\nValueError: x", 1, "EngineCore", "ValueError: x"),
        # Signals.
        (
            f"{CORE}Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.\n"
            f"{CORE}RuntimeError: cancelled",
            1,
            "Worker",
            "The worker VllmWorker-1 was ended by signal 9.",
        ),
        (
            "RuntimeError: Engine core initialization failed. See root cause above. "
            "Failed core proc(s): {'EngineCore': -11}",
            1,
            "EngineCore",
            "EngineCore was ended by signal 11.",
        ),
        (f"{WORKER}Fatal Python error: Segmentation fault", 1, "Worker", "Fatal Python error: Segmentation fault"),
        ("", 137, "APIServer", "The server was ended by signal 9."),
        ("all is well", 3, "", "The server ended with exit code 3 and its log names no reason."),
        ("", None, "", "The server ended and its log names no reason."),
        # An exception without a message is told with its place.
        (
            'Traceback (most recent call last):\n  File "a.py", line 3, in f\n'
            "    assert n > 0\n           ^^^^^\nAssertionError",
            1,
            "APIServer",
            "AssertionError at a.py, line 3: assert n > 0",
        ),
        # What was made of an exception by those who caught it.
        (
            "KeyError: 'kimi_k31'\n\nDuring handling of the above exception, another exception occurred:\n\n"
            "Traceback (most recent call last):\nValueError: model type `kimi_k31` is unknown.",
            1,
            "APIServer",
            "ValueError: model type `kimi_k31` is unknown (it began with KeyError: 'kimi_k31')",
        ),
        (
            "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: x)\n\n"
            "Cannot access gated repo for url y.",
            1,
            "APIServer",
            "GatedRepoError: 401 Client Error. (Request ID: x) Cannot access gated repo for url y.",
        ),
    ],
)
def test_which_line_is_the_reason(log: str, exit_code: int | None, process: str, what: str) -> None:
    cause = root_cause(log, exit_code)
    assert (cause.process, cause.what) == (process, what)


@pytest.mark.parametrize(
    ("what", "helps"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 1.6 GiB", "0.90"),
        ("OutOfMemoryError: HIP out of memory.", "0.90"),
        ("ValueError: No available memory for the cache blocks.", "--max-model-len"),
        (
            "ValueError: Free memory on device cuda:0 (1/2 GiB) is less than desired GPU memory utilization",
            "nvidia-smi",
        ),
        ("GatedRepoError: 401 Client Error.", "HF_TOKEN"),
        ("RepositoryNotFoundError: 404 Client Error.", "name or folder"),
        ("ImportError: libcuda.so.1: cannot open shared object file", "driver"),
        ("OSError: [Errno 28] No space left on device", "/dev/shm"),
        ("RuntimeError: NCCL error: unhandled system error", "NCCL_DEBUG"),
        ("ValueError: something new", ""),
    ],
)
def test_known_reasons_have_a_hint(what: str, helps: str) -> None:
    assert helps in hint(what)
    assert bool(hint(what)) == bool(helps)


def test_a_healthy_log_names_no_reason() -> None:
    assert "names no reason" in root_cause((SAMPLES / "healthy.log").read_text(), 0).what


def test_the_tail_leaves_out_what_interpreters_say_at_their_end() -> None:
    text = tail((SAMPLES / "healthy.log").read_text() + "\n\nlast\n", lines=2)
    assert text.endswith("\nlast")
    assert "nanobind" not in text
