"""What all tests share: a clean environment, and the catalog."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cookbook.catalog import Catalog, load
from cookbook.deployment import Deployment
from cookbook.rehearse import Cpu, Rehearsal, rehearse
from cookbook.resolve import Selection, resolve

SECRETS = ("HF_TOKEN", "OPENAI_API_KEY", "VLLM_API_KEY")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name in SECRETS or name.startswith("COOKBOOK_RUN"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return load()


@pytest.fixture(scope="session")
def b300_tp8(catalog: Catalog) -> Deployment:
    return resolve(catalog, Selection(recipe="b300_tp8"))


@pytest.fixture(scope="session")
def rehearsal(catalog: Catalog, b300_tp8: Deployment) -> Rehearsal:
    return rehearse(b300_tp8, catalog, Cpu(cores=(0, 1), port=8123, model=Path("/models/small")))
