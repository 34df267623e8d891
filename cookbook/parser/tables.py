"""The names and types that vLLM looks up only after its parser is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from cookbook.parser.shapes import Shape

__all__ = ["Tables"]


@dataclass(frozen=True)
class Tables:
    """Read from the vLLM that is installed, with whatever its plugins added.

    Attributes:
        attention_backends: For `--attention-backend`, in capitals; vLLM takes any case, and "auto".
        load_formats: For `--load-format`, in small letters; vLLM takes any case.
        quantizations: For `--quantization`.
        tokenizer_modes: For `--tokenizer-mode`.
        tool_parsers: For `--tool-call-parser`.
        reasoning_parsers: For `--reasoning-parser`.
        connectors: KV connectors.
        speculative: The keys of `--speculative-config` and what each takes.
        speculative_methods: Values of its key `method`.
        drafting_methods: Those of them that need the key `model`.
        configs: What vLLM's dataclasses take as JSON, by name.
        variables: Environment variables that vLLM reads, and what reads a value of each; it raises if that is wrong.
        architectures: Names of models that vLLM itself holds the code of.
    """

    attention_backends: frozenset[str]
    load_formats: frozenset[str]
    quantizations: frozenset[str]
    tokenizer_modes: frozenset[str]
    tool_parsers: frozenset[str]
    reasoning_parsers: frozenset[str]
    connectors: frozenset[str]
    speculative: Mapping[str, TypeAdapter[Any]]
    speculative_methods: frozenset[str]
    drafting_methods: frozenset[str]
    configs: Mapping[str, Shape]
    variables: Mapping[str, Callable[[str], object]]
    architectures: frozenset[str]
