"""What `resolve` makes and everything after it reads: processes with exact arguments, environment and image.

All of it is immutable data without behaviour beyond putting itself into words, so that equal inputs give equal bytes.
"""

from __future__ import annotations

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue

__all__ = [
    "Address",
    "Argument",
    "Basis",
    "Claim",
    "Deployment",
    "EnvVar",
    "Image",
    "Notice",
    "Origin",
    "Process",
    "Role",
    "Source",
    "Step",
]

Basis = Literal["stated", "from_k3", "vllm_source", "inferred", "unknown", "chosen"]
"""How sure a value is.

stated: the named source says so of this model or hardware.
from_k3: the source says so of Kimi-K3, the model before.
vllm_source: read in vLLM's source.
inferred: concluded, nobody states it.
unknown: nobody states it and it could not be concluded.
chosen: the cookbook's own decision.
"""

Role = Literal["engine", "prefill", "decode", "router"]


class Frozen(BaseModel):
    """Immutable, and strict about names: an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Source(Frozen):
    """Where a statement comes from.

    Attributes:
        title: What it is, for a reader.
        url: Its address; None where it has no stable public one.
        read: When or at which revision it was read.
    """

    title: str
    url: str | None = None
    read: str = ""


class Origin(Frozen):
    """Why a value is there.

    Attributes:
        layer: The layer that set it, for example "hardware b300".
        why: The reason, as a sentence.
        basis: How sure it is.
        source: Key into `Deployment.sources`; None for the cookbook's own choices and for the user's.
    """

    layer: str
    why: str
    basis: Basis
    source: str | None = None


class Argument(Frozen):
    """One flag of a command.

    Attributes:
        flag: With its dashes, for example "--kv-cache-dtype".
        value: None for a bare flag; a dict for a flag that takes JSON.
        origins: One; several where layers merged keys into one JSON value.
        variables: Names of `Deployment.addresses` that stand in the value as "${NAME}". Any other "${" is text.
    """

    flag: str
    value: JsonValue = None
    origins: tuple[Origin, ...]
    variables: tuple[str, ...] = ()

    def words(self) -> tuple[str, ...]:
        """The argv words of this flag, unquoted."""
        if self.value is None:
            return (self.flag,)
        if isinstance(self.value, str):
            return (self.flag, self.value)
        return (self.flag, json.dumps(self.value, separators=(",", ":"), sort_keys=True))


class EnvVar(Frozen):
    """One environment variable of a process. Never a secret: those stay in the caller's environment.

    Attributes:
        variables: Names of `Deployment.addresses` that stand in the value as "${NAME}". Any other "${" is text.
    """

    name: str
    value: str
    origin: Origin
    variables: tuple[str, ...] = ()


class Process(Frozen):
    """One process to start on one node.

    Attributes:
        name: Unique within the deployment, for example "engine-0".
        role: What it does in the deployment.
        node: Number of the node it runs on within the deployment, 0 for the head.
        rank: Number of its node within its role, 0 for the role's first.
        program: The words before the flags, for example ("vllm", "serve", "moonshotai/Kimi-K3.1-Pro").
        arguments: The flags, in the order of the layers.
        environment: Variables to set, in the order of the layers.
        host: Address that the server binds to; "${NAME}" where it is an address of the deployment.
        port: TCP port that the server listens on.
        devices: Accelerators that it takes on its node; 0 on a CPU and for a router.
        serves: Whether it listens at all: a headless rank does not.
    """

    name: str
    role: Role
    node: int
    rank: int = 0
    program: tuple[str, ...]
    arguments: tuple[Argument, ...]
    environment: tuple[EnvVar, ...]
    host: str
    port: int
    devices: int
    serves: bool = True

    @property
    def argv(self) -> tuple[str, ...]:
        """The whole command, unquoted."""
        return (*self.program, *(word for argument in self.arguments for word in argument.words()))

    @property
    def computes_on_cpu(self) -> bool:
        """Whether it is an engine without accelerators, as in a rehearsal."""
        return self.devices == 0 and self.role != "router"

    def value(self, flag: str) -> JsonValue:
        """The value of `flag`, or None where the flag is absent or bare."""
        return next((argument.value for argument in self.arguments if argument.flag == flag), None)

    def has(self, flag: str) -> bool:
        """Whether the command carries `flag`."""
        return any(argument.flag == flag for argument in self.arguments)

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the addresses that the command needs, each once."""
        named = [name for argument in self.arguments for name in argument.variables]
        named += [name for variable in self.environment for name in variable.variables]
        return tuple(dict.fromkeys(named))


class Image(Frozen):
    """The container image that holds the engine.

    Attributes:
        tag: As `docker pull` takes it.
        origin: Why this one, and how sure that is.
    """

    tag: str
    origin: Origin


class Step(Frozen):
    """A command to run on every node before the first start.

    Attributes:
        command: For bash, one line.
        origin: Why, and how sure that is.
    """

    command: str
    origin: Origin


class Address(Frozen):
    """An address that is known only where the deployment runs.

    Attributes:
        name: Of the shell variable that holds it, for example "HEAD_IP".
        node: Number of the node whose address it is.
        meaning: For a reader, as a sentence.
    """

    name: str
    node: int
    meaning: str


class Claim(Frozen):
    """A published figure that a check holds the server against.

    Attributes:
        name: Unique in the catalog, for example "kv_cache_tokens_tp8".
        statement: What is claimed, as a sentence.
        value: The figure, in `unit`.
        unit: For example "tokens".
        tolerance: Relative deviation that still counts as reproduced, for example 0.1.
        basis: How sure the claim is.
        source: Key into `Deployment.sources`.
    """

    name: str
    statement: str
    value: float
    unit: str
    tolerance: float
    basis: Basis
    source: str | None


class Notice(Frozen):
    """Something that every output of a deployment has to say, for example that it is a preview.

    Attributes:
        kind: "preview", "unverified", "warning" or "rehearsal".
        text: As a sentence.
        source: Key into `Deployment.sources`.
    """

    kind: Literal["preview", "unverified", "warning", "rehearsal"]
    text: str
    source: str | None = None


class Deployment(Frozen):
    """Everything that is needed to start a recipe, and why.

    Attributes:
        recipe: Name of the recipe, for example "b300_tp8".
        title: Its title.
        hardware: Key of the hardware.
        hardware_title: The hardware's name for a reader.
        nodes: How many nodes it spans.
        strategy: Key of the strategy.
        features: Keys of the features, in the order in which they were applied.
        model: What `vllm serve` loads: a hub name or a folder.
        served_model_name: The name that clients use.
        image: The container image; None where none is published or known.
        install: How to install the engine where no image holds it.
        addresses: What has to be known on every node before the commands run.
        processes: Head first.
        claims: What the checks hold the server against.
        notices: What every output has to say.
        sources: The sources that are referred to, by key.
    """

    recipe: str
    title: str
    hardware: str
    hardware_title: str
    nodes: int
    strategy: str
    features: tuple[str, ...]
    model: str
    served_model_name: str
    image: Image | None
    install: tuple[Step, ...] = ()
    addresses: tuple[Address, ...] = ()
    processes: tuple[Process, ...]
    claims: tuple[Claim, ...]
    notices: tuple[Notice, ...]
    sources: dict[str, Source]

    def claim(self, name: str) -> Claim | None:
        """The claim called `name`, or None where this deployment does not carry it."""
        return next((claim for claim in self.claims if claim.name == name), None)
