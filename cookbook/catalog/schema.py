"""The shape of the catalog's YAML files. Unknown keys, missing reasons and unknown sources are errors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, StringConstraints, model_validator

from cookbook.deployment import Basis, Frozen, Role, Source

Flag = Annotated[str, StringConstraints(pattern=r"^--[a-z0-9][a-z0-9.-]*$")]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")]
Text = Annotated[str, StringConstraints(min_length=1)]
Count = Annotated[int, Field(gt=0)]


class Reasoned(Frozen):
    """Something that says why it is there and how sure that is.

    A basis other than "chosen" and "unknown" names its source.
    """

    why: Text
    basis: Basis
    source: str | None = None

    @model_validator(mode="after")
    def _source_is_named(self) -> Self:
        if self.source is None and self.basis not in {"chosen", "unknown"}:
            raise ValueError(f'basis "{self.basis}" needs a source')
        return self


class ArgumentEntry(Reasoned):
    """A flag's value: None for a bare flag, a mapping for a flag that takes JSON."""

    value: JsonValue = None


class VariableEntry(Reasoned):
    """An environment variable's value."""

    value: str


class ImageEntry(Reasoned):
    """A container image.

    Attributes:
        tag: As `docker pull` takes it; None where none is published or named.
    """

    tag: Text | None


class FactEntry(Frozen):
    """A statement for the reader."""

    text: Text
    basis: Basis
    source: str | None = None


class Place(Frozen):
    """Where in a selection something would apply. What is None is not looked at yet, and matches no demand.

    Attributes:
        role: None for the deployment as a whole.
        head: Whether this is the role's first node; None for the role as a whole.
        spans: Whether the role has several nodes.
        nvlink: Whether the role's nodes lie in one NVLink domain.
    """

    hardware: str
    vendor: str
    family: str
    strategy: str
    features: frozenset[str]
    role: Role | None = None
    head: bool | None = None
    spans: bool | None = None
    nvlink: bool | None = None


class Applies(Frozen):
    """Where an entry applies. An empty list stands for all."""

    hardware: tuple[str, ...] = ()
    vendors: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    without_features: tuple[str, ...] = ()
    roles: tuple[Role, ...] = ()
    head: bool | None = None
    spans: bool | None = None
    nvlink: bool | None = None

    def to(self, place: Place) -> bool:
        """Whether the entry applies there. `features` have to be there all, `without_features` none."""
        return (
            (not self.hardware or place.hardware in self.hardware)
            and (not self.vendors or place.vendor in self.vendors)
            and (not self.families or place.family in self.families)
            and (not self.strategies or place.strategy in self.strategies)
            and (not self.roles or place.role in self.roles)
            and (self.head is None or place.head == self.head)
            and (self.spans is None or place.spans == self.spans)
            and (self.nvlink is None or place.nvlink == self.nvlink)
            and place.features.issuperset(self.features)
            and place.features.isdisjoint(self.without_features)
        )


class NoticeEntry(Applies):
    """Something that every output has to say."""

    kind: Literal["preview", "unverified", "warning"]
    text: Text
    source: str | None = None


class Conditional(Applies):
    """What a layer adds or takes back in some places only."""

    args: dict[Flag, ArgumentEntry] = Field(default_factory=dict)
    env: dict[Variable, VariableEntry] = Field(default_factory=dict)
    drop: tuple[Flag, ...] = ()


class Layer(Frozen):
    """A set of flags and variables that one part of a selection brings. `where` comes after `args` and `env`.

    A value may hold marks, which `resolve` fills in: {nodes}, {devices}, {tensor_parallel}, {data_parallel},
    {data_parallel_local} and {data_parallel_start} of the role, {rank} of the node in it, {offload_bytes} a device,
    and the addresses {self}, {head} of the role, and {prefill_urls} and {decode_urls} for a router.
    """

    title: Text
    requirements: tuple[FactEntry, ...] = ()
    notices: tuple[NoticeEntry, ...] = ()
    args: dict[Flag, ArgumentEntry] = Field(default_factory=dict)
    env: dict[Variable, VariableEntry] = Field(default_factory=dict)
    where: tuple[Conditional, ...] = ()


class EngineEntry(Reasoned):
    """Which vLLM can serve the model.

    Attributes:
        newer_than: The newest release that is known not to serve it.
        architecture: The name that the model registry must know.
    """

    newer_than: str
    architecture: str


class Shape(Reasoned):
    """The numbers of the model that its memory follows from. Widths are in elements, sizes in bytes.

    Attributes:
        checkpoint_bytes: All weights on disk.
        moe_layers: Layers with routed experts.
        routed_experts: In each of them.
        expert_width: Inner width of an expert.
        latent_width: Width of what goes into and out of an expert.
        expert_bits: Of one weight of a routed expert, its share of the scales included.
        attention_heads: Tensor parallelism has to divide them.
        mla_layers: Layers with a KV cache that grows with the context.
        kda_layers: Layers with a state of fixed size.
        kda_heads: Of each KDA layer.
        kda_head_width: Of key and of value.
        conv_width: Taps of the short convolution in front of query, key and value.
        recurrent_bytes: Of one element of the recurrent state.
        conv_bytes: Of one element of the convolution's state.
        latent_bytes: Of one token in one MLA layer, by the value of --kv-cache-dtype.
        indexer_bytes: Of one token's indexer key in one MLA layer.
        max_context: Tokens.
    """

    checkpoint_bytes: Count
    moe_layers: Count
    routed_experts: Count
    expert_width: Count
    latent_width: Count
    expert_bits: Annotated[float, Field(gt=0)]
    attention_heads: Count
    mla_layers: Count
    kda_layers: Count
    kda_heads: Count
    kda_head_width: Count
    conv_width: Count
    recurrent_bytes: Count
    conv_bytes: Count
    latent_bytes: dict[str, Count]
    indexer_bytes: Count
    max_context: Count


class Calibration(Reasoned):
    """What arithmetic cannot give, fitted to published figures.

    Attributes:
        families: Hardware that it was fitted for; elsewhere a capacity is an upper bound.
        overhead_gib: Memory of each device for graphs, workspaces and buffers.
        states_per_sequence: Copies of the KDA state that vLLM keeps for one sequence.
    """

    families: tuple[str, ...]
    overhead_gib: Annotated[float, Field(ge=0)]
    states_per_sequence: Annotated[float, Field(ge=1)]


class ModelEntry(Layer):
    """The model: what is the same on any hardware.

    Attributes:
        max_tokens: What the client examples allow for an answer that is thought about first.
    """

    id: Text
    family: str
    engine: EngineEntry
    shape: Shape
    calibration: Calibration
    max_tokens: Count


class MemoryEntry(Reasoned):
    """Memory of one device, in GiB (2^30 bytes)."""

    gib: Annotated[float, Field(gt=0)]


class StepEntry(Reasoned):
    """A command that installs the engine, for bash, one line."""

    command: Text


class Placement(Reasoned):
    """A strategy on a hardware: how many nodes each role takes there."""

    nodes: dict[Role, Count]
    notices: tuple[NoticeEntry, ...] = ()


class NodeSelector(Reasoned):
    """How Kubernetes finds nodes of this hardware.

    Attributes:
        labels: Of the nodes.
        count: Units of the vendor's resource that a node has; None for one a device.
    """

    labels: dict[str, str]
    count: Count | None = None


class SmallModel(Reasoned):
    """A model that stands in for the real one.

    Attributes:
        id: What `vllm serve` loads.
    """

    id: Text


class HardwareEntry(Layer):
    """One kind of node.

    Attributes:
        vendor: Key of vendors.yaml.
        family: Generation of the chip, for rules that hold for several kinds of node.
        memory: Of one device; None where nobody states it.
        nvlink_nodes: Nodes that one NVLink domain joins; 1 where it ends with the node, 0 where there is none.
        strategies: What the model can be spread by on it.
        model: Another model in place of the real one; None for the real one.
    """

    vendor: str
    family: str
    devices_per_node: Count
    memory: MemoryEntry | None = None
    nvlink_nodes: Annotated[int, Field(ge=0)] = 0
    image: ImageEntry
    install: tuple[StepEntry, ...] = ()
    strategies: dict[str, Placement]
    kubernetes: NodeSelector | None = None
    model: SmallModel | None = None


class Resource(Reasoned):
    """Name of a resource or of a kind of device in a scheduler."""

    name: Text


class ContainerEntry(Reasoned):
    """How a container is given the devices.

    Attributes:
        docker: Options of `docker run`.
        compose: Keys of a service in a Compose file.
    """

    docker: tuple[str, ...]
    compose: dict[str, JsonValue]


class SeenEntry(Reasoned):
    """How the devices of a node are seen.

    Attributes:
        command: A command whose output lists them, without a shell.
        paths: Glob patterns of device files.
        line: Regular expression of a line of the command's output that stands for one device.
    """

    command: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    line: str = ""


class VendorEntry(Layer):
    """What all hardware of a vendor has in common. What nobody states is None.

    Attributes:
        seen: The first whose command or files are there counts.
    """

    seen: tuple[SeenEntry, ...]
    container: ContainerEntry | None = None
    kubernetes: Resource | None = None
    slurm: Resource | None = None


class RoleEntry(Frozen):
    """One kind of process of a strategy.

    Attributes:
        program: Words before the flags; {model} is what is loaded.
        tensor_parallel: Devices of one tensor-parallel group; None for all devices of the role. Several groups run
            data-parallel.
        serves: Which of the role's nodes listen.
        port: TCP port of those that do.
        beside: The role whose first node this one runs on, without devices; None for nodes of its own.
    """

    program: tuple[Text, ...] = ("vllm", "serve", "{model}")
    tensor_parallel: Count | None = None
    serves: Literal["head", "all"] = "head"
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    beside: Role | None = None
    args: dict[Flag, ArgumentEntry] = Field(default_factory=dict)
    env: dict[Variable, VariableEntry] = Field(default_factory=dict)
    where: tuple[Conditional, ...] = ()


class StrategyEntry(Layer):
    """How the model is spread over devices and nodes.

    Attributes:
        entry: The role that clients talk to.
        variable_nodes: Whether the number of nodes can be chosen.
    """

    roles: dict[Role, RoleEntry]
    entry: Role = "engine"
    variable_nodes: bool = False


class FeatureEntry(Layer):
    """Something that can be switched on beside a strategy."""


class Demand(Frozen):
    """What a rule wants of one flag, of one key in its JSON, or of one variable.

    Attributes:
        present: True: it has to be there; False: it must not.
        one_of: Where it is there, it has to be one of these. Compared as text.
        at_most: Where it is there, it must not be larger.
        divides: Where it is there, it has to divide this number, or the value of this flag.
    """

    present: bool | None = None
    one_of: tuple[JsonValue, ...] = ()
    at_most: float | None = None
    divides: int | str | None = None


class RuleEntry(Reasoned):
    """Something that a selection has to obey. `why` is the rule as a sentence.

    It applies where `when` does, none of `unless` does, and the command meets every demand of `given`. Then the demands
    have to be met; a rule without demands refuses the selection.

    Attributes:
        links: Upstream changes that would lift it.
        severity: A warning is shown, and refuses nothing.
    """

    when: Applies = Applies()
    unless: tuple[Applies, ...] = ()
    given: dict[str, Demand] = Field(default_factory=dict)
    demands: dict[str, Demand] = Field(default_factory=dict)
    links: tuple[str, ...] = ()
    severity: Literal["error", "warning"] = "error"


class ClaimEntry(Applies):
    """A published figure.

    Attributes:
        with_args: Values that the figure was published for; the claim is left out where an override changes one.
    """

    statement: Text
    value: float
    unit: Text
    tolerance: Annotated[float, Field(ge=0, lt=1)]
    basis: Basis
    source: str
    with_args: dict[Flag, JsonValue] = Field(default_factory=dict)


class ProblemEntry(Applies):
    """A known problem: what is seen, why, and the way out."""

    symptom: Text
    cause: Text
    fix: Text
    source_title: Text
    url: Text


class RecipeEntry(Layer):
    """A notebook, and the selection that it runs. Its own flags come after those of the selection."""

    summary: Text
    hardware: str
    strategy: str
    features: tuple[str, ...] = ()


class Rule(Frozen):
    """What a rehearsal does with a flag or a variable: keep it, replace its value, or drop it.

    A value may be a mark in braces, which `rehearse` fills in; a mark that makes no sense for a process drops it there.

    Attributes:
        needs: A mark that has to make sense for the process, or the flag is dropped there.
    """

    keep: Literal[True] | None = None
    replace: JsonValue = None
    drop: Literal[True] | None = None
    needs: str | None = None
    reason: str = ""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = [self.keep is not None, self.replace is not None, self.drop is not None]
        if sum(ways) != 1:
            raise ValueError("exactly one of keep, replace and drop is needed")
        if (not self.keep or self.needs) and not self.reason:
            raise ValueError("what is replaced or dropped needs a reason")
        return self


class Addition(Frozen):
    """A flag or a variable that only a rehearsal has."""

    value: JsonValue = None
    reason: Text


class RehearsalEngine(Frozen):
    """The vLLM that rehearsals are written for."""

    distribution: str
    version: str


class RehearsalModel(Frozen):
    """The small model that answers in a rehearsal."""

    name: str
    reason: Text


class TokenLimit(Frozen):
    """What the client examples allow for a long answer in a rehearsal."""

    value: Count
    reason: Text


class Foreign(Frozen):
    """A name that vLLM's package does not know, because a plugin brings it or another program reads it.

    Attributes:
        subject: The flag that takes it, or "environment".
        value: The flag's value, or the variable's name.
        hardware: Where it is known; empty for everywhere.
        owner: Who brings or reads it.
    """

    subject: str
    value: str
    hardware: tuple[str, ...] = ()
    owner: Text
    why: Text
    source: str


class Stale(Frozen):
    """A name that vLLM has dropped, and what took its place."""

    name: str
    instead: str = ""
    why: Text
    source: str


class Names(Frozen):
    """What the check against vLLM knows beside vLLM."""

    foreign: tuple[Foreign, ...] = ()
    stale: tuple[Stale, ...] = ()


class RehearsalEntry(Frozen):
    """How a deployment becomes one that runs on a CPU.

    Attributes:
        nodes: Processes of a role that are kept at most; one of each where there are several roles.
        nodes_reason: Why not all.
        connectors: The KV connector that takes the place of another.
    """

    engine: RehearsalEngine
    model: RehearsalModel
    max_tokens: TokenLimit
    nodes: dict[Role, Count]
    nodes_reason: Text
    args: dict[Flag, Rule]
    connectors: dict[str, Rule]
    added_args: dict[Flag, Addition]
    added_router_args: dict[Flag, Addition]
    env: dict[Variable, Rule]
    added_env: dict[Variable, Addition]
    kv_elements_per_token: Count


class Catalog(Frozen):
    """The whole catalog, one attribute a file."""

    _overlay: Path | None = None

    @property
    def overlay(self) -> Path | None:
        """The folder that was laid over the built-in catalog, absolute; None where there was none."""
        return self._overlay

    model: ModelEntry
    vendors: dict[str, VendorEntry]
    hardware: dict[str, HardwareEntry]
    strategies: dict[str, StrategyEntry]
    features: dict[str, FeatureEntry]
    rules: dict[str, RuleEntry]
    claims: dict[str, ClaimEntry]
    recipes: dict[str, RecipeEntry]
    problems: tuple[ProblemEntry, ...]
    rehearsal: RehearsalEntry
    names: Names
    sources: dict[str, Source]
