"""`docker run` gives a container exactly its words, devices and network. docker is a double here."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cookbook.catalog import Catalog
from cookbook.deployment import Argument, Deployment, Origin
from cookbook.errors import InputError
from cookbook.formats import docker
from cookbook.resolve import resolve
from cookbook.selection import named

DOUBLE = """\
#!/usr/bin/env python3
import json, os, sys
with open(os.environ["DOUBLE_LOG"], "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
"""


def run(folder: Path, script: str, **environment: str) -> list[list[str]]:
    """The words that docker is given, one list a call."""
    (folder / "bin").mkdir(exist_ok=True)
    for name in ("docker", "vllm-router"):
        (folder / "bin" / name).write_text(DOUBLE)
        (folder / "bin" / name).chmod(0o755)
    log = folder / "log"
    log.unlink(missing_ok=True)
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": path, "HOME": "/home/you", "DOUBLE_LOG": str(log), **environment},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in log.read_text().splitlines()]


def words_after_image(call: list[str], deployment: Deployment) -> list[str]:
    assert deployment.image
    return call[call.index(deployment.image.tag) + 1 :]


def test_one_node_has_a_network_of_its_own_with_one_port_on_loopback(catalog: Catalog, tmp_path: Path) -> None:
    deployment = resolve(catalog, named(catalog, "b300_tp8"))
    (call,) = run(tmp_path, docker.render(catalog, deployment))
    assert call[call.index("--publish") + 1] == "127.0.0.1:8000:8000"
    assert "--network" not in call
    inside = words_after_image(call, deployment)
    assert inside[inside.index("--host") + 1] == "0.0.0.0"
    assert call[call.index("--gpus") + 1] == "all"
    assert "--ipc=host" in call
    assert "/home/you/.cache/huggingface:/root/.cache/huggingface" in call


def test_several_nodes_share_the_hosts_network(catalog: Catalog, tmp_path: Path) -> None:
    deployment = resolve(catalog, named(catalog, "gb300_tp8"))
    head, worker = run(tmp_path, docker.render(catalog, deployment), HEAD_IP="10.1.2.3")
    for call in (head, worker):
        assert call[call.index("--network") + 1] == "host"
        assert "--publish" not in call
        assert call[call.index("--master-addr") + 1] == "10.1.2.3"
    assert head[head.index("--host") + 1] == "127.0.0.1"
    assert worker[-1] == "--headless"


def test_an_address_that_is_not_set_stops_with_its_meaning(catalog: Catalog, tmp_path: Path) -> None:
    deployment = resolve(catalog, named(catalog, "gb300_tp8"))
    done = subprocess.run(
        ["bash", "-c", docker.render(catalog, deployment)], capture_output=True, text=True, check=False, env={}
    )
    assert done.returncode != 0
    assert "HEAD_IP: Address of the head, on the network between the nodes." in done.stderr


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        ("mi355x_tp8", ["--device=/dev/kfd", "--device=/dev/dri", "video", "seccomp=unconfined"]),
        ("gb300_pd", ["--device=/dev/infiniband", "--cap-add=IPC_LOCK", "memlock=-1"]),
    ],
)
def test_devices_by_vendor_and_for_rdma(catalog: Catalog, recipe: str, options: list[str]) -> None:
    text = docker.render(catalog, resolve(catalog, named(catalog, recipe)))
    assert all(option in text for option in options)


def test_a_token_is_passed_by_name_only(catalog: Catalog, tmp_path: Path) -> None:
    text = docker.render(catalog, resolve(catalog, named(catalog, "b300_tp8")))
    (call,) = run(tmp_path, text, HF_TOKEN="hf_secret")
    assert "HF_TOKEN" in call
    assert not [word for word in call if "hf_secret" in word]


def test_a_folder_with_the_model_is_mounted(catalog: Catalog, tmp_path: Path) -> None:
    deployment = resolve(catalog, named(catalog, "b300_tp8", model="/data/k3.1 pro"))
    (call,) = run(tmp_path, docker.render(catalog, deployment))
    assert "/data/k3.1 pro:/data/k3.1 pro:ro" in call


def test_without_an_image_the_way_out_is_named(catalog: Catalog) -> None:
    with pytest.raises(InputError, match=r"--image REGISTRY/NAME:TAG"):
        docker.render(catalog, resolve(catalog, named(catalog, "tpu_v7x_tep")))
    text = docker.render(catalog, resolve(catalog, named(catalog, "tpu_v7x_tep", image="mine:1")))
    assert "--privileged" in text


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(
        st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=30), max_size=5
    )
)
def test_any_value_survives(catalog: Catalog, tmp_path: Path, values: list[str]) -> None:
    origin = Origin(layer="test", why="Test.", basis="chosen")
    deployment = resolve(catalog, named(catalog, "b300_tp8"))
    arguments = tuple(
        Argument(flag=f"--x{index}", value=value, origins=(origin,)) for index, value in enumerate(values)
    )
    process = deployment.processes[0].model_copy(update={"arguments": arguments})
    changed = deployment.model_copy(update={"processes": (process,)})
    (call,) = run(tmp_path, docker.render(catalog, changed))
    assert words_after_image(call, changed) == list(process.argv[1:])
