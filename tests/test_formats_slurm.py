"""The sbatch file starts every role on its node with exactly its words. srun and scontrol are doubles here."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cookbook.catalog import Catalog
from cookbook.deployment import Argument, Deployment, Origin
from cookbook.formats import slurm
from cookbook.resolve import resolve
from cookbook.selection import named, parse_override

SRUN = """\
#!/usr/bin/env python3
import json, os, sys, time
words = sys.argv[1:]
options = [word for word in words[: words.index("env")]]
command = words[words.index("env") + 1 :]
name = next(word for word in options if word.startswith("--job-name=")).partition("=")[2]
with open(os.path.join(os.environ["DOUBLE_LOG"], name), "w") as file:
    json.dump({"options": options, "command": command, "pid": os.getpid()}, file)
if name == os.environ.get("DOUBLE_ENDS"):
    while len(os.listdir(os.environ["DOUBLE_LOG"])) < int(os.environ["DOUBLE_COUNT"]):
        time.sleep(0.02)
    sys.exit(7)
time.sleep(600)
"""
SCONTROL = """\
#!/usr/bin/env bash
case $2 in
    hostnames) for i in 0 1 2 3 4 5 6 7; do echo "node$i"; done ;;
    node) echo "NodeName=$4 Arch=x86_64 NodeAddr=10.0.0.${4#node} NodeHostName=$4" ;;
esac
"""


class Doubles:
    """A folder with srun and scontrol that write down what they were given."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.log = folder / "log"
        self.folder = folder
        self.bin.mkdir()
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)

    def run(self, script: str, deployment: Deployment, **environment: str) -> subprocess.CompletedProcess[str]:
        for path in self.log.glob("*") if self.log.exists() else ():
            path.unlink()
        self.log.mkdir(exist_ok=True)
        ends = deployment.processes[-1].name
        return subprocess.run(
            ["bash", "-c", script],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": f"{self.bin}:{os.environ['PATH']}",
                "SLURM_JOB_NODELIST": "node[0-7]",
                "SLURM_JOB_NAME": "job",
                "SLURM_JOB_ID": "1",
                "DOUBLE_LOG": str(self.log),
                "DOUBLE_ENDS": ends,
                "DOUBLE_COUNT": str(len(deployment.processes)),
                **environment,
            },
        )

    def steps(self) -> dict[str, dict[str, Any]]:
        return {path.name: json.loads(path.read_text()) for path in self.log.iterdir()}


@pytest.fixture
def doubles(tmp_path: Path) -> Doubles:
    return Doubles(tmp_path)


def expected(deployment: Deployment, name: str) -> list[str]:
    """The words of a process, with the addresses that the double of scontrol tells."""
    process = next(process for process in deployment.processes if process.name == name)
    words = [f"{variable.name}={variable.value}" for variable in process.environment] + list(process.argv)
    for address in deployment.addresses:
        words = [word.replace(f"${{{address.name}}}", f"10.0.0.{address.node}") for word in words]
    return words


@pytest.mark.parametrize("recipe", ["b300_tp8", "gb300_tp8", "gb300_pd_kv_offload", "ppu_m890_dep32", "tpu_v7x_tep"])
def test_every_process_starts_on_its_node_with_its_words(catalog: Catalog, doubles: Doubles, recipe: str) -> None:
    deployment = resolve(catalog, named(catalog, recipe))
    doubles.run(slurm.render(catalog, deployment), deployment)
    steps = doubles.steps()
    assert set(steps) == {process.name for process in deployment.processes}
    for process in deployment.processes:
        assert steps[process.name]["command"] == expected(deployment, process.name)
        assert f"--nodelist=node{process.node}" in steps[process.name]["options"]


def test_the_first_step_that_ends_ends_the_others_and_gives_the_code(catalog: Catalog, doubles: Doubles) -> None:
    deployment = resolve(catalog, named(catalog, "gb300_pd"))
    done = doubles.run(slurm.render(catalog, deployment), deployment)
    assert done.returncode == 7
    assert "router-0 ended with code 7; its log says why." in done.stderr
    pids = [step["pid"] for step in doubles.steps().values()]
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_container_and_addresses_can_be_given(catalog: Catalog, doubles: Doubles) -> None:
    deployment = resolve(catalog, named(catalog, "gb300_tp8"))
    doubles.run(slurm.render(catalog, deployment), deployment, CONTAINER_IMAGE="some/image:tag", HEAD_IP="192.168.7.7")
    step = doubles.steps()["engine-1"]
    assert "--container-image=some/image:tag" in step["options"]
    assert step["command"][step["command"].index("--master-addr") + 1] == "192.168.7.7"


def test_a_router_asks_for_no_devices(catalog: Catalog, doubles: Doubles) -> None:
    deployment = resolve(catalog, named(catalog, "gb300_pd"))
    doubles.run(slurm.render(catalog, deployment), deployment)
    assert "--gres=none" in doubles.steps()["router-0"]["options"]
    assert "--gres=none" not in doubles.steps()["prefill-0"]["options"]


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(
        st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=30), max_size=5
    )
)
def test_any_value_survives(catalog: Catalog, doubles: Doubles, values: list[str]) -> None:
    origin = Origin(layer="test", why="Test.", basis="chosen")
    deployment = resolve(catalog, named(catalog, "b300_tp8", overrides=(parse_override("VLLM_X=$HEAD_IP `id` 'a\"b"),)))
    process = deployment.processes[0]
    arguments = tuple(
        Argument(flag=f"--x{index}", value=value, origins=(origin,)) for index, value in enumerate(values)
    )
    changed = deployment.model_copy(update={"processes": (process.model_copy(update={"arguments": arguments}),)})
    doubles.run(slurm.render(catalog, changed), changed)
    assert doubles.steps()["engine-0"]["command"] == expected(changed, "engine-0")
