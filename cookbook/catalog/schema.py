"""The shape of the catalog's YAML files. Unknown keys, missing reasons and unknown sources are errors."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, StringConstraints, model_validator

from cookbook.deployment import Basis, Frozen, Source

Flag = Annotated[str, StringConstraints(pattern=r"^--[a-z0-9][a-z0-9.-]*$")]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")]
Text = Annotated[str, StringConstraints(min_length=1)]


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
    """A container image."""

    tag: Text


class FactEntry(Frozen):
    """A statement for the reader."""

    text: Text
    basis: Basis
    source: str | None = None


class NoticeEntry(Frozen):
    """Something that every output has to say."""

    kind: Literal["preview", "unverified", "warning"]
    text: Text
    source: str | None = None


class Layer(Frozen):
    """A set of flags and variables that one part of a selection brings."""

    title: Text
    requirements: tuple[FactEntry, ...] = ()
    notices: tuple[NoticeEntry, ...] = ()
    args: dict[Flag, ArgumentEntry] = Field(default_factory=dict)
    env: dict[Variable, VariableEntry] = Field(default_factory=dict)


class EngineEntry(Reasoned):
    """Which vLLM can serve the model.

    Attributes:
        newer_than: The newest release that is known not to serve it.
        architecture: The name that the model registry must know.
    """

    newer_than: str
    architecture: str


class ModelEntry(Layer):
    """The model: what is the same on any hardware.

    Attributes:
        max_tokens: What the client examples allow for an answer that is thought about first.
    """

    id: Text
    family: str
    engine: EngineEntry
    max_tokens: Annotated[int, Field(gt=0)]


class HardwareEntry(Layer):
    """One kind of node. Memory in GB (10^9 bytes), as the vendors count."""

    vendor: Literal["nvidia", "amd", "thead", "google"]
    devices_per_node: Annotated[int, Field(gt=0)]
    memory_gb_per_device: Annotated[float, Field(gt=0)]
    image: ImageEntry | None = None


class StrategyEntry(Layer):
    """How the model is spread over devices and nodes."""

    nodes: Annotated[int, Field(gt=0)]


class FeatureEntry(Layer):
    """Something that can be switched on beside a strategy."""


class Applies(Frozen):
    """Where an entry applies. An empty list stands for all."""

    hardware: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    without_features: tuple[str, ...] = ()

    def to(self, hardware: str, strategy: str, features: tuple[str, ...]) -> bool:
        """Whether the entry applies to this selection."""
        return (
            (not self.hardware or hardware in self.hardware)
            and (not self.strategies or strategy in self.strategies)
            and set(self.features) <= set(features)
            and not set(self.without_features) & set(features)
        )


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


class RecipeEntry(Frozen):
    """A notebook, and the selection that it runs."""

    title: Text
    summary: Text
    hardware: str
    strategy: str
    features: tuple[str, ...] = ()


class Rule(Frozen):
    """What a rehearsal does with a flag or a variable: keep it, replace its value, or drop it."""

    keep: Literal[True] | None = None
    replace: JsonValue = None
    drop: Literal[True] | None = None
    reason: str = ""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = [self.keep is not None, self.replace is not None, self.drop is not None]
        if sum(ways) != 1:
            raise ValueError("exactly one of keep, replace and drop is needed")
        if not self.keep and not self.reason:
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

    value: Annotated[int, Field(gt=0)]
    reason: Text


class RehearsalEntry(Frozen):
    """How a deployment becomes one that runs on a CPU."""

    engine: RehearsalEngine
    model: RehearsalModel
    max_tokens: TokenLimit
    args: dict[Flag, Rule]
    added_args: dict[Flag, Addition]
    env: dict[Variable, Rule]
    added_env: dict[Variable, Addition]
    kv_elements_per_token: Annotated[int, Field(gt=0)]


class Catalog(Frozen):
    """The whole catalog, one attribute a file."""

    model: ModelEntry
    hardware: dict[str, HardwareEntry]
    strategies: dict[str, StrategyEntry]
    features: dict[str, FeatureEntry]
    claims: dict[str, ClaimEntry]
    recipes: dict[str, RecipeEntry]
    problems: tuple[ProblemEntry, ...]
    rehearsal: RehearsalEntry
    sources: dict[str, Source]
