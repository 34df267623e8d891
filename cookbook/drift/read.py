"""The vLLM recipes' own format: one YAML, or the site's JSON, for a model.

Its layers are: the model's base, hardware (by name, generation or vendor), strategy, features and, for prefill/decode,
roles. What is not understood is collected and shown, never dropped in silence.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml
from pydantic import Field, JsonValue

from cookbook.deployment import Frozen
from cookbook.errors import InputError

__all__ = ["UPSTREAM", "Block", "Conditioned", "Upstream", "fetch", "parse"]

UPSTREAM = "https://raw.githubusercontent.com/vllm-project/recipes/main/models/moonshotai/Kimi-K3.1-Pro.yaml"
LIMIT_BYTES = 5_000_000
TIMEOUT_S = 30.0
WAY_OUT = "Name a file or an address with --from, in the form of a model's YAML in vllm-project/recipes."
ARGS = ("args", "extra_args", "vllm_args", "base_args")
ENV = ("env", "extra_env", "base_env")
ROLES = ("prefill", "decode")
# Keys that are read, or that are for people and for the site.
TOP = {
    *("meta", "model", "features", "hardware_overrides", "strategy_overrides", "strategy_min_gpus"),
    *("compatible_strategies", "default_strategy", "opt_in_features", "variants", "guide"),
}
MODEL = {
    *("model_id", "min_vllm_version", "docker_image", "context_length", *ARGS, *ENV),
    *("nightly_required", "install", "architecture", "parameter_count", "active_parameters"),
}


class Block(Frozen):
    """Flags and variables that one part of the recipe brings."""

    args: dict[str, JsonValue] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)


class Conditioned(Frozen):
    """A block, what it adds on some hardware, and for some roles."""

    block: Block = Block()
    hardware: dict[str, Block] = Field(default_factory=dict)
    roles: dict[str, Block] = Field(default_factory=dict)


class Upstream(Frozen):
    """A model's recipe as vLLM publishes it.

    Attributes:
        where: The file or address that it was read from.
        title: Its own title.
        updated: The date that it gives; empty without one.
        model_id: The model that it is for.
        min_vllm_version: Empty where it states none.
        context_length: Tokens; None where it states none.
        images: Container image by vendor.
        hardware_names: Hardware that it lists.
        strategies_listed: Strategies that it lists; empty for all.
        min_gpus: Devices that a strategy or a hardware needs.
        base: Of the model.
        hardware: By name, generation or vendor.
        strategies: By name.
        features: By name.
        not_understood: Paths of keys that nothing here reads.
    """

    where: str
    title: str
    updated: str
    model_id: str
    min_vllm_version: str
    context_length: int | None
    images: dict[str, str]
    hardware_names: tuple[str, ...]
    strategies_listed: tuple[str, ...]
    min_gpus: dict[str, int]
    base: Block
    hardware: dict[str, Block]
    strategies: dict[str, Conditioned]
    features: dict[str, Conditioned]
    not_understood: tuple[str, ...]


def fetch(source: str) -> str:
    """The text of a file or of an http(s) address.

    Raises:
        InputError: It cannot be read, or is larger than 5 MB.
    """
    if not source.startswith(("http://", "https://")):
        try:
            with Path(source).open("rb") as file:
                content = file.read(LIMIT_BYTES + 1)
        except OSError as error:
            raise InputError(f"{source} cannot be read: {error.strerror}.", WAY_OUT) from error
    else:
        content = _download(source)
    if len(content) > LIMIT_BYTES:
        raise InputError(f"{source} is larger than {LIMIT_BYTES // 10**6} MB; no recipe is.", WAY_OUT)
    return content.decode(errors="replace")


def _download(address: str) -> bytes:
    content = b""
    try:
        with httpx.stream("GET", address, timeout=TIMEOUT_S, follow_redirects=True) as answer:
            answer.raise_for_status()
            for piece in answer.iter_bytes():
                content += piece
                if len(content) > LIMIT_BYTES:
                    break
    except httpx.HTTPStatusError as error:
        raise InputError(f"{address} answers HTTP {error.response.status_code}.", WAY_OUT) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InputError(f"{address} cannot be reached: {type(error).__name__} {error}.", WAY_OUT) from error
    return content


def parse(text: str, where: str) -> Upstream:
    """Read a recipe, as YAML or JSON.

    Args:
        text: Of the recipe.
        where: For messages.

    Raises:
        InputError: It is neither, is no recipe of a model, or a part of it has the wrong shape; it names the key.
    """
    try:
        content = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{where} is neither YAML nor JSON: {' '.join(str(error).split())}.", WAY_OUT) from error
    return _Reader(where).recipe(content)


class _Reader:
    """Reads one recipe, and remembers what it did not understand."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._unknown: list[str] = []

    def recipe(self, content: Any) -> Upstream:
        recipe = self._unwrapped(content)
        meta, model = self._map(recipe, "meta"), self._map(recipe, "model")
        if not model.get("model_id"):
            raise self._error("model.model_id", "is missing, so this is no recipe of a model")
        self._others(recipe, "", TOP)
        self._others(model, "model.", MODEL)
        return Upstream(
            where=self._where,
            title=str(meta.get("title", model["model_id"])),
            updated=str(meta.get("date_updated", "")),
            model_id=str(model["model_id"]),
            min_vllm_version=str(model.get("min_vllm_version", "")),
            context_length=self._number(model, "context_length", "model.context_length"),
            images=dict(self._images(model.get("docker_image"))),
            hardware_names=tuple(self._map(meta, "hardware", "meta.hardware")),
            strategies_listed=tuple(map(str, self._list(recipe, "compatible_strategies"))),
            min_gpus={
                name: self._whole(value, f"strategy_min_gpus.{name}")
                for name, value in self._map(recipe, "strategy_min_gpus").items()
            },
            base=self._block(model, "model"),
            hardware={
                name: self._only_block(value, f"hardware_overrides.{name}")
                for name, value in self._map(recipe, "hardware_overrides").items()
            },
            strategies={
                name: self._conditioned(value, f"strategy_overrides.{name}")
                for name, value in self._map(recipe, "strategy_overrides").items()
            },
            features={
                name: self._conditioned(value, f"features.{name}")
                for name, value in self._map(recipe, "features").items()
            },
            not_understood=tuple(self._unknown),
        )

    def _unwrapped(self, content: Any) -> Mapping[str, Any]:
        """The recipe itself: a site may put it under one key."""
        if isinstance(content, Mapping) and not isinstance(content.get("model"), Mapping):
            inner = [value for value in content.values() if isinstance(value, Mapping) and "model" in value]
            content = inner[0] if len(inner) == 1 else content
        if not isinstance(content, Mapping) or not isinstance(content.get("model"), Mapping):
            raise self._error("model", "is missing, so this is no recipe of a model")
        return content

    def _conditioned(self, value: Any, key: str) -> Conditioned:
        entry = self._mapping(value, key)
        hardware = {
            name: self._only_block(inner, f"{key}.hardware_overrides.{name}")
            for name, inner in self._map(entry, "hardware_overrides", f"{key}.hardware_overrides").items()
        }
        roles = {}
        for role in ROLES:
            if role in entry:
                inner = self._mapping(entry[role], f"{key}.{role}")
                roles[role] = self._block(inner, f"{key}.{role}")
                self._others(inner, f"{key}.{role}.", {*ARGS, *ENV, "parallelism", "tp"})
        self._others(entry, f"{key}.", {*ARGS, *ENV, *ROLES, "hardware_overrides", "description"})
        return Conditioned(block=self._block(entry, key), hardware=hardware, roles=roles)

    def _only_block(self, value: Any, key: str) -> Block:
        entry = self._mapping(value, key)
        self._others(entry, f"{key}.", {*ARGS, *ENV, "description"})
        return self._block(entry, key)

    def _block(self, entry: Mapping[str, Any], key: str) -> Block:
        args: dict[str, JsonValue] = {}
        env: dict[str, str] = {}
        for name in ARGS:
            if name in entry:
                args |= dict(self._flags(entry[name], f"{key}.{name}"))
        for name in ENV:
            env |= {k: str(v) for k, v in self._map(entry, name, f"{key}.{name}").items()}
        return Block(args=args, env=env)

    def _flags(self, value: Any, key: str) -> Iterator[tuple[str, JsonValue]]:
        """Flags out of a list of words or of lines such as "--flag value"; values that are JSON are read as such."""
        lines = [value] if isinstance(value, str) else value
        if not isinstance(lines, list) or not all(isinstance(line, str | int | float) for line in lines):
            raise self._error(key, "is not a list of words")
        words: list[str] = []
        for line in map(str, lines):
            try:
                words += shlex.split(line) if line.startswith("-") else [line]
            except ValueError as error:
                raise self._error(key, f"has a word that a shell cannot read: {error}") from error
        flag = ""
        for word in words:
            if word.startswith("--") or (word.startswith("-") and not word[1:2].isdigit()):
                if flag:
                    yield flag, None
                flag, equals, rest = word.partition("=")
                if equals:
                    yield flag, _value(rest)
                    flag = ""
            elif flag:
                yield flag, _value(word)
                flag = ""
            else:
                raise self._error(key, f'has "{word}" without a flag before it')
        if flag:
            yield flag, None

    def _images(self, value: Any) -> Iterator[tuple[str, str]]:
        if isinstance(value, str):
            yield "nvidia", value
        elif isinstance(value, Mapping):
            for vendor, tag in value.items():
                # One tag for each version of CUDA: the first is the one that the site shows.
                tags = list(tag.values()) if isinstance(tag, Mapping) else [tag]
                if not tags or not isinstance(tags[0], str):
                    raise self._error(f"model.docker_image.{vendor}", "is no image")
                yield str(vendor), tags[0]
        elif value is not None:
            raise self._error("model.docker_image", "is neither an image nor a mapping")

    def _others(self, entry: Mapping[str, Any], prefix: str, known: set[str]) -> None:
        self._unknown += [f"{prefix}{name}" for name in entry if name not in known]

    def _map(self, entry: Mapping[str, Any], name: str, key: str = "") -> Mapping[str, Any]:
        return self._mapping(entry.get(name) or {}, key or name)

    def _mapping(self, value: Any, key: str) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise self._error(key, "is not a mapping")
        return value

    def _list(self, entry: Mapping[str, Any], name: str) -> list[Any]:
        value = entry.get(name) or []
        if not isinstance(value, list):
            raise self._error(name, "is not a list")
        return value

    def _number(self, entry: Mapping[str, Any], name: str, key: str) -> int | None:
        return None if entry.get(name) is None else self._whole(entry[name], key)

    def _whole(self, value: Any, key: str) -> int:
        if isinstance(value, bool) or not str(value).isdecimal():
            raise self._error(key, f"is {value!r} and no whole number")
        return int(str(value))

    def _error(self, key: str, what: str) -> InputError:
        return InputError(f"{self._where}: {key} {what}.", WAY_OUT)


def _value(word: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(word)
    except ValueError:
        return word
    return value
