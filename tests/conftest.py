"""What all tests share: a clean environment, and the catalog."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cookbook.catalog import Catalog, load
from cookbook.deployment import Deployment
from cookbook.rehearse import Cpu, Rehearsal, rehearse
from cookbook.resolve import resolve
from cookbook.selection import named

SECRETS = ("HF_TOKEN", "OPENAI_API_KEY", "VLLM_API_KEY")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name in SECRETS or name.startswith("COOKBOOK_RUN"):
            monkeypatch.delenv(name)


@pytest.fixture
def tiny_disk() -> Iterator[Callable[[Path, str], None]]:
    """Makes a folder a file system of its own, of a size such as "1m", so that it can really be full."""
    mounted: list[Path] = []

    def mount(folder: Path, size: str) -> None:
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "cookbook-test", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("a full disk needs a file system of its own, and there is no mount command")
        if done.returncode != 0:
            pytest.skip(f"a full disk needs a file system of its own, and mount says: {done.stderr.strip()}")
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return load()


@pytest.fixture(scope="session")
def b300_tp8(catalog: Catalog) -> Deployment:
    return resolve(catalog, named(catalog, "b300_tp8"))


@pytest.fixture(scope="session")
def rehearsal(catalog: Catalog, b300_tp8: Deployment) -> Rehearsal:
    return rehearse(b300_tp8, catalog, Cpu(cores=(0, 1), port=8123, model=Path("/models/small")))
