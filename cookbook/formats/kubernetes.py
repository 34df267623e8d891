"""A deployment as Kubernetes manifests: one LeaderWorkerSet for each role, a Deployment for the router, and Services.

LeaderWorkerSet starts the pods of a role as one group. With a set called NAME and one group, the leader is the pod
NAME-0 and worker number i is NAME-0-i; both have a DNS name under the headless service NAME, which the controller
makes itself. It tells every container the leader's address and the pod's own number as variables, so one template
serves all workers.

Kubernetes replaces $(NAME) in commands and variables, and $$ by $. An address of the deployment becomes such a variable
or a DNS name, and every other $ is doubled: what a process is given is what the deployment says.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from cookbook.capacity import GIB, offload_bytes_per_device
from cookbook.catalog import Catalog
from cookbook.catalog.schema import HardwareEntry, VendorEntry
from cookbook.commands import LOOPBACK
from cookbook.deployment import Argument, Deployment, Process, Role
from cookbook.errors import CatalogError, InputError
from cookbook.formats.docker import CACHE, image_of
from cookbook.formats.words import comment, container_command, header, unsure, variable_value

__all__ = ["dump", "lines_of", "ready_timeout", "render", "resource_name"]

Document = dict[str, Any]

PART_OF = "kimi-k31-cookbook"
CLIENT_PORT = 8000
READY_TIMEOUT_S = 3600
PROBE_PERIOD_S = 10
SHM_GIB = 64
TPU_SHM_GIB = 128
HOST_MARGIN_GIB = 128
"""Host memory beside KV offload: shared memory, and the engine's processes."""

POD_IP = "POD_IP"
LEADER = "LWS_LEADER_ADDRESS"
INDEX = "LWS_WORKER_INDEX"
GIVEN = (POD_IP, LEADER, INDEX)
RESERVED = (*GIVEN, "LWS_GROUP_SIZE", "HF_TOKEN")
SET_LABEL = "leaderworkerset.sigs.k8s.io/name"
INDEX_LABEL = "leaderworkerset.sigs.k8s.io/worker-index"
EXCLUSIVE = "leaderworkerset.sigs.k8s.io/exclusive-topology"
NVLINK_LABEL = "nvidia.com/gpu.clique"
TPU_TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-topology"
TPU_POOL_LABEL = "cloud.google.com/gke-nodepool"

START_RANK = "--data-parallel-start-rank"
NODE_RANK = "--node-rank"
MARK = "\0"
"""Stands around what was filled in, as no word of a command can hold it."""

# Words that some YAML reader takes for something other than text.
PLAIN = re.compile(r"(?:--)?[A-Za-z/][A-Za-z0-9_./:@=-]*(?<!:)")
NOT_TEXT = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})


@dataclass(frozen=True)
class _Plan:
    """What every part of the manifests needs."""

    deployment: Deployment
    hardware: HardwareEntry
    vendor: VendorEntry
    resource: str
    image: str
    name: str
    entry: Role
    roles: Mapping[Role, tuple[Process, ...]]
    owners: Mapping[str, Process]


def render(catalog: Catalog, deployment: Deployment) -> str:
    """Manifests for `kubectl apply`, as YAML with one document an object.

    Args:
        catalog: The catalog that the deployment was resolved from.
        deployment: Of any number of nodes.

    Returns:
        The text. It begins with comments: the notices, what the cluster has to have, and how clients reach the server.

    Raises:
        InputError: There is no image, no source names the vendor's resource, or an override sets a variable that the
            pods need themselves.
        CatalogError: The workers of a role differ in more than their rank.
    """
    plan = _plan(catalog, deployment)
    lines = [*header(deployment), "#", *_instructions(catalog, plan)]
    for role, processes in plan.roles.items():
        documents = _router(plan, processes[0]) if role == "router" else _group(plan, role, processes)
        for comments, document in documents:
            lines += ["---", *comments, dump(document).rstrip("\n")]
    return lines_of(lines)


def resource_name(recipe: str) -> str:
    """A name for resources: a DNS label of at most 40 characters that begins with a letter, unique for each recipe."""
    name = re.sub(r"[^a-z0-9]+", "-", recipe.lower()).strip("-")
    if not name[:1].isalpha():
        name = f"kimi-{name}".strip("-")
    if len(name) <= 40:
        return name
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:8]
    return f"{name[:31].strip('-')}-{digest}"


def ready_timeout(process: Process) -> int:
    """Seconds that a server may take to start: those that it gives its engine, or an hour."""
    text = next((v.value for v in process.environment if v.name == "VLLM_ENGINE_READY_TIMEOUT_S"), "")
    return int(text) if text.isdecimal() and int(text) > 0 else READY_TIMEOUT_S


def dump(document: Document) -> str:
    """One YAML document without anchors. Text that any YAML reader could take for something else is quoted."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=sys.maxsize, allow_unicode=True)


def lines_of(lines: list[str]) -> str:
    """Lines as text. YAML forbids control characters even in comments, so they are left out there."""
    return "".join(f"{''.join(filter(str.isprintable, line)) if line.startswith('#') else line}\n" for line in lines)


class _Dumper(yaml.SafeDumper):
    """Writes the same object twice rather than once with an anchor."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # PyYAML's name for it
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # Kubernetes and Compose read YAML with other rules than PyYAML: 1e3 is a number there, and y is true.
    plain = PLAIN.fullmatch(text) and text.lower() not in NOT_TEXT
    style = None if plain else "'" if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _plan(catalog: Catalog, deployment: Deployment) -> _Plan:
    hardware = catalog.hardware[deployment.hardware]
    vendor = catalog.vendors[hardware.vendor]
    if vendor.kubernetes is None:
        raise _no_resource(deployment, hardware, vendor)
    for process in deployment.processes:
        for variable in process.environment:
            if variable.name in RESERVED:
                raise InputError(
                    f"{variable.name} is set in every pod, and the deployment sets it too.", "Take that override out."
                )
    roles: dict[Role, tuple[Process, ...]] = {}
    for process in deployment.processes:
        roles[process.role] = (*roles.get(process.role, ()), process)
    return _Plan(
        deployment=deployment,
        hardware=hardware,
        vendor=vendor,
        resource=vendor.kubernetes.name,
        image=image_of(catalog, deployment),
        name=resource_name(deployment.recipe),
        entry=catalog.strategies[deployment.strategy].entry,
        roles=roles,
        owners={
            address.name: next(p for p in deployment.processes if p.node == address.node and p.role != "router")
            for address in deployment.addresses
        },
    )


def _no_resource(deployment: Deployment, hardware: HardwareEntry, vendor: VendorEntry) -> InputError:
    if hardware.model:
        return InputError(
            f"{deployment.hardware_title} is for rehearsals, and has no devices to ask Kubernetes for: no source names "
            "a resource, and the model does not fit.",
            "Rehearse with `cookbook run RECIPE --on cpu`, or take the hardware of a recipe.",
        )
    return InputError(
        f"No source names the Kubernetes resource for the devices of {vendor.title}, which a pod on "
        f"{deployment.hardware_title} has to ask for.",
        f"Take the name from your cluster's device plugin, and give it with --catalog DIR: a vendors.yaml there with "
        f"{hardware.vendor}: {{kubernetes: {{name: ..., why: ..., basis: chosen}}}}.",
    )


def _instructions(catalog: Catalog, plan: _Plan) -> Iterator[str]:
    terabytes = catalog.model.shape.checkpoint_bytes / 1e12
    yield comment("Start with: kubectl apply -f FILE. The cluster has to have:")
    yield comment("- LeaderWorkerSet (https://lws.sigs.k8s.io), which starts the pods of a role as one group.")
    yield comment(
        f"- A PersistentVolumeClaim called model-cache, ReadWriteMany, with more than {terabytes:.2f} TB: all pods "
        f"keep the checkpoint there, at {CACHE}."
    )
    yield comment(
        "- A secret called hf-token, only where the checkpoint needs a login: "
        "kubectl create secret generic hf-token --from-file=token=FILE"
    )
    if plan.deployment.model.startswith(("/", ".")):
        yield comment(f"- The folder {plan.deployment.model}, in every pod: mount it, as it is no name of a hub.")
    if "router" in plan.roles:
        yield comment(
            "- RDMA devices for the pods of both pools. Add the resource of your cluster's RDMA device plugin to "
            f"{plan.resource}: no source gives its name."
        )
    if plan.hardware.kubernetes is None:
        yield comment(
            f"- Nodes of {plan.deployment.hardware_title} only. No source gives their labels: add a nodeSelector."
        )
    yield comment(
        f"Clients in the cluster reach the server at http://{plan.name}:{CLIENT_PORT}/v1. It listens on its pod's "
        "address and not on 127.0.0.1: a pod has a network of its own, in which a Service would not find it. So "
        "kubectl port-forward does not reach it."
    )
    yield comment(
        "Let only a gateway with authentication reach the pods, with a NetworkPolicy: vLLM's API key covers only some "
        "of its paths."
    )


# The pods of a role


def _group(plan: _Plan, role: Role, processes: tuple[Process, ...]) -> Iterator[tuple[list[str], Document]]:
    name, size, labels = _set_name(plan, role), len(processes), _labels(plan, role)
    leader = _pod(plan, processes[0], size, _container(plan, _in_pod(processes[0])))
    # The reference has workerTemplate as required, and takes it for the leader too where there is no other.
    templates = {"workerTemplate": leader}
    if size > 1:
        templates = {"leaderTemplate": leader, "workerTemplate": _worker_pod(plan, processes[1:], size)}
    document = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": 1,
            # Workers start with the leader: it is not ready before they have joined.
            "startupPolicy": "LeaderCreated",
            "networkConfig": {"subdomainPolicy": "Shared"},
            "leaderWorkerTemplate": {"size": size, "restartPolicy": "RecreateGroupOnPodRestart", **templates},
        },
    }
    yield [*_remarks(plan, processes)], document
    selector = {SET_LABEL: name}
    if size > 1 and not all(process.serves for process in processes):
        selector[INDEX_LABEL] = "0"
    which = "all pods" if INDEX_LABEL not in selector and size > 1 else "the first pod"
    yield [comment(f"Reaches {which} of {_set_name(plan, role)}.")], _service(plan, processes[0], selector)


def _router(plan: _Plan, process: Process) -> Iterator[tuple[list[str], Document]]:
    labels = _labels(plan, "router")
    container = _container(plan, _in_pod(process))
    document = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": _set_name(plan, "router"), "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "enableServiceLinks": False,
                    "automountServiceAccountToken": False,
                    "containers": [container],
                },
            },
        },
    }
    remarks = [
        comment(
            f"router: it takes the engine's image, in which {process.program[0]} has to be. No published one is said "
            "to hold it: add it with pip, and name your image with --image. It needs no devices."
        ),
        comment("It listens once the servers are healthy."),
        *unsure(process),
    ]
    yield remarks, document
    yield [comment("Reaches the router.")], _service(plan, process, labels)


def _worker_pod(plan: _Plan, workers: tuple[Process, ...], size: int) -> Document:
    """One template for all workers.

    Raises:
        CatalogError: They differ in more than what follows from their rank.
    """
    step = _start_rank_step(workers)
    containers = [_container(plan, _in_pod(worker, numbered=True, step=step), step) for worker in workers]
    if any(container != containers[0] for container in containers):
        role = workers[0].role
        raise CatalogError(
            "strategies.yaml",
            f"{plan.deployment.strategy}.roles.{role}",
            f"its nodes after the first differ in more than their rank, and the workers of a {role} group have one "
            "template in Kubernetes.",
            "Make them alike, or take another format.",
        )
    return _pod(plan, workers[0], size, containers[0])


def _start_rank_step(workers: tuple[Process, ...]) -> int:
    """How far the start ranks of two nodes in a row lie apart; 0 where they do not follow from the node's rank."""
    values = {worker.rank: str(worker.value(START_RANK)) for worker in workers}
    first = values[workers[0].rank]
    step = int(first) // workers[0].rank if first.isdecimal() else 0
    return step if all(value == str(rank * step) for rank, value in values.items()) else 0


def _in_pod(process: Process, *, numbered: bool = False, step: int = 0) -> Process:
    """A process as its pod starts it.

    Args:
        process: One of the deployment.
        numbered: Whether the pod's template serves several ranks.
        step: Where not 0, the first data-parallel rank is left out, as the pod computes it.
    """

    def change(argument: Argument) -> Argument:
        # A pod has a network of its own: nothing outside would reach its loopback.
        if argument.flag == "--host" and argument.value in LOOPBACK:
            return _filled_in(argument, POD_IP)
        if numbered and argument.flag == NODE_RANK and str(argument.value) == str(process.rank):
            return _filled_in(argument, INDEX)
        return argument

    kept = (argument for argument in process.arguments if not (step and argument.flag == START_RANK))
    return process.model_copy(update={"arguments": tuple(map(change, kept))})


def _filled_in(argument: Argument, name: str) -> Argument:
    return argument.model_copy(update={"value": f"${{{name}}}", "variables": (name,)})


def _pod(plan: _Plan, process: Process, size: int, container: Document) -> Document:
    spec: Document = {
        # Variables such as NAME_PORT, which Kubernetes makes for every Service, could be taken for vLLM's own.
        "enableServiceLinks": False,
        # The checkpoint's own code runs in the pod, and has no business with the cluster.
        "automountServiceAccountToken": False,
    }
    if plan.hardware.kubernetes:
        spec["nodeSelector"] = dict(plan.hardware.kubernetes.labels)
    topology = _topology(plan, size)
    if topology:
        together = {
            "labelSelector": {"matchLabels": {SET_LABEL: _set_name(plan, process.role)}},
            "topologyKey": topology,
        }
        spec["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [together]}}
    spec["containers"] = [container]
    spec["volumes"] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{_shm_gib(plan)}Gi"}},
        {"name": "model-cache", "persistentVolumeClaim": {"claimName": "model-cache"}},
    ]
    return {"metadata": {"labels": _labels(plan, process.role)}, "spec": spec}


def _container(plan: _Plan, process: Process, step: int = 0) -> Document:
    spell = _speller(plan, process)
    words = [_escaped(word) for word in container_command(process, spell)]
    program = len(process.program)
    command, args = words[:program], words[program:]
    if step:
        # The one number that Kubernetes cannot give: it multiplies nothing. The rest stays out of the shell's reading.
        script = f'exec "$@" {START_RANK} $(({INDEX} * {step}))'
        command, args = ["sh", "-c", _escaped(script), "vllm"], words
    environment: list[Document] = [{"name": POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    environment += [
        {"name": variable.name, "value": _escaped(variable_value(variable, spell))} for variable in process.environment
    ]
    container: Document = {"name": process.role, "image": plan.image, "command": command, "args": args}
    if process.role != "router":
        token = {"name": "hf-token", "key": "token", "optional": True}
        environment.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": token}})
    container["env"] = environment
    if process.serves:
        container |= {"ports": [{"name": "http", "containerPort": process.port}], **_probes(process)}
    if process.role != "router":
        container["resources"] = _resources(plan, process)
        security = _security(plan, process)
        if security:
            container["securityContext"] = security
        container["volumeMounts"] = [
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108  # shared memory, as the engine expects it
            {"name": "model-cache", "mountPath": CACHE},
        ]
    return container


def _speller(plan: _Plan, process: Process) -> Callable[[str], str]:
    """How an address is written in the pod of `process`, with marks around it."""

    def spell(name: str) -> str:
        if name in GIVEN:
            return f"{MARK}$({name}){MARK}"
        owner = plan.owners[name]
        if (owner.role, owner.rank) == (process.role, process.rank):
            return f"{MARK}$({POD_IP}){MARK}"
        if owner.role == process.role and owner.rank == 0:
            return f"{MARK}$({LEADER}){MARK}"
        return f"{MARK}{_dns(plan, owner)}{MARK}"

    return spell


def _escaped(word: str) -> str:
    """A word that Kubernetes turns into what was meant: $ is doubled, save between marks."""
    parts = word.split(MARK)
    return "".join(part if index % 2 else part.replace("$", "$$") for index, part in enumerate(parts))


def _dns(plan: _Plan, process: Process) -> str:
    name = _set_name(plan, process.role)
    return f"{name}-0-{process.rank}.{name}" if process.rank else f"{name}-0.{name}"


def _probes(process: Process) -> Document:
    get = {"path": "/health", "port": "http"}
    return {
        "startupProbe": {
            "httpGet": get,
            "periodSeconds": PROBE_PERIOD_S,
            "timeoutSeconds": 5,
            "failureThreshold": math.ceil(ready_timeout(process) / PROBE_PERIOD_S),
        },
        "readinessProbe": {"httpGet": get, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": {"httpGet": get, "periodSeconds": 30, "timeoutSeconds": 10, "failureThreshold": 4},
    }


def _resources(plan: _Plan, process: Process) -> Document:
    count = (plan.hardware.kubernetes.count if plan.hardware.kubernetes else None) or process.devices
    requests: Document = {plan.resource: count}
    if _host_memory_gib(process):
        requests["memory"] = f"{_host_memory_gib(process)}Gi"
    return {"limits": {plan.resource: count}, "requests": requests}


def _host_memory_gib(process: Process) -> int:
    """Host memory that a pod with KV offload has to find on its node, in GiB; 0 without."""
    offload = offload_bytes_per_device(process) * process.devices
    return math.ceil(offload / GIB) + HOST_MARGIN_GIB if offload else 0


def _security(plan: _Plan, process: Process) -> Document:
    security: Document = {}
    if plan.vendor.container and "--privileged" in plan.vendor.container.docker:
        security["privileged"] = True
    if process.role in {"prefill", "decode"}:
        # RDMA pins the memory that the other side reads.
        security["capabilities"] = {"add": ["IPC_LOCK"]}
    return security


def _topology(plan: _Plan, size: int) -> str | None:
    """The label of nodes that all pods of a role have to have in common; None where they may be anywhere."""
    if 1 < size <= plan.hardware.nvlink_nodes:
        return NVLINK_LABEL
    labels = plan.hardware.kubernetes.labels if plan.hardware.kubernetes else {}
    return TPU_POOL_LABEL if size > 1 and TPU_TOPOLOGY_LABEL in labels else None


def _shm_gib(plan: _Plan) -> int:
    return TPU_SHM_GIB if plan.resource == "google.com/tpu" else SHM_GIB


def _remarks(plan: _Plan, processes: tuple[Process, ...]) -> Iterator[str]:
    leader, size = processes[0], len(processes)
    yield comment(f"{leader.role}: {size} {'pod' if size == 1 else 'pods'}, one on each node.")
    yield from unsure(leader)
    topology = _topology(plan, size)
    if topology == NVLINK_LABEL:
        yield comment(
            f"The pods have to be in one NVLink domain, so they share a value of the node label {NVLINK_LABEL}. They "
            "need an IMEX channel too: make a ComputeDomain with NVIDIA's DRA driver, and add its channel as a "
            "resource claim to both templates."
        )
        yield comment(
            f"The annotation {EXCLUSIVE}: {NVLINK_LABEL} would keep other groups off that domain, and this "
            "deployment's own other pool with them."
        )
    elif topology:
        yield comment(f"The pods have to be in one TPU slice, so they share a value of the node label {topology}.")
    if _host_memory_gib(leader):
        yield comment(
            f"KV offload pins {_host_memory_gib(leader) - HOST_MARGIN_GIB} GiB of host memory on each node. The memory "
            f"request has {HOST_MARGIN_GIB} GiB more, for shared memory and the engine's processes. There is no limit: "
            "no source says how much the engine takes beside that, and a limit that is too low ends it."
        )
    if size > 1 and _start_rank_step(processes[1:]):
        yield comment(f"A shell computes {START_RANK} from the pod's number, as Kubernetes cannot multiply.")


def _service(plan: _Plan, process: Process, selector: Mapping[str, str]) -> Document:
    is_entry = process.role == plan.entry
    port = CLIENT_PORT if is_entry else process.port
    return {
        "apiVersion": "v1",
        "kind": "Service",
        # The headless service of a LeaderWorkerSet has the set's name.
        "metadata": {
            "name": plan.name if is_entry else f"{_set_name(plan, process.role)}-api",
            "labels": _labels(plan, process.role),
        },
        "spec": {
            "type": "ClusterIP",
            "selector": dict(selector),
            "ports": [{"name": "http", "port": port, "targetPort": "http"}],
        },
    }


def _set_name(plan: _Plan, role: Role) -> str:
    return f"{plan.name}-{role}"


def _labels(plan: _Plan, role: Role) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": plan.name,
        "app.kubernetes.io/part-of": PART_OF,
        "app.kubernetes.io/component": role,
    }
