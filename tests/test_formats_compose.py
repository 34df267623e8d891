"""Compose files: that they are valid, that containers are given what the deployment says, and what cannot be one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cookbook.catalog import Catalog, load
from cookbook.catalog.schema import ContainerEntry
from cookbook.deployment import Address, Argument, Deployment, Image, Origin, Process
from cookbook.errors import InputError
from cookbook.formats.compose import render
from cookbook.resolve import resolve
from cookbook.selection import Override, Selection, named

CATALOG = load()
IMAGE = "registry.example/vllm:tag"
ORIGIN = Origin(layer="test", why="Test.", basis="chosen")
SCHEMA = json.loads((Path(__file__).parent / "schemas" / "compose.json").read_text())

DEPLOYMENTS = {name: resolve(CATALOG, named(CATALOG, name, image=IMAGE)) for name in CATALOG.recipes}
SINGLE = [name for name, deployment in DEPLOYMENTS.items() if deployment.nodes == 1]
SEVERAL = [name for name in CATALOG.recipes if name not in SINGLE]

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
NASTY = st.sampled_from(
    ["$", "$$", "${HOME}", "$HOME", "${X:-y}", "$(x)", "yes", "y", "1e3", "a: b", "-", "\n", '"', "'"]
)
VALUES = st.one_of(TEXT, NASTY)


def rendered(deployment: Deployment, catalog: Catalog = CATALOG) -> dict[str, Any]:
    document = yaml.safe_load(render(catalog, deployment))
    assert isinstance(document, dict)
    return document


def service(deployment: Deployment, catalog: Catalog = CATALOG) -> dict[str, Any]:
    (only,) = rendered(deployment, catalog)["services"].values()
    assert isinstance(only, dict)
    return only


def interpolated(text: str) -> str:
    """What Compose makes of a value where no variable is set; it refuses a $ that stands before anything else."""

    def replace(match: re.Match[str]) -> str:
        assert match[0] != "$", f"invalid interpolation in {text!r}"
        return "$" if match[0] == "$$" else ""

    return re.sub(r"\$\$|\$\{[^}]*\}|\$[A-Za-z_][A-Za-z0-9_]*|\$", replace, text)


def words(found: dict[str, Any]) -> tuple[str, ...]:
    return tuple(interpolated(word) for word in found["entrypoint"] + found["command"])


def in_container(process: Process) -> tuple[str, ...]:
    return tuple("0.0.0.0" if word == "127.0.0.1" else word for word in process.argv)


@pytest.mark.parametrize("recipe", SINGLE)
def test_every_recipe_on_one_node_is_valid(recipe: str) -> None:
    deployment = DEPLOYMENTS[recipe]
    document = rendered(deployment)
    jsonschema.validate(document, SCHEMA)
    assert list(document["services"]) == [process.name for process in deployment.processes]
    assert render(CATALOG, deployment) == render(CATALOG, deployment)


@pytest.mark.parametrize("recipe", SINGLE)
def test_every_process_is_started_as_the_deployment_says(recipe: str) -> None:
    (process,) = DEPLOYMENTS[recipe].processes
    found = service(DEPLOYMENTS[recipe])
    assert words(found) == in_container(process)
    assert found["entrypoint"] == list(process.program)
    assert found["image"] == IMAGE
    assert found["ipc"] == "host"
    environment = {name: value for name, value in found["environment"].items() if name != "HF_TOKEN"}
    assert environment == {variable.name: variable.value for variable in process.environment}


@pytest.mark.parametrize("recipe", SINGLE)
def test_every_notice_is_in_the_text(recipe: str) -> None:
    lines = render(CATALOG, DEPLOYMENTS[recipe]).splitlines()
    for notice in DEPLOYMENTS[recipe].notices:
        assert f"# {notice.kind}: {notice.text}" in lines


@settings(deadline=None, max_examples=100)
@given(value=VALUES, variable=VALUES, inner=VALUES)
def test_every_value_survives(value: str, variable: str, inner: str) -> None:
    overrides = (
        Override(name="x", value=value),
        Override(name="x-json", value={"a": inner}),
        Override(name="X_VARIABLE", value=variable),
    )
    deployment = resolve(CATALOG, named(CATALOG, "b300_tp8", overrides=overrides))
    found = service(deployment)
    (process,) = deployment.processes
    host = process.argv.index("--host") + 1
    assert words(found) == (*process.argv[:host], "0.0.0.0", *process.argv[host + 1 :])
    assert interpolated(found["environment"]["X_VARIABLE"]) == variable


@settings(deadline=None, max_examples=40)
@given(text=VALUES)
def test_no_comment_can_be_broken_out_of(text: str) -> None:
    hostile = DEPLOYMENTS["b300_tp8"].model_copy(
        update={"title": f"{text}\nservices: {{}}", "image": Image(tag=text, origin=ORIGIN)}
    )
    assert interpolated(service(hostile)["image"]) == text


def test_the_token_is_named_and_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    text = render(CATALOG, DEPLOYMENTS["b300_tp8"])
    assert "hf_secret" not in text
    environment = yaml.safe_load(text)["services"]["engine-0"]["environment"]
    assert environment["HF_TOKEN"] is None


def test_the_server_is_published_on_loopback_only() -> None:
    deployment = resolve(CATALOG, named(CATALOG, "b300_tp8", overrides=(Override(name="port", value="9000"),)))
    found = service(deployment)
    assert found["ports"] == ["127.0.0.1:9000:9000"]
    assert found["command"][found["command"].index("--host") + 1] == "0.0.0.0"
    assert found["healthcheck"]["test"][-1] == "http://127.0.0.1:9000/health"


@pytest.mark.parametrize(("timeout", "period"), [(None, "3600s"), ("900", "900s")])
def test_a_server_may_take_as_long_as_its_engine(timeout: str | None, period: str) -> None:
    overrides = (Override(name="VLLM_ENGINE_READY_TIMEOUT_S", value=timeout),) if timeout else ()
    found = service(resolve(CATALOG, named(CATALOG, "b300_tp8", overrides=overrides)))
    assert found["healthcheck"]["start_period"] == period


def test_the_cache_is_the_hosts() -> None:
    assert service(DEPLOYMENTS["b300_tp8"])["volumes"] == ["~/.cache/huggingface:/root/.cache/huggingface"]


def test_the_devices_are_the_vendors() -> None:
    nvidia, amd = (service(DEPLOYMENTS[name]) for name in ("b300_tp8", "mi355x_tp8"))
    (devices,) = nvidia["deploy"]["resources"]["reservations"]["devices"]
    assert devices == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert amd["devices"] == ["/dev/kfd", "/dev/dri"]
    assert (amd["group_add"], amd["security_opt"]) == (["video"], ["seccomp=unconfined"])


def with_vendor(container: ContainerEntry | None) -> Catalog:
    nvidia = CATALOG.vendors["nvidia"].model_copy(update={"container": container})
    return CATALOG.model_copy(update={"vendors": CATALOG.vendors | {"nvidia": nvidia}})


def test_what_a_vendor_adds_is_joined_to_what_is_there() -> None:
    compose = {"volumes": ["/opt/driver:/opt/driver"], "environment": {"DEVICES": "all"}, "privileged": True}
    catalog = with_vendor(ContainerEntry(docker=(), compose=compose, why="Test.", basis="chosen"))
    found = service(DEPLOYMENTS["b300_tp8"], catalog)
    assert len(found["volumes"]) == 2
    assert found["environment"]["DEVICES"] == "all"
    assert found["environment"]["VLLM_ENGINE_READY_TIMEOUT_S"] == "3600"
    assert found["privileged"] is True


def test_devices_that_no_source_describes_are_said_to_be_missing() -> None:
    text = render(with_vendor(None), DEPLOYMENTS["b300_tp8"])
    assert "No source says how a container is given the devices of NVIDIA" in text


def test_processes_on_one_node_find_each_other_by_name() -> None:
    plain = DEPLOYMENTS["b300_tp8"]
    url = Argument(flag="--prefill", value="http://${HEAD_IP}:8000", origins=(ORIGIN,), variables=("HEAD_IP",))
    router = Process(
        name="router-0",
        role="router",
        node=0,
        program=("vllm-router",),
        arguments=(url,),
        environment=(),
        host="127.0.0.1",
        port=8080,
        devices=0,
    )
    address = Address(name="HEAD_IP", node=0, meaning="The node.")
    both = plain.model_copy(update={"processes": (*plain.processes, router), "addresses": (address,)})
    found = rendered(both)["services"]
    jsonschema.validate(rendered(both), SCHEMA)
    assert found["router-0"]["command"] == ["--prefill", "http://engine-0:8000"]
    assert "deploy" not in found["router-0"]


def test_a_folder_has_to_be_mounted() -> None:
    deployment = resolve(CATALOG, named(CATALOG, "b300_tp8", model="/models/k31"))
    assert "Mount the folder /models/k31" in render(CATALOG, deployment)


@pytest.mark.parametrize("recipe", SEVERAL)
def test_several_nodes_are_for_other_formats(recipe: str) -> None:
    with pytest.raises(InputError, match=rf"{recipe} takes \d nodes.*slurm or kubernetes"):
        render(CATALOG, DEPLOYMENTS[recipe])


def test_without_an_image_the_way_out_is_named() -> None:
    strategy = next(iter(CATALOG.hardware["cpu"].strategies))
    deployment = resolve(CATALOG, Selection(hardware="cpu", strategy=strategy))
    with pytest.raises(InputError, match=r"CPU.*--image REGISTRY/NAME:TAG"):
        render(CATALOG, deployment)
