"""The layers of one process's command: each adds flags and variables, and every value remembers why it is there.

A later layer wins for a plain flag. JSON is merged key by key: two layers that want different values for a key are an
error, and only the user's overrides may replace one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from pydantic import JsonValue

from cookbook.catalog.schema import ArgumentEntry, Conditional, Flag, Place, Reasoned, Variable, VariableEntry
from cookbook.deployment import Argument, EnvVar, Origin
from cookbook.errors import CatalogError, InputError
from cookbook.selection import Override

__all__ = ["OVERRIDES", "Builder", "origin", "variables"]

OVERRIDES = "your override"
SECRET_FLAGS = ("--api-key", "--hf-token")
MARK = re.compile(r"\{([a-z_]+)\}")


class Layered(Protocol):
    """What brings flags and variables: a `Layer` of the catalog, or a role."""

    @property
    def args(self) -> dict[Flag, ArgumentEntry]: ...
    @property
    def env(self) -> dict[Variable, VariableEntry]: ...
    @property
    def where(self) -> tuple[Conditional, ...]: ...


class Builder:
    """Collects the flags and variables of one process, layer by layer."""

    def __init__(self, place: Place, marks: Mapping[str, JsonValue]) -> None:
        self.arguments: dict[str, Argument] = {}
        self.environment: dict[str, EnvVar] = {}
        self._place = place
        self._marks = marks

    def layer(self, name: str, layer: Layered) -> None:
        """Apply a layer: its flags and variables, then those that apply here only."""
        self._entries(name, layer)
        for conditional in layer.where:
            if conditional.to(self._place):
                for flag in conditional.drop:
                    self.arguments.pop(flag, None)
                self._entries(name, conditional)

    def _entries(self, name: str, entries: Layered | Conditional) -> None:
        for flag, entry in entries.args.items():
            value = _fill(entry.value, self._marks)
            self.arguments.pop(_opposite(flag), None)
            self.arguments[flag] = _merge(self.arguments.get(flag), flag, value, origin(entry, name))
        for variable, setting in entries.env.items():
            text = str(_fill(setting.value, self._marks))
            self.environment[variable] = EnvVar(
                name=variable,
                value=text,
                origin=origin(setting, name),
                variables=variables(text) if text != setting.value else (),
            )

    def override(self, overrides: Iterable[Override]) -> None:
        """Apply the user's changes.

        Raises:
            InputError: One would set a secret.
        """
        origin = Origin(layer=OVERRIDES, why="Set by you.", basis="chosen")
        for override in overrides:
            if override.is_variable:
                self._override_variable(override, origin)
            else:
                self._override_flag(override, origin)

    def _override_variable(self, override: Override, origin: Origin) -> None:
        if any(word in override.name for word in ("TOKEN", "SECRET", "PASSWORD", "API_KEY")):
            raise InputError(
                f"{override.name} is a secret.", "Put it into the environment; a secret is never a parameter."
            )
        if override.value is False:
            self.environment.pop(override.name, None)
        else:
            value = "1" if override.value is None else str(override.value)
            self.environment[override.name] = EnvVar(name=override.name, value=value, origin=origin)

    def _override_flag(self, override: Override, origin: Origin) -> None:
        flag = override.flag
        if flag in SECRET_FLAGS:
            raise InputError(
                f"{flag} is a secret.", "Put it into VLLM_API_KEY or HF_TOKEN; a secret is never a parameter."
            )
        before = self.arguments.get(flag)
        self.arguments.pop(_opposite(flag), None)
        if override.value is False:
            self.arguments.pop(flag, None)
        elif before and isinstance(before.value, dict) and isinstance(override.value, dict):
            merged = _deep_merge(before.value, override.value)
            self.arguments[flag] = Argument(flag=flag, value=merged, origins=(*before.origins, origin))
        else:
            self.arguments[flag] = Argument(flag=flag, value=override.value, origins=(origin,))


def _opposite(flag: str) -> str:
    """`--no-x` for `--x` and the other way round: vLLM would take the last of the two."""
    return f"--{flag[5:]}" if flag.startswith("--no-") else f"--no-{flag[2:]}"


def _fill(value: JsonValue, marks: Mapping[str, JsonValue]) -> JsonValue:
    if isinstance(value, dict):
        return {key: _fill(inner, marks) for key, inner in value.items()}
    if isinstance(value, list):
        return [_fill(inner, marks) for inner in value]
    match = MARK.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    if match[1] not in marks:
        raise CatalogError("catalog", str(value), "there is no such mark.", f"There are: {', '.join(marks)}.")
    return marks[match[1]]


def variables(value: JsonValue) -> tuple[str, ...]:
    """Names of the addresses in a value that was filled in."""
    texts = value if isinstance(value, list) else [value]
    return tuple(name for text in texts if isinstance(text, str) for name in re.findall(r"\$\{([A-Z0-9_]+)\}", text))


def origin(entry: Reasoned, layer: str) -> Origin:
    """Where a value of the catalog comes from, once it is known which layer brings it."""
    return Origin(layer=layer, why=entry.why, basis=entry.basis, source=entry.source)


def _merge(before: Argument | None, flag: str, value: JsonValue, origin: Origin) -> Argument:
    # What a layer says of one place goes before what it says in general.
    same_layer = before is not None and all(one.layer == origin.layer for one in before.origins)
    if before is None or same_layer or not (isinstance(before.value, dict) and isinstance(value, dict)):
        return Argument(flag=flag, value=value, origins=(origin,), variables=variables(value))
    clash = _clash(before.value, value)
    if clash:
        first = " and ".join(o.layer for o in before.origins)
        raise CatalogError(
            "catalog",
            f"{flag}.{clash}",
            f"{first} and {origin.layer} want different values.",
            "Take one of the two out of the selection.",
        )
    return Argument(flag=flag, value=_deep_merge(before.value, value), origins=(*before.origins, origin))


def _clash(left: Mapping[str, Any], right: Mapping[str, Any]) -> str:
    for key in left.keys() & right.keys():
        if isinstance(left[key], dict) and isinstance(right[key], dict):
            inner = _clash(left[key], right[key])
            if inner:
                return f"{key}.{inner}"
        elif left[key] != right[key]:
            return key
    return ""


def _deep_merge(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(left)
    for key, value in right.items():
        both = isinstance(merged.get(key), dict) and isinstance(value, dict)
        merged[key] = _deep_merge(merged[key], value) if both else value
    return merged
