"""What is known to help against the reasons for which servers die."""

from __future__ import annotations

import re

__all__ = ["KILLED", "hint"]

KILLED = "The kernel's OOM killer may have ended it: look at dmesg and at the memory of the machine."

# In the order in which they are looked for.
HINTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"less than desired GPU memory utilization|less than the engine's budget"),
        "Another process holds device memory, perhaps an engine that outlived its run: look with nvidia-smi or "
        "rocm-smi and end it, or lower --gpu-memory-utilization.",
    ),
    (
        re.compile(r"No available memory for the cache blocks|larger than the available KV cache memory"),
        "The weights leave too little for the KV cache: lower --max-model-len, free the device memory that other "
        "processes hold, or use more GPUs.",
    ),
    (
        re.compile(r"(?:CUDA|HIP|XPU) out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY"),
        "Lower --gpu-memory-utilization to 0.90, or the context length; check that no other process holds device "
        "memory.",
    ),
    (
        re.compile(r"memory on node \d+ .* is less than requested"),
        "The machine has too little free memory: lower VLLM_CPU_KVCACHE_SPACE.",
    ),
    (re.compile(r"[Aa]ddress already in use"), "Stop what listens there, or choose another port."),
    (
        re.compile(r"architectures? .*not supported|does not recognize this architecture|not supported for now"),
        "This vLLM is too old for the model: use the image that the recipe names.",
    ),
    (
        re.compile(r"gated repo|GatedRepo|401 Client Error|403 Client Error", re.IGNORECASE),
        "Accept the model's licence on its hub page and set HF_TOKEN.",
    ),
    (
        re.compile(
            r"outgoing traffic has been disabled|LocalEntryNotFound|OfflineMode|Repo id must be|RepositoryNotFound"
            r"|404 Client Error|not a local folder|couldn't connect to 'https://huggingface"
        ),
        "Check the model's name or folder; without a network the model has to lie on disk already.",
    ),
    (
        re.compile(r"unrecognized arguments|invalid choice|expected (?:one|at least one) argument|invalid \w+ value"),
        "Check the command: cookbook check.",
    ),
    (re.compile(r"Safetensor|safetensors"), "A weights file is damaged or incomplete: fetch the model again."),
    (
        re.compile(r"attention heads|divisible by tensor parallel"),
        "Choose a tensor parallel size that divides the model's attention heads.",
    ),
    (
        re.compile(
            r"lib(?:cuda|cudart|nvidia-ml|amdhip64|hsa)\S*\.so|No CUDA GPUs are available|driver version is insuff"
        ),
        "The driver or its libraries are not visible in this environment: start the container with its devices, and "
        "compare the driver with what the image needs.",
    ),
    (
        re.compile(r"No module named|cannot import name"),
        "A package is missing or does not fit: use the recipe's image.",
    ),
    (re.compile(r"No space left on device"), "A disk is full: the model's cache, /tmp or /dev/shm."),
    (re.compile(r"Too many open files"), "Raise the limit: ulimit -n 65536."),
    (
        re.compile(r"NCCL error|ncclUnhandled|ncclSystemError|RCCL", re.IGNORECASE),
        "The GPUs cannot reach each other: run again with NCCL_DEBUG=INFO, and check /dev/shm and the interface.",
    ),
    (
        re.compile(r"Permission denied|PermissionError"),
        "A file or device may not be used by this user: look at the path in the message.",
    ),
)


def hint(what: str) -> str:
    """What is known to help against a reason; empty where nothing is.

    Args:
        what: The reason, as `RootCause.what` gives it.
    """
    return next((text for pattern, text in HINTS if pattern.search(what)), "")
