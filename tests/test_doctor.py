"""What a machine has of what a recipe needs, on a machine with none of it and on one whose tools are doubles."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from cookbook.catalog import Catalog
from cookbook.cli import main
from cookbook.doctor import Finding, examine
from cookbook.resolve import resolve
from cookbook.selection import named


def findings(catalog: Catalog, recipe: str, cache: Path, node: int = 0) -> dict[str, Finding]:
    deployment = resolve(catalog, named(catalog, recipe))
    return {finding.what: finding for finding in examine(catalog, deployment, node, cache)}


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any tool."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path


@pytest.mark.parametrize("recipe", ["b300_tp8", "mi355x_agentx", "ppu_810e_tp32", "tpu_v7x_tep", "gb300_pd"])
def test_a_machine_with_nothing_lacks_devices_and_disk(catalog: Catalog, recipe: str, empty: Path) -> None:
    found = findings(catalog, recipe, empty / "cache")
    (devices,) = (finding for what, finding in found.items() if what.startswith("devices"))
    assert devices.state == "missing"
    assert devices.found.startswith("0 seen")
    assert all(finding.todo for finding in found.values() if finding.state == "missing")


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_devices_are_counted_by_a_double_of_nvidia_smi(catalog: Catalog, empty: Path) -> None:
    tool(empty, "nvidia-smi", "for i in 1 2 3 4 5 6 7 8; do echo NVIDIA B300; done")
    title = "devices (NVIDIA B300, node of 8 GPUs)"
    assert findings(catalog, "b300_tp8", empty)[title].state == "ok"
    tool(empty, "nvidia-smi", "echo NVIDIA B300")
    assert "1 seen" in findings(catalog, "b300_tp8", empty)[title].found
    tool(empty, "nvidia-smi", "echo 'No devices were found' >&2; exit 9")
    assert "nvidia-smi fails" in findings(catalog, "b300_tp8", empty)[title].found


def test_a_double_of_docker_tells_of_the_image(catalog: Catalog, empty: Path) -> None:
    assert findings(catalog, "b300_tp8", empty)["image"].state == "unknown"
    tool(empty, "docker", "echo sha256:abc")
    assert findings(catalog, "b300_tp8", empty)["image"].found == "sha256:abc"
    tool(empty, "docker", "exit 1")
    assert "docker pull vllm/vllm-openai:kimi-k31" in findings(catalog, "b300_tp8", empty)["image"].todo


def test_a_port_in_use_is_named(catalog: Catalog, empty: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        deployment = resolve(catalog, named(catalog, "b300_tp8"))
        process = deployment.processes[0].model_copy(update={"port": taken})
        changed = deployment.model_copy(update={"processes": (process,)})
        found = {finding.what: finding for finding in examine(catalog, changed, 0, empty)}
    assert found[f"port {taken} (engine)"].state == "missing"


def test_a_checkpoint_that_is_there_needs_no_disk(catalog: Catalog, empty: Path) -> None:
    (empty / "hub" / "models--moonshotai--Kimi-K3.1-Pro").mkdir(parents=True)
    assert findings(catalog, "b300_tp8", empty)["checkpoint"].state == "ok"


def test_the_offloads_memory_is_held_against_the_machines(catalog: Catalog, empty: Path) -> None:
    """No machine that tests run on has 1 TiB free."""
    offload = findings(catalog, "b300_kv_offload", empty)["host memory for the offload"]
    assert offload.state == "missing"
    assert "1024 GiB wanted (128 GiB a device)" in offload.found
    assert "--host-memory here" in offload.todo


def test_other_nodes_are_what_this_machine_cannot_tell(catalog: Catalog, empty: Path) -> None:
    assert "HEAD_IP" in findings(catalog, "gb300_tp8", empty)["other nodes"].todo


def test_the_command_says_what_is_missing_and_ends_with_1() -> None:
    result = CliRunner().invoke(main, ["doctor", "b300_tp8"])
    assert result.exit_code == 1
    assert "MISSING  devices (NVIDIA B300, node of 8 GPUs)" in result.output
    assert "cookbook: This machine lacks: devices" in result.stderr
    listed = json.loads(CliRunner().invoke(main, ["doctor", "b300_tp8", "--json"]).stdout)
    assert {finding["state"] for finding in listed} <= {"ok", "missing", "unknown"}


def test_a_node_that_the_recipe_has_not_is_an_error() -> None:
    result = CliRunner().invoke(main, ["doctor", "gb300_tp8", "--node", "2"])
    assert result.exit_code == 2
    assert "There is no node 2. The nodes are 0 to 1." in result.stderr
