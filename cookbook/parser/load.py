"""vLLM imported without a sound and without a trace, and what is needed of it."""

from __future__ import annotations

import contextlib
import functools
import os
import typing
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter

from cookbook.errors import InputError
from cookbook.parser.engine import REMEMBERED, Engine
from cookbook.parser.quiet import quiet
from cookbook.parser.shapes import shape
from cookbook.parser.tables import Tables

__all__ = ["load_engine"]


def load_engine() -> Engine:
    """Import vLLM (about 8 s) and collect what `Engine` needs. Touches neither a device nor the network.

    Raises:
        InputError: There is no vLLM here, or it cannot be imported.
    """
    try:
        with _environment_kept(), quiet():
            return _load()
    except Exception as error:  # a broken install raises anything: torchvision's is a RuntimeError
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"vLLM cannot be imported here: {reason.rstrip('.')}.",
            "Run this in the image that the recipe names, or install the CPU engine: scripts/install cpu.",
        ) from error


@contextlib.contextmanager
def _environment_kept() -> Iterator[None]:
    """Undo what vLLM's import sets: a server that is started later inherits it, and would not log what it should."""
    before = dict(os.environ)
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _load() -> Engine:
    import vllm  # noqa: PLC0415
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args  # noqa: PLC0415
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    parser: ArgumentParser = make_arg_parser(FlexibleArgumentParser())
    return Engine.of(str(vllm.__version__), parser, validate_parsed_serve_args, _tables())


def _tables() -> Tables:
    from vllm import config, envs  # noqa: PLC0415
    from vllm.config.speculative import SpeculativeMethod  # noqa: PLC0415
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory  # noqa: PLC0415
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS  # noqa: PLC0415
    from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER  # noqa: PLC0415
    from vllm.model_executor.models import ModelRegistry  # noqa: PLC0415
    from vllm.reasoning import ReasoningParserManager  # noqa: PLC0415
    from vllm.tokenizers.registry import TokenizerRegistry  # noqa: PLC0415
    from vllm.tool_parsers import ToolParserManager  # noqa: PLC0415
    from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: PLC0415

    methods = frozenset(typing.get_args(SpeculativeMethod))
    backend = config.AttentionConfig.validate_backend_before
    return Tables(
        attention_backends=frozenset(AttentionBackendEnum.__members__),
        load_formats=frozenset(_LOAD_FORMAT_TO_MODEL_LOADER),  # it has no public list, nor have the connectors
        quantizations=frozenset(QUANTIZATION_METHODS),
        tokenizer_modes=frozenset({"auto", *TokenizerRegistry.tokenizers}),
        tool_parsers=frozenset(ToolParserManager.list_registered()),
        reasoning_parsers=frozenset(ReasoningParserManager.list_registered()),
        connectors=frozenset(KVConnectorFactory._registry),
        speculative=dict(_speculative(config.SpeculativeConfig, backend)),
        speculative_methods=methods,
        drafting_methods=frozenset(name for name in methods if _needs_model(config.SpeculativeConfig, name)),
        configs={
            name: shape(TypeAdapter(kind).core_schema)
            for name, kind in vars(config).items()
            if hasattr(kind, "__pydantic_fields__")
        },
        variables={name: _reader(name, read) for name, read in envs.environment_variables.items()},
        architectures=frozenset(ModelRegistry.get_supported_archs()),
    )


def _reader(name: str, read: Callable[[], object]) -> Callable[[str], object]:
    """What vLLM makes of a value of the variable `name`; it reads nothing but this process's environment."""

    @functools.lru_cache(maxsize=REMEMBERED)
    def of(value: str) -> object:
        before = os.environ.get(name)
        os.environ[name] = value
        try:
            return read()
        finally:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before

    return of


def _speculative(config: Any, backend: Callable[[Any], Any]) -> Iterator[tuple[str, TypeAdapter[Any]]]:
    """What each key takes. The whole cannot be validated: that loads the configuration of the draft model."""
    for name, field in config.__pydantic_fields__.items():
        engines_own = {type(mark).__name__ for mark in field.metadata} & {"SkipValidation"}
        if engines_own or name == "tensor_parallel_size":  # that one is there only to be refused
            continue
        before = (BeforeValidator(backend),) if name == "attention_backend" else ()
        marks = (*field.metadata, *before)
        kind: Any = Annotated[(field.annotation, *marks)] if marks else field.annotation
        yield name, TypeAdapter(kind)


def _needs_model(config: Any, method: str) -> bool:
    """Whether vLLM refuses `method` for want of a model, by letting it."""
    try:
        config(method=method, num_speculative_tokens=1)
    except Exception as error:  # noqa: BLE001  # without a target model, most methods fail in ways of their own
        return "without speculative model" in str(error) or "requires 'model'" in str(error)
    return False
