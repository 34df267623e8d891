"""Commands against the real vLLM, whose import takes about 8 s, once: what is wrong is caught, what is right passes."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cookbook.deployment import Argument, Deployment, EnvVar, Origin, Process
from cookbook.errors import InputError
from cookbook.layers import OVERRIDES
from cookbook.parser import Engine, Foreign, Names, Problem, Stale, check, load_engine
from cookbook.rehearse import Rehearsal

ORIGIN = Origin(layer="test", why="Test.", basis="chosen")
NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_producer", "kv_load_failure_policy": "fail"}
OFFLOAD = {
    "kv_connector": "SimpleCPUOffloadConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"cpu_bytes_to_use_per_rank": 137438953472, "lazy_offload": False},
}
DSPARK = {
    "method": "dspark",
    "model": "Inferact/Kimi-K3.1-Pro-DSpark-preview",
    "num_speculative_tokens": 7,
    "draft_sample_method": "probabilistic",
    "rejection_sample_method": "block",
}


def multi(*connectors: object) -> dict[str, Any]:
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": list(connectors)},
    }


class Loaded:
    """The engine, and what loading it left behind."""

    def __init__(self, folder: Path) -> None:
        before = dict(os.environ)
        self.engine, self.output = self._quietly(folder / "output")
        self.changed = {name for name in os.environ.keys() | before.keys() if os.environ.get(name) != before.get(name)}

    def _quietly(self, output: Path) -> tuple[Engine, str]:
        """Load with the terminal's two file descriptors in a file: what C code and child processes say counts too."""
        sys.stdout.flush()
        sys.stderr.flush()
        kept = [os.dup(1), os.dup(2)]
        with output.open("wb") as file:
            try:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
                engine = load_engine()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                for descriptor, original in enumerate(kept, start=1):
                    os.dup2(original, descriptor)
                    os.close(original)
        return engine, output.read_text()


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError("vLLM went to the network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        yield Loaded(tmp_path_factory.mktemp("vllm"))


@pytest.fixture(scope="module")
def engine(loaded: Loaded) -> Engine:
    return loaded.engine


def process(*arguments: tuple[str, Any], **environment: str) -> Process:
    return Process(
        name="engine-0",
        role="engine",
        node=0,
        program=("vllm", "serve", "some/model"),
        arguments=tuple(Argument(flag=flag, value=value, origins=(ORIGIN,)) for flag, value in arguments),
        environment=tuple(EnvVar(name=name, value=value, origin=ORIGIN) for name, value in environment.items()),
        host="127.0.0.1",
        port=8000,
        devices=1,
    )


def test_loading_prints_nothing(loaded: Loaded) -> None:
    assert loaded.output == ""


def test_loading_leaves_the_environment_as_it_was(loaded: Loaded) -> None:
    """A server that is started later inherits it: with VLLM_LOGGING_LEVEL=ERROR it would not say when it is ready."""
    assert loaded.changed == set()


def test_the_version_is_vllms(engine: Engine) -> None:
    assert engine.version.startswith("0.32.0")


def test_the_models_that_vllm_knows_are_there(engine: Engine) -> None:
    assert {"KimiK3ForConditionalGeneration", "KimiK3MTPModel"} <= engine.architectures


def test_the_recipes_command_passes(engine: Engine, b300_tp8: Deployment, rehearsal: Rehearsal) -> None:
    assert check(b300_tp8, engine) == []
    assert check(rehearsal.deployment, engine) == []


WRONG: list[tuple[tuple[str, Any], str, str, str | None]] = [
    (("--tensor-paralel-size", 8), "--tensor-paralel-size", "no such flag", "--tensor-parallel-size"),
    (("--tensor-parallel", 8), "--tensor-parallel", "short for --tensor-parallel-size", "--tensor-parallel-size"),
    (("-tpp", 8), "-tpp", "no such flag", None),
    (("--max-model-len", "long"), "--max-model-len", "'long'", None),
    (("--tensor-parallel-size", 1.5), "--tensor-parallel-size", "Invalid int value: '1.5'", None),
    (("--gpu-memory-utilization", "most"), "--gpu-memory-utilization", "Invalid float value: 'most'", None),
    (("--kv-cache-dtype", "fp9"), "--kv-cache-dtype", "Invalid choice: 'fp9'.", "fp8"),
    (("--dcp-comm-backend", "a2"), "--dcp-comm-backend", "Invalid choice: 'a2'.", "a2a"),
    (("--moe-backend", "deep_gem"), "--moe-backend", "Invalid choice: 'deep_gem'.", "deep_gemm"),
    (("--host", None), "--host", "Expected", None),
    (("--enable-prefix-caching", "yes"), "--enable-prefix-caching", "Unrecognized arguments: yes.", None),
    (("--config", "flags.yaml"), "--config", "not read here", None),
    (("--help", None), "--help", "serves nothing", None),
    (("--attention-config", {"bakcend": "FLASHMLA"}), "--attention-config.bakcend", "no such key", "backend"),
    (
        ("--attention-config", {"backend": "FLASHMLA_SPARCE"}),
        "--attention-config.backend",
        "Unknown attention backend: 'FLASHMLA_SPARCE'.",
        "FLASHMLA_SPARSE",
    ),
    (
        ("--attention-config", {"indexer_kv_dtype": "fp9"}),
        "--attention-config.indexer_kv_dtype",
        "Input should be 'auto'",
        "fp8",
    ),
    (("--attention-config", "{broken"), "--attention-config", "Invalid JSON", None),
    (("--speculative-config", "{broken"), "--speculative-config", "not JSON", None),
    (("--speculative-config", [1]), "--speculative-config", "has to be a JSON object", None),
    (("--tool-call-parser", "kimi\nk3"), "--tool-call-parser", 'no tool-call parser "kimi k3"', "kimi_k3"),
    (
        ("--compilation-config", {"cudagraf_mode": "FULL"}),
        "--compilation-config.cudagraf_mode",
        "no such key",
        "cudagraph_mode",
    ),
    (("--compilation-config", {"cudagraph_mode": "FULLEST"}), "--compilation-config", "FULLEST", None),
    (
        ("--compilation-config", {"pass_config": {"fuse_norm_qant": True}}),
        "--compilation-config.pass_config.fuse_norm_qant",
        "no such key",
        "fuse_norm_quant",
    ),
    (("--compilation-config.cudagraf_mode", "FULL"), "--compilation-config.cudagraf_mode", "no such key", None),
    (("--attention-backend", "FLASHMLA_SPARCE"), "--attention-backend", "FLASHMLA_SPARCE", "FLASHMLA_SPARSE"),
    (("--attention_backend", "FLASHMLA_SPARCE"), "--attention_backend", "FLASHMLA_SPARCE", "FLASHMLA_SPARSE"),
    (("--tool-call-parser", "kimi_k4"), "--tool-call-parser", 'no tool-call parser "kimi_k4"', "kimi_k3"),
    (("--reasoning-parser", "kimi_k4"), "--reasoning-parser", 'no reasoning parser "kimi_k4"', "kimi_k3"),
    (("--enable-auto-tool-choice", None), "--enable-auto-tool-choice", "requires --tool-call-parser", None),
    (("--load-format", "fastsafetensor"), "--load-format", 'no load format "fastsafetensor"', "fastsafetensors"),
    (("--quantization", "mxfp5"), "--quantization", 'no quantization "mxfp5"', "mxfp4"),
    (("--tokenizer-mode", "kimi_k4"), "--tokenizer-mode", 'no tokenizer mode "kimi_k4"', "kimi_k3"),
    (
        ("--speculative-config", DSPARK | {"method": "dsparkk"}),
        "--speculative-config.method",
        'no speculative method "dsparkk"',
        "dspark",
    ),
    (("--spec-method", "dsparkk"), "--spec-method", "Invalid choice: 'dsparkk'.", "dspark"),
    (
        ("--speculative-config", {"method": "ngram", "num_speculative_token": 7}),
        "--speculative-config.num_speculative_token",
        "no such key",
        "num_speculative_tokens",
    ),
    (
        ("--speculative-config", DSPARK | {"num_speculative_tokens": 0}),
        "--speculative-config.num_speculative_tokens",
        "greater than 0",
        None,
    ),
    (
        ("--speculative-config", DSPARK | {"draft_sample_method": "probabilist"}),
        "--speculative-config.draft_sample_method",
        "Input should be",
        "probabilistic",
    ),
    (
        ("--speculative-config", DSPARK | {"attention_backend": "TRITON_MLAA"}),
        "--speculative-config.attention_backend",
        "Unknown attention backend",
        "TRITON_MLA",
    ),
    (("--kv-transfer-config", {"kv_role": "kv_both"}), "--kv-transfer-config", "names no kv_connector", None),
    (("--kv-transfer-config", {"kv_connector": "NixlConnector"}), "--kv-transfer-config", "specify kv_role", None),
    (
        ("--kv-transfer-config", NIXL | {"kv_connector": "NixelConnector"}),
        "--kv-transfer-config.kv_connector",
        'no KV connector "NixelConnector"',
        "NixlConnector",
    ),
    (("--kv-transfer-config", NIXL | {"kv_role": "kv_bot"}), "--kv-transfer-config.kv_role", "should be", "kv_both"),
    (("--kv-transfer-config", NIXL | {"kv_rolle": "x"}), "--kv-transfer-config.kv_rolle", "no such key", "kv_role"),
    (
        ("--kv-transfer-config", multi(NIXL, OFFLOAD | {"kv_connector": "SimpleCPUOfloadConnector"})),
        "--kv-transfer-config.kv_connector_extra_config.connectors.1.kv_connector",
        'no KV connector "SimpleCPUOfloadConnector"',
        "SimpleCPUOffloadConnector",
    ),
    (
        ("--kv-transfer-config", multi(NIXL | {"kv_rolle": "x"})),
        "--kv-transfer-config.kv_connector_extra_config.connectors.0.kv_rolle",
        "no such key",
        "kv_role",
    ),
    (
        ("--kv-transfer-config", multi("NixlConnector")),
        "--kv-transfer-config.kv_connector_extra_config.connectors.0",
        "should be an object",
        None,
    ),
    (
        ("--kv-transfer-config", multi()),
        "--kv-transfer-config.kv_connector_extra_config.connectors",
        "needs a list of connectors",
        None,
    ),
]


@pytest.mark.parametrize(("argument", "subject", "what", "nearest"), WRONG)
def test_a_wrong_argument_is_caught(
    engine: Engine, argument: tuple[str, Any], subject: str, what: str, nearest: str | None
) -> None:
    """Amid flags that are right, and as the only problem."""
    (problem,) = engine.check(process(("--port", 8000), argument, ("--trust-remote-code", None)))
    assert problem.subject == subject
    assert what in problem.what
    assert "\n" not in problem.what
    assert " at 0x" not in problem.what
    assert len(problem.what) < 200
    if nearest:
        assert nearest in problem.nearest


@pytest.mark.parametrize("method", ["draft_model", "eagle", "eagle3", "medusa", "dflash", "dspark", "custom_class"])
def test_a_method_without_its_draft_model_is_caught(engine: Engine, method: str) -> None:
    """dspark too: vLLM would look for the draft in the served checkpoint, and Kimi's holds none."""
    config = {"method": method, "num_speculative_tokens": 7}
    (problem,) = engine.check(process(("--speculative-config", config)))
    assert (problem.subject, problem.what) == (
        "--speculative-config.model",
        f"The method {method} needs a draft model.",
    )
    assert engine.check(process(("--speculative-config", config), ("--spec-model", "a/draft"))) == []


@pytest.mark.parametrize("method", ["ngram", "suffix", "mtp"])
def test_a_method_that_needs_no_draft_model_passes(engine: Engine, method: str) -> None:
    assert engine.check(process(("--speculative-config", {"method": method, "num_speculative_tokens": 3}))) == []


def test_every_mistake_of_one_json_value_is_named(engine: Engine) -> None:
    problems = engine.check(process(("--attention-config", {"indexer_kv_dtype": "fp9", "bakcend": "auto"})))
    assert {problem.subject for problem in problems} == {
        "--attention-config.indexer_kv_dtype",
        "--attention-config.bakcend",
    }


def test_every_mistake_of_a_command_is_named_in_its_order(engine: Engine) -> None:
    problems = engine.check(
        process(
            ("--nope", None),
            ("--kv-cache-dtype", "fp9"),
            ("--max-model-len", "long"),
            ("--port", 8000),
            ("--tool-call-parser", "kimi_k4"),
            VLLM_NOPE="1",
        )
    )
    assert [problem.subject for problem in problems] == [
        "--nope",
        "--kv-cache-dtype",
        "--max-model-len",
        "--tool-call-parser",
        "VLLM_NOPE",
    ]


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        (("--port", 8000), ("--port", 8001), "stands twice"),
        (("-tp", 8), ("--tensor-parallel-size", 8), "sets what -tp has set"),
        (
            ("--enable-prefix-caching", None),
            ("--no-enable-prefix-caching", None),
            "sets what --enable-prefix-caching has set",
        ),
    ],
)
def test_a_flag_that_stands_twice_is_caught(
    engine: Engine, first: tuple[str, Any], second: tuple[str, Any], what: str
) -> None:
    problem = Problem("engine-0", second[0], f"The flag {what}; vLLM takes the last.")
    assert engine.check(process(first, second)) == [problem]


def test_the_same_value_is_refused_each_time(engine: Engine) -> None:
    """What was read once is remembered, errors are not."""
    wrong = process(("--attention-config", {"bakcend": "auto"}), VLLM_PORT="no port")
    right = process(("--attention-config", {"backend": "auto"}), VLLM_PORT="8000")
    first = engine.check(wrong)
    assert len(first) == 2
    assert [engine.check(one) for one in (wrong, right, wrong)] == [first, [], first]


def test_two_flags_that_exclude_each_other_are_caught(engine: Engine) -> None:
    (backend,) = engine.check(
        process(("--attention-backend", "FLASHMLA"), ("--attention-config", {"backend": "FLASHMLA"}))
    )
    (method,) = engine.check(process(("--spec-method", "dspark"), ("--speculative-config", DSPARK)))
    assert (backend.subject, method.subject) == ("--attention-backend", "--spec-method")


def test_a_second_model_and_none_at_all_are_caught(engine: Engine) -> None:
    two = process().model_copy(update={"program": ("vllm", "serve", "some/model", "other/model")})
    none = process().model_copy(update={"program": ("vllm", "serve")})
    assert [problem.what for problem in engine.check(two)] == ["Unrecognized arguments: other/model."]
    assert ["names no model" in problem.what for problem in engine.check(none)] == [True]


def test_a_misspelt_variable_is_caught(engine: Engine) -> None:
    (problem,) = engine.check(process(VLLM_USE_V2_MODEL_RUNER="1", NCCL_WHATEVER="1"))
    assert problem.subject == "VLLM_USE_V2_MODEL_RUNER"
    assert problem.nearest[0] == "VLLM_USE_V2_MODEL_RUNNER"


@pytest.mark.parametrize(
    ("name", "value", "what", "nearest"),
    [
        ("VLLM_SSM_CONV_STATE_LAYOUT", "DSS", "Invalid value 'DSS' for VLLM_SSM_CONV_STATE_LAYOUT.", "DS"),
        ("VLLM_FLASHINFER_ALLREDUCE_BACKEND", "mnvl", "Invalid value 'mnvl'", "mnnvl"),
        ("VLLM_ENGINE_READY_TIMEOUT_S", "1h", "'1h'", None),
        ("VLLM_PORT", "tcp://10.0.0.1:80", "VLLM_PORT", None),
    ],
)
def test_a_variables_wrong_value_is_caught(
    engine: Engine, name: str, value: str, what: str, nearest: str | None
) -> None:
    before = dict(os.environ)
    (problem,) = engine.check(process(**{name: value}))
    assert problem.subject == name
    assert what in problem.what
    if nearest:
        assert problem.nearest[0] == nearest
    assert dict(os.environ) == before


B300: tuple[tuple[str, Any], ...] = (
    ("--tensor-parallel-size", 8),
    ("--trust-remote-code", None),
    ("--gpu-memory-utilization", 0.95),
    ("--load-format", "fastsafetensors"),
    ("--no-enable-flashinfer-autotune", None),
    ("--max-model-len", 1048576),
    ("--kv-cache-dtype", "fp8"),
    ("--enable-prefix-caching", None),
    ("--enable-auto-tool-choice", None),
    ("--tool-call-parser", "kimi_k3"),
    ("--reasoning-parser", "kimi_k3"),
    ("--host", "127.0.0.1"),
    ("--port", 8000),
)
B300_ENVIRONMENT = {
    "VLLM_ALLREDUCE_USE_FLASHINFER": "1",
    "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_USE_RUST_FRONTEND": "1",
}
DECODE: tuple[tuple[str, Any], ...] = (
    ("--data-parallel-size", 16),
    ("--data-parallel-size-local", 4),
    ("--data-parallel-start-rank", 4),
    ("--data-parallel-address", "10.0.0.1"),
    ("--data-parallel-rpc-port", 13345),
    ("--data-parallel-hybrid-lb", None),
    ("--max-num-seqs", 8),
    ("--max-num-batched-tokens", 32),
    ("--no-disable-hybrid-kv-cache-manager", None),
    ("--kv-transfer-config", NIXL | {"kv_role": "kv_consumer"}),
    ("--compilation-config", {"cudagraph_mode": "FULL_DECODE_ONLY"}),
)
RIGHT: list[tuple[tuple[str, Any], ...]] = [
    (),
    (("--decode-context-parallel-size", 8), ("--dcp-comm-backend", "a2a")),
    (("-dcp", 8), ("--cp-kv-cache-interleave-size", 64)),
    (("--enable-expert-parallel", None), ("--moe-backend", "deep_gemm_mega_moe")),
    (("--moe-backend", "deep-gemm-mega-moe"),),
    (("--attention-config", {"indexer_kv_dtype": "fp8"}),),
    (("--attention-config", {"backend": "auto"}),),
    (("--attention-config", {"backend": "flashmla_sparse"}),),
    (("--attention-backend", "flashmla_sparse"),),
    (("--attention-backend", "auto"),),
    (("--attention-backend", "CUSTOM"),),
    (("--mm-encoder-attn-backend", "torch_sdpa"),),
    (("--speculative-config", DSPARK),),
    (("--speculative-config", {"method": "dspark", "num-speculative-tokens": 7, "model": "a/draft"}),),
    (("--speculative-config", DSPARK | {"attention_backend": "triton_mla"}),),
    (("--spec-method", "dspark"), ("--spec-model", "a/draft"), ("--spec-tokens", 7)),
    (("--additional-config", {"decode_backend": "latency_specialized", "free": {"form": 1}}),),
    (("--kv-transfer-config", NIXL),),
    (("--kv-transfer-config", OFFLOAD),),
    (("--kv-transfer-config", multi(NIXL, OFFLOAD)),),
    (("--kv-transfer-config", NIXL | {"kv_connector": "Own", "kv_connector_module_path": "own.connector"}),),
    DECODE,
    (("--nnodes", 2), ("--node-rank", 1), ("--master-addr", "10.0.0.1"), ("--headless", None)),
    (("--middleware", "a.b"), ("--middleware", "c.d")),
    (("--compilation-config.cudagraph_mode", "FULL"), ("--compilation-config.pass_config.fuse_norm_quant", "true")),
    (("-O3", None),),
    (("--served_model_name", "a"),),
    (("--compilation-config.splitting_ops+", "a,b"), ("--compilation-config.splitting_ops+", "c")),
    (("--max-num-seqs", "256"), ("--max-num-scheduled-tokens", "8k")),
    (("--chat-template", "/in/the/image/only.jinja"),),
    (("--disable-cascade-attn", None),),
]


@pytest.mark.parametrize("arguments", RIGHT)
def test_what_vllm_takes_passes(engine: Engine, arguments: tuple[tuple[str, Any], ...]) -> None:
    """Each on top of the command for eight B300."""
    assert engine.check(process(*B300, *arguments, **B300_ENVIRONMENT)) == []


def test_the_nvfp4_cache_passes(engine: Engine) -> None:
    assert engine.check(process(("--kv-cache-dtype", "nvfp4_ds_mla"))) == []


def test_a_parser_out_of_a_plugin_passes(engine: Engine) -> None:
    """What the plugin registers is known only where its file is."""
    assert engine.check(process(("--tool-call-parser", "own"), ("--tool-parser-plugin", "/own.py"))) == []
    assert engine.check(process(("--reasoning-parser", "own"), ("--reasoning-parser-plugin", "/own.py"))) == []


def test_the_variables_of_a_pd_worker_pass(engine: Engine) -> None:
    worker = process(
        VLLM_SSM_CONV_STATE_LAYOUT="DS",
        VLLM_NIXL_SIDE_CHANNEL_PORT="5557",
        VLLM_NIXL_SIDE_CHANNEL_HOST="10.0.0.1",
        VLLM_KIMI_K3_SHARD_SP_SHARED_EXPERT="1",
        UCX_TLS="rc,cuda_copy",
    )
    assert engine.check(worker) == []


def values(action: argparse.Action) -> st.SearchStrategy[Any]:
    """Values that argparse itself would take for `action`, as a recipe spells them."""
    if action.nargs == 0:
        return st.none()
    if action.choices:
        return st.sampled_from(sorted(str(choice) for choice in action.choices if choice is not None))
    if isinstance(action.default, bool | str) or action.default is None:
        return st.nothing()
    if isinstance(action.default, int):
        return st.integers(1, 2**31)
    return st.floats(0, 1000) if isinstance(action.default, float) else st.nothing()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(data=st.data())
def test_whatever_the_parser_offers_passes(engine: Engine, data: st.DataObject) -> None:
    """Several flags in one command, no two for the same setting, none that needs another to make sense."""
    together = {"--help", "--enable-auto-tool-choice", "--enable-log-outputs", "--spec-method", "--spec-model"}
    together |= {"--enable-per-request-metrics", "--data-parallel-multi-port-external-lb", "--grpc", "--spec-tokens"}
    offered = [
        (flag, action)
        for action in engine.parser._actions
        for flag in action.option_strings
        if not together & set(action.option_strings) and not values(action).is_empty
    ]
    chosen = data.draw(st.lists(st.sampled_from(offered), max_size=8, unique_by=lambda pair: pair[1].dest))
    arguments = [(flag, data.draw(values(action), label=flag)) for flag, action in chosen]
    assert engine.check(process(*arguments)) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(data=st.data())
def test_no_command_breaks_the_check(engine: Engine, data: st.DataObject) -> None:
    """Whatever stands in a command, the answer is a list of problems, each on one line."""
    flags = st.one_of(st.sampled_from(sorted(engine.parser._option_string_actions)), st.text(max_size=20))
    json_values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=10),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
        max_leaves=6,
    )
    arguments = data.draw(st.lists(st.tuples(flags, json_values), max_size=5))
    assert all("\n" not in problem.what for problem in engine.check(process(*arguments)))


def test_a_router_is_not_held_against_vllm(engine: Engine, b300_tp8: Deployment) -> None:
    router = process(("--policy", "round_robin")).model_copy(update={"program": ("vllm-router",), "role": "router"})
    assert check(b300_tp8.model_copy(update={"processes": (router,)}), engine) == []


PPU = Foreign(
    subject="--moe-backend",
    value="ppu_deep_gemm_w4a16",
    hardware=("ppu_810e",),
    owner="vllm-ppu",
    why="Its kernels.",
    source="ppu",
)
OWN_PARSER = Foreign(subject="--tool-call-parser", value="own", owner="a plugin", why="Its parser.", source="ppu")
NAMES = Names(
    foreign=(
        PPU,
        OWN_PARSER,
        Foreign(subject="--no-such-flag", value="1", owner="a plugin", why="It wants to.", source="ppu"),
        Foreign(
            subject="environment",
            value="VLLM_SAIL_USE_PLA",
            hardware=("ppu_810e",),
            owner="vllm-ppu",
            why="Its attention.",
            source="ppu",
        ),
        Foreign(subject="environment", value="NCCL_DEBUG", owner="NCCL", why="It logs.", source="nccl"),
    ),
    stale=(
        Stale(name="VLLM_NIXL_SIDE_CHANNEL_PORT", instead="--kv-port", why="It has moved.", source="vllm"),
        Stale(name="--swap-space", why="The V1 engine swaps nothing.", source="vllm"),
        Stale(name="--max-seq-len-to-capture", why="It is gone.", source="vllm"),
        Stale(name="--disable-log-stats", why="The dashboards need them.", source="vllm"),
    ),
)


def on(hardware: str, *processes: Process) -> Deployment:
    """Only what `check` reads."""
    read: dict[str, Any] = {"hardware": hardware, "processes": processes}
    return Deployment.model_construct(**read)


def subjects(problems: list[Problem]) -> list[str]:
    return [problem.subject for problem in problems]


def test_a_listed_name_of_a_plugin_passes(engine: Engine) -> None:
    named = process(("--moe-backend", "ppu_deep_gemm_w4a16"), ("--port", 8000), VLLM_SAIL_USE_PLA="1")
    assert check(on("ppu_810e", named), engine, NAMES) == []
    assert check(on("b300", named), engine, NAMES) == check(on("b300", named), engine)
    assert subjects(check(on("b300", named), engine)) == ["--moe-backend", "VLLM_SAIL_USE_PLA"]


def test_each_process_has_its_own_problems(engine: Engine) -> None:
    first = process(("--swap-space", 4), NCCL_DEBGU="INFO")
    second = process(("--port", "a")).model_copy(update={"name": "engine-1"})
    router = second.model_copy(update={"program": ("vllm-router",)})
    problems = check(on("b300", first, second, router), engine, NAMES)
    assert [(problem.process, problem.subject) for problem in problems] == [
        ("engine-0", "--swap-space"),
        ("engine-0", "NCCL_DEBGU"),
        ("engine-1", "--port"),
    ]


def test_a_listed_value_that_the_parser_takes_stays_in_the_command(engine: Engine) -> None:
    """--enable-auto-tool-choice needs a parser, and the plugin's is one."""
    named = process(("--tool-call-parser", "own"), ("--enable-auto-tool-choice", None))
    assert check(on("b300", named), engine, NAMES) == []
    assert subjects(check(on("b300", named), engine)) == ["--tool-call-parser"]


def test_the_rest_of_a_command_with_a_listed_name_is_checked(engine: Engine) -> None:
    rest = process(
        ("--moe-backend", "ppu_deep_gemm_w4a16"),
        ("--moe-backend", "ppu_deep_gemm_w4a17"),
        ("--no-such-flag", "1"),
        ("--kv-cache-dtype", "fp9"),
        ("--reasoning-parser", "own"),
        VLLM_SAIL_USE_PLB="1",
    )
    assert subjects(check(on("ppu_810e", rest), engine, NAMES)) == [
        "--moe-backend",
        "--no-such-flag",
        "--moe-backend",
        "--kv-cache-dtype",
        "--reasoning-parser",
        "VLLM_SAIL_USE_PLB",
    ]


def test_a_variable_that_nobody_lists_is_caught(engine: Engine) -> None:
    named = process(NCCL_DEBUG="INFO", NCCL_DEBGU="INFO", VLLM_PORT="8000", CUDA_HOME="/usr/local/cuda")
    assert check(on("b300", named), engine) == []
    assert check(on("b300", named), engine, NAMES) == [
        Problem("engine-0", "NCCL_DEBGU", "Neither vLLM nor the catalog's list knows the variable.")
    ]


def test_a_variable_of_the_users_own_needs_no_list(engine: Engine) -> None:
    origin = ORIGIN.model_copy(update={"layer": OVERRIDES})
    own = EnvVar(name="NCCL_WHATEVER", value="1", origin=origin)
    misspelt = EnvVar(name="VLLM_NOPE", value="1", origin=origin)
    named = process().model_copy(update={"environment": (own, misspelt)})
    assert subjects(check(on("b300", named), engine, NAMES)) == ["VLLM_NOPE"]


def test_a_stale_name_is_caught_though_vllm_takes_it(engine: Engine) -> None:
    stale = process(("--disable-log-stats", None), VLLM_NIXL_SIDE_CHANNEL_PORT="5557")
    assert check(on("b300", stale), engine) == []
    assert check(on("b300", stale), engine, NAMES) == [
        Problem("engine-0", "--disable-log-stats", "The dashboards need them."),
        Problem("engine-0", "VLLM_NIXL_SIDE_CHANNEL_PORT", "It has moved.", ("--kv-port",)),
    ]


def test_a_stale_name_that_vllm_refuses_is_told_once(engine: Engine) -> None:
    stale = process(("--swap_space", 4), ("--max-seq-len-to-capture", 8))
    assert check(on("b300", stale), engine, NAMES) == [
        Problem("engine-0", "--swap_space", "The V1 engine swaps nothing."),
        Problem("engine-0", "--max-seq-len-to-capture", "It is gone."),
    ]


def test_a_missing_vllm_is_a_clear_error_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """A double: vLLM is installed here, so its import is made to fail."""
    monkeypatch.setitem(sys.modules, "vllm.tool_parsers", None)
    with pytest.raises(InputError, match=r"vLLM cannot be imported here: .*scripts/install cpu"):
        load_engine()


def test_a_broken_vllm_is_a_clear_error_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """A double of what a torchvision that does not match does."""

    def broken(*_: object) -> NoReturn:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("vllm.entrypoints.launchers.cli_args.make_arg_parser", broken)
    with pytest.raises(InputError, match=r"torchvision::nms does not exist\. .*scripts/install cpu"):
        load_engine()
