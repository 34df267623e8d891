"""Kubernetes manifests: that they are valid, that pods are given what the deployment says, and who reaches whom."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cookbook.capacity import offload_bytes_per_device
from cookbook.catalog import Catalog, load
from cookbook.deployment import Argument, Deployment, EnvVar, Image, Origin, Process
from cookbook.errors import CatalogError, InputError
from cookbook.formats.kubernetes import render, resource_name
from cookbook.resolve import resolve
from cookbook.selection import Override, Selection, named

CATALOG = load()
IMAGE = "registry.example/vllm:tag"
ORIGIN = Origin(layer="test", why="Test.", basis="chosen")
SCHEMA = json.loads((Path(__file__).parent / "schemas" / "leaderworkerset.json").read_text())
SET, INDEX = "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/worker-index"
LOOPBACK = "127.0.0.1"

KNOWN = [
    name
    for name, recipe in CATALOG.recipes.items()
    if CATALOG.vendors[CATALOG.hardware[recipe.hardware].vendor].kubernetes
]

# A process has no word with a NUL, and no word with a lone surrogate.
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
NASTY = st.sampled_from(
    [
        "$(POD_IP)", "$$(POD_IP)", "$(", "$", "$$", "$$$(X)", "${HEAD_IP}", "${X}", "$X", "$((1+1))", "'", '"', "\\",
        "\n", "a\nb", " a ", "a: b", ": ", "#", "a #b", "-", "- a", "--x", "---", "...", "yes", "y", "No", "on", "1e3",
        "1.5", "0x1F", "0o17", "1_000", "12:30", "2026-01-01", "null", "~", ".inf", "NaN", "<<", "=", "!x", "&a", "*a",
        "{a: b}", "[a]", "%", "@", "`id`", "|", ">", "é\u2028\x85\ufeff", "\t", "\x7f", "\x1b[0m", "\U0001f600", "",
    ]
)  # fmt: skip
VALUES = st.one_of(TEXT, NASTY)


def deployed(recipe: str, catalog: Catalog = CATALOG, **changes: object) -> Deployment:
    entry = catalog.recipes[recipe]
    if catalog.hardware[entry.hardware].image.tag is None:
        changes = {"image": IMAGE} | changes
    return resolve(catalog, named(catalog, recipe, **changes))


def documents(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def rendered(deployment: Deployment, catalog: Catalog = CATALOG) -> list[dict[str, Any]]:
    return documents(render(catalog, deployment))


def of_kind(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in found if document["kind"] == kind]


def templates(document: dict[str, Any]) -> list[dict[str, Any]]:
    if document["kind"] == "Deployment":
        return [document["spec"]["template"]]
    both = document["spec"]["leaderWorkerTemplate"]
    return [both[name] for name in ("leaderTemplate", "workerTemplate") if name in both]


class Pod:
    """One pod as the controllers make it."""

    def __init__(self, process: Process, template: dict[str, Any], labels: dict[str, str], host: str) -> None:
        self.process = process
        self.spec = template["spec"]
        (self.container,) = self.spec["containers"]
        self.labels = template["metadata"]["labels"] | labels
        self.host = host


def pods(deployment: Deployment) -> list[Pod]:
    """Every pod, in the order of the processes, with labels and DNS name as LeaderWorkerSet gives them."""
    found = {
        document["metadata"]["labels"]["app.kubernetes.io/component"]: document
        for document in rendered(deployment)
        if document["kind"] in {"LeaderWorkerSet", "Deployment"}
    }
    made = []
    for process in deployment.processes:
        document = found[process.role]
        name = document["metadata"]["name"]
        if document["kind"] == "Deployment":
            made.append(Pod(process, document["spec"]["template"], {}, ""))
            continue
        both = document["spec"]["leaderWorkerTemplate"]
        template = both["workerTemplate"] if process.rank else both.get("leaderTemplate", both["workerTemplate"])
        labels = {SET: name, "leaderworkerset.sigs.k8s.io/group-index": "0", INDEX: str(process.rank)}
        pod_name = f"{name}-0-{process.rank}" if process.rank else f"{name}-0"
        made.append(Pod(process, template, labels, f"{pod_name}.{name}"))
    return made


def expanded(text: str, variables: dict[str, str]) -> str:
    """What Kubernetes makes of a word: $$ is $, $(NAME) is a variable's value, or stays where there is no such."""
    result, at = "", 0
    while at < len(text):
        following = text[at + 1 : at + 2]
        closing = text.find(")", at) if following == "(" else -1
        if text[at] == "$" and following == "$":
            result, at = result + "$", at + 2
        elif text[at] == "$" and closing > 0:
            name = text[at + 2 : closing]
            result, at = result + variables.get(name, f"$({name})"), closing + 1
        else:
            result, at = result + text[at], at + 1
    return result


def started(pod: Pod, ip: str, leader: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """What the pod's process is given: its words and its variables."""
    environment = {"LWS_LEADER_ADDRESS": leader, "LWS_GROUP_SIZE": "9", "LWS_WORKER_INDEX": str(pod.process.rank)}
    for entry in pod.container["env"]:
        if "value" in entry:
            environment[entry["name"]] = expanded(entry["value"], environment)
        elif "fieldRef" in entry["valueFrom"]:
            assert entry["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
            environment[entry["name"]] = ip
    words = [expanded(word, environment) for word in pod.container["command"] + pod.container["args"]]
    if words[0] == "sh":
        # A real shell, that starts a program which shows its words.
        show = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))"]
        ran = subprocess.run(
            [*words[:4], *show, *words[4:]],
            env={"LWS_WORKER_INDEX": str(pod.process.rank)},
            capture_output=True,
            check=True,
            timeout=30,
        )
        words = json.loads(ran.stdout)
    return tuple(words), environment


def expected(deployment: Deployment, pod: Pod, hosts: dict[int, str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """The words and variables of the deployment, with the addresses as `pod` knows them."""
    process = pod.process

    def spell(text: str, names: tuple[str, ...]) -> str:
        for address in deployment.addresses:
            if address.name in names:
                text = text.replace(f"${{{address.name}}}", f"<{hosts[address.node]} for {process.name}>")
        return text

    words = list(process.program)
    for argument in process.arguments:
        values = [spell(word, argument.variables) for word in argument.words()]
        if argument.flag == "--host" and argument.value == LOOPBACK:
            values[1] = f"<{hosts[process.node]} for {process.name}>" if process.role != "router" else "<router>"
        words += values
    flag = "--data-parallel-start-rank"
    if process.rank and flag in words:
        # The shell puts it last.
        at = words.index(flag)
        words = words[:at] + words[at + 2 :] + words[at : at + 2]
    return tuple(words), {v.name: spell(v.value, v.variables) for v in process.environment}


def assert_survives(deployment: Deployment) -> None:
    everything = pods(deployment)
    hosts = {pod.process.node: pod.host for pod in everything if pod.host}
    for pod in everything:
        same = [other for other in everything if other.process.role == pod.process.role]
        ip = f"<{pod.host} for {pod.process.name}>" if pod.host else "<router>"
        leader = f"<{same[0].host} for {pod.process.name}>"
        words, environment = started(pod, ip, leader)
        wanted_words, wanted_environment = expected(deployment, pod, hosts)
        # Pods of another role are known by their DNS names.
        others = [other.host for other in everything if other.process.role != pod.process.role]
        for host in others:
            wanted_words = tuple(word.replace(f"<{host} for {pod.process.name}>", host) for word in wanted_words)
        assert words == wanted_words
        assert {name: environment[name] for name in wanted_environment} == wanted_environment


# Validity


@pytest.mark.parametrize("recipe", KNOWN)
def test_every_recipe_is_valid(recipe: str) -> None:
    found = rendered(deployed(recipe))
    assert {document["kind"] for document in found} <= {"LeaderWorkerSet", "Service", "Deployment"}
    for document in found:
        if document["kind"] != "LeaderWorkerSet":
            kubernetes_validate.validate(document, "1.37", strict=True)
            continue
        jsonschema.validate(document, SCHEMA)
        for template in templates(document):
            pod = {"apiVersion": "v1", "kind": "Pod", **template}
            kubernetes_validate.validate(pod, "1.37", strict=True)


def test_the_schema_refuses_what_the_api_does_not_know() -> None:
    (document,) = of_kind(rendered(deployed("b300_tp8")), "LeaderWorkerSet")
    document["spec"]["leaderWorkerTemplate"]["restart"] = "None"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)


def test_a_wrong_field_of_a_pod_is_refused() -> None:
    (document,) = of_kind(rendered(deployed("b300_tp8")), "LeaderWorkerSet")
    (template,) = templates(document)
    template["spec"]["containers"][0]["cmd"] = ["vllm"]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", **template}, "1.37", strict=True)


@pytest.mark.parametrize("recipe", KNOWN)
def test_the_same_deployment_gives_the_same_text(recipe: str) -> None:
    deployment = deployed(recipe)
    copy = Deployment.model_validate_json(deployment.model_dump_json())
    assert render(CATALOG, copy) == render(CATALOG, deployment)
    assert "&id" not in render(CATALOG, deployment)


@pytest.mark.parametrize("recipe", KNOWN)
def test_every_notice_is_in_the_text(recipe: str) -> None:
    deployment = deployed(recipe)
    text = render(CATALOG, deployment)
    for notice in deployment.notices:
        assert f"# {notice.kind}: {notice.text}" in text.splitlines()


def test_the_preview_is_called_one() -> None:
    assert "# preview: VR200 is a preview." in render(CATALOG, deployed("vr200_tp8"))


def test_how_to_use_it_stands_at_the_top() -> None:
    head = render(CATALOG, deployed("b300_tp8")).split("---\n")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    for words in (
        "kubectl apply",
        "LeaderWorkerSet",
        "hf-token",
        "model-cache",
        "ReadWriteMany",
        "1.56 TB",
        "NetworkPolicy",
    ):
        assert words in head
    assert "http://b300-tp8:8000/v1" in head


# What a pod is given


@pytest.mark.parametrize("recipe", KNOWN)
def test_every_process_is_started_as_the_deployment_says(recipe: str) -> None:
    assert_survives(deployed(recipe))


@settings(deadline=None, max_examples=60)
@given(values=st.lists(VALUES, max_size=4), variable=VALUES, recipe=st.sampled_from(["b300_tp8", "gb300_tp8"]))
def test_every_value_survives(values: list[str], variable: str, recipe: str) -> None:
    overrides = [Override(name=f"x-{number}", value=value) for number, value in enumerate(values)]
    overrides.append(Override(name="X_VARIABLE", value=variable))
    assert_survives(deployed(recipe, overrides=tuple(overrides)))


@settings(deadline=None, max_examples=8)
@given(value=VALUES)
def test_every_value_survives_the_shell_of_a_worker(value: str) -> None:
    """The workers of the decode pool are the ones that a shell starts."""
    overrides = (Override(name="x", value=value, role="decode"), Override(name="y", value={"a": value}, role="decode"))
    assert_survives(deployed("gb300_pd", overrides=overrides))


@settings(deadline=None, max_examples=40)
@given(text=VALUES)
def test_no_comment_can_be_broken_out_of(text: str) -> None:
    plain = deployed("b300_tp8")
    hostile = plain.model_copy(
        update={"title": f"{text}\nkind: Pod\n---\n{text}", "image": Image(tag=text, origin=ORIGIN)}
    )
    found = rendered(hostile)
    assert [document["kind"] for document in found] == ["LeaderWorkerSet", "Service"]
    (template,) = templates(found[0])
    assert template["spec"]["containers"][0]["image"] == text


@pytest.mark.parametrize("text", ["1e3", "y", "0o17", "1_000", "yes", "12:30", "=", "~", ".inf", "0x1F"])
def test_text_is_quoted_for_every_yaml_reader(text: str) -> None:
    """Kubernetes' reader takes 1e3 for a number and y for true, where PyYAML does not."""
    lines = render(CATALOG, deployed("b300_tp8", overrides=(Override(name="x", value=text),))).splitlines()
    assert lines[lines.index("          - --x") + 1].strip() == f"- '{text}'"


def test_own_variables_stand_before_those_that_use_them() -> None:
    for pod in pods(deployed("gb300_pd")):
        assert pod.container["env"][0]["name"] == "POD_IP"


def test_the_token_comes_from_a_secret_that_may_be_missing() -> None:
    (pod,) = pods(deployed("b300_tp8"))
    secret = {"secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}}
    assert {"name": "HF_TOKEN", "valueFrom": secret} in pod.container["env"]


def test_no_pod_is_given_other_services_addresses_or_a_token_of_the_cluster() -> None:
    for pod in pods(deployed("gb300_pd")):
        assert pod.spec["enableServiceLinks"] is False
        assert pod.spec["automountServiceAccountToken"] is False


def test_workers_find_their_rank_and_their_leader() -> None:
    worker = pods(deployed("gb300_tp8"))[1]
    args = worker.container["args"]
    assert args[args.index("--node-rank") + 1] == "$(LWS_WORKER_INDEX)"
    assert args[args.index("--master-addr") + 1] == "$(LWS_LEADER_ADDRESS)"
    assert "--host" not in args
    assert worker.container["command"][0] == "vllm"


def test_a_shell_is_there_only_for_what_has_to_be_computed() -> None:
    shells = [pod.process.name for pod in pods(deployed("gb300_pd")) if pod.container["command"][0] == "sh"]
    assert shells == ["decode-1", "decode-2", "decode-3"]


def test_a_start_rank_that_does_not_follow_the_node_stays_as_it_is() -> None:
    overrides = (Override(name="data-parallel-start-rank", value="0", role="decode"),)
    assert not [pod for pod in pods(deployed("gb300_pd", overrides=overrides)) if pod.container["command"][0] == "sh"]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_group_has_as_many_pods_as_the_role_has_nodes(size: int) -> None:
    recipe = {1: "b300_tp8", 2: "gb300_tp8", 4: "tpu_v7x_tep"}[size]
    (document,) = of_kind(rendered(deployed(recipe)), "LeaderWorkerSet")
    both = document["spec"]["leaderWorkerTemplate"]
    assert (document["spec"]["replicas"], both["size"], both["restartPolicy"]) == (1, size, "RecreateGroupOnPodRestart")
    assert ("leaderTemplate" in both) == (size > 1)
    assert len(pods(deployed(recipe))) == size


def test_more_nodes_are_more_workers_of_the_same_template() -> None:
    deployment = deployed("gb300_tp8", nodes=3)
    (document,) = of_kind(rendered(deployment), "LeaderWorkerSet")
    assert document["spec"]["leaderWorkerTemplate"]["size"] == 3
    assert_survives(deployment)


def test_workers_that_differ_in_more_than_their_rank_are_refused() -> None:
    plain = deployed("tpu_v7x_tep")
    extra = Argument(flag="--extra", origins=(ORIGIN,))
    processes = tuple(
        process.model_copy(update={"arguments": (*process.arguments, extra)}) if process.rank == 2 else process
        for process in plain.processes
    )
    with pytest.raises(CatalogError, match=r"multi_node_tep\.roles\.engine.*more than their rank"):
        render(CATALOG, plain.model_copy(update={"processes": processes}))


# Devices, memory and where the pods run


DEVICES = [
    ("b300_tp8", "nvidia.com/gpu", 8),
    ("gb300_tp8", "nvidia.com/gpu", 4),
    ("mi355x_tp8", "amd.com/gpu", 8),
    ("tpu_v7x_tep", "google.com/tpu", 4),
]


@pytest.mark.parametrize(("recipe", "resource", "count"), DEVICES)
def test_every_pod_asks_for_its_devices(recipe: str, resource: str, count: int) -> None:
    for pod in pods(deployed(recipe)):
        assert pod.container["resources"] == {"limits": {resource: count}, "requests": {resource: count}}
        assert pod.spec["nodeSelector"] == CATALOG.hardware[CATALOG.recipes[recipe].hardware].kubernetes.labels  # type: ignore[union-attr]


def test_tpu_nodes_are_selected_by_both_labels() -> None:
    for pod in pods(deployed("tpu_v7x_tep")):
        assert pod.spec["nodeSelector"] == {
            "cloud.google.com/gke-tpu-accelerator": "tpu7x",
            "cloud.google.com/gke-tpu-topology": "2x2x4",
        }


@pytest.mark.parametrize(
    ("recipe", "label"),
    [("b300_tp8", None), ("gb300_tp8", "nvidia.com/gpu.clique"), ("tpu_v7x_tep", "cloud.google.com/gke-nodepool")],
)
def test_the_pods_of_a_group_are_kept_together(recipe: str, label: str | None) -> None:
    text = render(CATALOG, deployed(recipe))
    for pod in pods(deployed(recipe)):
        terms = pod.spec.get("affinity", {}).get("podAffinity", {})
        term = {"labelSelector": {"matchLabels": {SET: pod.labels[SET]}}, "topologyKey": label}
        assert terms == ({"requiredDuringSchedulingIgnoredDuringExecution": [term]} if label else {})
    assert ("IMEX" in text) == (label == "nvidia.com/gpu.clique")


def test_more_nodes_than_an_nvlink_domain_has_are_not_kept_in_one() -> None:
    assert all("affinity" not in pod.spec for pod in pods(deployed("gb300_tp8", nodes=24)))


def test_both_pools_fit_one_nvlink_domain() -> None:
    """LeaderWorkerSet's own annotation would drive them apart."""
    assert all("annotations" not in document["metadata"] for document in rendered(deployed("gb300_pd")))


@pytest.mark.parametrize(
    ("recipe", "security"),
    [
        ("b300_tp8", None),
        ("mi355x_tp8", None),
        ("tpu_v7x_tep", {"privileged": True}),
        ("gb300_pd", {"capabilities": {"add": ["IPC_LOCK"]}}),
    ],
)
def test_no_pod_has_more_rights_than_it_needs(recipe: str, security: dict[str, Any] | None) -> None:
    for pod in pods(deployed(recipe)):
        assert pod.container.get("securityContext") == (None if pod.process.role == "router" else security)


@pytest.mark.parametrize("recipe", ["b300_kv_offload", "gb300_pd_kv_offload"])
def test_offload_asks_for_the_memory_that_it_pins(recipe: str) -> None:
    asked = 0
    for pod in pods(deployed(recipe)):
        pinned = offload_bytes_per_device(pod.process) * pod.process.devices
        requests = pod.container.get("resources", {}).get("requests", {})
        assert ("memory" in requests) == (pinned > 0)
        if pinned:
            asked += 1
            assert int(requests["memory"].removesuffix("Gi")) * 2**30 > pinned
    assert asked == (1 if recipe == "b300_kv_offload" else 2)
    assert "KV offload pins" in render(CATALOG, deployed(recipe))


@pytest.mark.parametrize(("recipe", "size"), [("b300_tp8", "64Gi"), ("tpu_v7x_tep", "128Gi")])
def test_shared_memory_and_the_cache_are_mounted(recipe: str, size: str) -> None:
    for pod in pods(deployed(recipe)):
        volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
        mounts = {mount["name"]: mount["mountPath"] for mount in pod.container["volumeMounts"]}
        assert mounts == {"shm": "/dev/shm", "model-cache": "/root/.cache/huggingface"}
        assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": size}
        assert volumes["model-cache"]["persistentVolumeClaim"] == {"claimName": "model-cache"}


# Who reaches whom


@pytest.mark.parametrize("recipe", KNOWN)
def test_probes_are_exactly_on_what_serves(recipe: str) -> None:
    for pod in pods(deployed(recipe)):
        probes = {name for name in pod.container if name.endswith("Probe")}
        assert probes == ({"startupProbe", "readinessProbe", "livenessProbe"} if pod.process.serves else set())
        for probe in probes:
            assert pod.container[probe]["httpGet"] == {"path": "/health", "port": "http"}
        ports = [{"name": "http", "containerPort": pod.process.port}] if pod.process.serves else None
        assert pod.container.get("ports") == ports


@pytest.mark.parametrize(
    ("recipe", "timeout", "seconds"),
    [("b300_tp8", None, 3600), ("tpu_v7x_tep", None, 14400), ("b300_tp8", "95", 100), ("b300_tp8", "soon", 3600)],
)
def test_a_server_may_take_as_long_as_its_engine(recipe: str, timeout: str | None, seconds: int) -> None:
    overrides = (Override(name="VLLM_ENGINE_READY_TIMEOUT_S", value=timeout),) if timeout else ()
    probe = pods(deployed(recipe, overrides=overrides))[0].container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == seconds


@pytest.mark.parametrize("recipe", KNOWN)
def test_services_select_exactly_the_pods_that_serve(recipe: str) -> None:
    deployment = deployed(recipe)
    everything = pods(deployment)
    services = of_kind(rendered(deployment), "Service")
    assert len(services) == len({process.role for process in deployment.processes})
    for service in services:
        role = service["metadata"]["labels"]["app.kubernetes.io/component"]
        selector = service["spec"]["selector"].items()
        selected = {pod.process.name for pod in everything if selector <= pod.labels.items()}
        assert selected == {p.name for p in deployment.processes if p.role == role and p.serves}


@pytest.mark.parametrize("recipe", KNOWN)
def test_clients_find_the_entry_role_on_port_8000(recipe: str) -> None:
    deployment = deployed(recipe)
    found = rendered(deployment)
    (client,) = [s for s in of_kind(found, "Service") if s["metadata"]["name"] == resource_name(recipe)]
    entry = CATALOG.strategies[deployment.strategy].entry
    assert client["metadata"]["labels"]["app.kubernetes.io/component"] == entry
    assert client["spec"]["type"] == "ClusterIP"
    assert client["spec"]["ports"] == [{"name": "http", "port": 8000, "targetPort": "http"}]
    # LeaderWorkerSet makes a headless service with the set's name.
    sets = {document["metadata"]["name"] for document in of_kind(found, "LeaderWorkerSet")}
    assert not sets & {document["metadata"]["name"] for document in of_kind(found, "Service")}


def test_another_port_of_the_server_changes_nothing_for_clients() -> None:
    deployment = deployed("b300_tp8", overrides=(Override(name="port", value="9000"),))
    (pod,) = pods(deployment)
    (service,) = of_kind(rendered(deployment), "Service")
    assert pod.container["ports"] == [{"name": "http", "containerPort": 9000}]
    assert service["spec"]["ports"] == [{"name": "http", "port": 8000, "targetPort": "http"}]


def test_the_router_reaches_every_server_of_both_pools() -> None:
    everything = pods(deployed("gb300_pd"))
    args = everything[-1].container["args"]
    urls = {flag: [args[at + 1] for at, word in enumerate(args) if word == flag] for flag in ("--prefill", "--decode")}
    for role, port in (("prefill", 8001), ("decode", 8002)):
        serving = [pod for pod in everything if pod.process.role == role and pod.process.serves]
        assert urls[f"--{role}"] == [f"http://{pod.host}:{port}" for pod in serving]
    assert len(urls["--decode"]) == 4


def test_the_router_is_a_deployment_with_the_engines_image_and_no_devices() -> None:
    (document,) = of_kind(rendered(deployed("gb300_pd")), "Deployment")
    (template,) = templates(document)
    (container,) = template["spec"]["containers"]
    assert document["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    assert (container["command"], container["image"]) == (["vllm-router"], "vllm/vllm-openai:kimi-k31")
    assert "resources" not in container


def test_what_serves_listens_on_its_pods_address() -> None:
    for recipe in ("b300_tp8", "gb300_tp8", "gb300_pd"):
        for pod in pods(deployed(recipe)):
            args = pod.container["args"]
            hosts = [args[at + 1] for at, word in enumerate(args) if word == "--host"]
            assert hosts == (["$(POD_IP)"] if pod.process.serves else [])


# Names


@pytest.mark.parametrize("recipe", KNOWN)
def test_names_are_dns_labels(recipe: str) -> None:
    for document in rendered(deployed(recipe)):
        name = document["metadata"]["name"]
        assert name.startswith(recipe.replace("_", "-"))
        assert document["metadata"]["labels"]["app.kubernetes.io/part-of"] == "kimi-k31-cookbook"


@given(text=st.text(max_size=80))
def test_any_name_becomes_a_dns_label(text: str) -> None:
    name = resource_name(text)
    assert 1 <= len(name) <= 40
    jsonschema.validate(name, {"pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"})


def test_long_names_stay_apart() -> None:
    one, other = (resource_name(f"b300_single_node_tp_tool_calling_reasoning_{end}") for end in ("dcp", "kv_offload"))
    assert one != other


# What cannot be rendered


def test_without_an_image_the_way_out_is_named() -> None:
    with pytest.raises(InputError, match=r"Google TPU v7x.*--image REGISTRY/NAME:TAG"):
        render(CATALOG, resolve(CATALOG, named(CATALOG, "tpu_v7x_tep")))


@pytest.mark.parametrize("recipe", ["ppu_810e_tp32", "ppu_m890_dep32"])
def test_a_resource_that_no_source_names_is_not_made_up(recipe: str) -> None:
    with pytest.raises(InputError, match=r"(?s)No source names the Kubernetes resource.*--catalog DIR.*vendors\.yaml"):
        render(CATALOG, deployed(recipe))


def test_an_overlay_can_name_the_resource(tmp_path: Path) -> None:
    (tmp_path / "vendors.yaml").write_text(
        "thead: {kubernetes: {name: example.com/ppu, why: My cluster's plugin., basis: chosen}}\n"
    )
    catalog = load(overlay=tmp_path)
    deployment = deployed("ppu_m890_dep32", catalog)
    text = render(catalog, deployment)
    (document,) = of_kind(documents(text), "LeaderWorkerSet")
    leader, worker = templates(document)
    for template in (leader, worker):
        (container,) = template["spec"]["containers"]
        assert container["resources"]["limits"] == {"example.com/ppu": 8}
        assert container["securityContext"] == {"privileged": True}
        assert "nodeSelector" not in template["spec"]
    assert worker["spec"]["containers"][0]["command"][0] == "sh"
    assert "add a nodeSelector" in text


def test_a_cpu_is_for_rehearsals() -> None:
    strategy = next(iter(CATALOG.hardware["cpu"].strategies))
    deployment = resolve(CATALOG, Selection(hardware="cpu", strategy=strategy, image=IMAGE))
    with pytest.raises(InputError, match=r"for rehearsals.*cookbook run RECIPE --on cpu"):
        render(CATALOG, deployment)


@pytest.mark.parametrize("name", ["POD_IP", "LWS_WORKER_INDEX"])
def test_a_variable_of_the_pod_cannot_be_overridden(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is set in every pod"):
        render(CATALOG, deployed("b300_tp8", overrides=(Override(name=name, value="1"),)))


def test_a_folder_has_to_be_mounted() -> None:
    assert "The folder /models/k31" in render(CATALOG, deployed("b300_tp8", model="/models/k31"))


def test_an_address_in_a_variable_is_known_before_it_is_used() -> None:
    plain = deployed("gb300_tp8")
    variable = EnvVar(name="HEAD", value="at ${HEAD_IP}, ${OTHER} and $(POD_IP)", origin=ORIGIN, variables=("HEAD_IP",))
    processes = tuple(p.model_copy(update={"environment": (variable, *p.environment)}) for p in plain.processes)
    assert_survives(plain.model_copy(update={"processes": processes}))
