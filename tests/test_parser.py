"""Commands against the real vLLM, whose import takes about 8 s, once: what is wrong is caught, what is right passes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cookbook.deployment import Argument, Deployment, EnvVar, Origin, Process
from cookbook.errors import InputError
from cookbook.parser import Engine, Problem, check, load_engine
from cookbook.rehearse import Rehearsal

ORIGIN = Origin(layer="test", why="Test.", basis="chosen")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load_engine()


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


def test_the_recipes_command_passes(engine: Engine, b300_tp8: Deployment, rehearsal: Rehearsal) -> None:
    assert check(b300_tp8, engine) == []
    assert check(rehearsal.deployment, engine) == []


@pytest.mark.parametrize(
    ("argument", "subject", "what", "nearest"),
    [
        (("--tensor-paralel-size", 8), "--tensor-paralel-size", "no such flag", "--tensor-parallel-size"),
        (("--tensor-parallel", 8), "--tensor-parallel", "no such flag", "--tensor-parallel-size"),
        (("--max-model-len", "long"), "--max-model-len", "long", None),
        (("--kv-cache-dtype", "fp9"), "--kv-cache-dtype", "invalid choice: 'fp9'", "fp8"),
        (("--moe-backend", "deep_gem"), "--moe-backend", "deep_gem", "deep_gemm"),
        (("--host", None), "--host", "expected", None),
        (("--enable-prefix-caching", "yes"), "--enable-prefix-caching", "unrecognized arguments: yes", None),
        (("--attention-config", {"bakcend": "FLASHMLA"}), "--attention-config", "bakcend", None),
        (("--attention-config", {"backend": "FLASH_MLA_X"}), "--attention-config", "FLASH_MLA_X", None),
        (("--compilation-config", {"cudagraf_mode": "FULL"}), "--compilation-config", "cudagraf_mode", None),
        (("--attention-backend", "FLASHMLA_SPARCE"), "--attention-backend", "FLASHMLA_SPARCE", "FLASHMLA_SPARSE"),
        (("--tool-call-parser", "kimi_k4"), "--tool-call-parser", 'no tool-call parser "kimi_k4"', "kimi_k3"),
        (("--reasoning-parser", "kimi_k4"), "--reasoning-parser", 'no reasoning parser "kimi_k4"', "kimi_k3"),
        (
            ("--speculative-config", {"method": "dsparkk", "num_speculative_tokens": 7}),
            "--speculative-config.method",
            'no speculative method "dsparkk"',
            "dspark",
        ),
        (
            ("--speculative-config", {"method": "dspark", "num_speculative_tokens": 7}),
            "--speculative-config.model",
            "needs a draft model",
            None,
        ),
        (
            ("--speculative-config", {"method": "ngram", "num_speculative_token": 7}),
            "--speculative-config.num_speculative_token",
            "no key",
            "num_speculative_tokens",
        ),
        (
            ("--kv-transfer-config", {"kv_connector": "NixelConnector", "kv_role": "kv_both"}),
            "--kv-transfer-config.kv_connector",
            'no KV connector "NixelConnector"',
            "NixlConnector",
        ),
        (
            ("--kv-transfer-config", {"kv_connector": "NixlConnector", "kv_role": "kv_all"}),
            "--kv-transfer-config",
            "kv_role",
            None,
        ),
        (
            ("--kv-transfer-config", {"kv_connector": "NixlConnector", "kv_rolle": "kv_both"}),
            "--kv-transfer-config",
            "kv_rolle",
            None,
        ),
        (
            (
                "--kv-transfer-config",
                {
                    "kv_connector": "MultiConnector",
                    "kv_role": "kv_both",
                    "kv_connector_extra_config": {
                        "connectors": [{"kv_connector": "SimpleOffload", "kv_role": "kv_both"}]
                    },
                },
            ),
            "--kv-transfer-config.kv_connector_extra_config.connectors.0.kv_connector",
            'no KV connector "SimpleOffload"',
            None,
        ),
    ],
)
def test_a_wrong_argument_is_caught(
    engine: Engine, argument: tuple[str, Any], subject: str, what: str, nearest: str | None
) -> None:
    problems = engine.check(process(argument))
    found = [problem for problem in problems if problem.subject == subject and what in problem.what]
    assert found, problems
    assert "\n" not in found[0].what
    if nearest:
        assert nearest in found[0].nearest


def test_a_misspelt_variable_is_caught(engine: Engine) -> None:
    problems = engine.check(process(VLLM_USE_V2_MODEL_RUNER="1", NCCL_WHATEVER="1"))
    assert [problem.subject for problem in problems] == ["VLLM_USE_V2_MODEL_RUNER"]
    assert "VLLM_USE_V2_MODEL_RUNNER" in problems[0].nearest


def test_every_mistake_of_a_command_is_named(engine: Engine) -> None:
    problems = engine.check(
        process(("--kv-cache-dtype", "fp9"), ("--max-model-len", "long"), ("--nope", None), ("--port", 8000))
    )
    assert {problem.subject for problem in problems} == {"--kv-cache-dtype", "--max-model-len", "--nope"}


def test_a_flag_that_stands_twice_is_caught(engine: Engine) -> None:
    problems = engine.check(process(("--port", 8000), ("--port", 8001)))
    assert problems == [Problem("engine-0", "--port", "The flag stands twice.")]


def test_what_is_right_passes(engine: Engine) -> None:
    nixl = {"kv_connector": "NixlConnector", "kv_role": "kv_producer", "kv_load_failure_policy": "fail"}
    problems = engine.check(
        process(
            ("--decode-context-parallel-size", 8),
            ("--dcp-comm-backend", "a2a"),
            ("--enable-expert-parallel", None),
            ("--moe-backend", "deep_gemm_mega_moe"),
            ("--kv-cache-dtype", "nvfp4_ds_mla"),
            ("--attention-config", {"indexer_kv_dtype": "fp8"}),
            ("--compilation-config", {"cudagraph_mode": "FULL_DECODE_ONLY"}),
            ("--additional-config", {"decode_backend": "latency_specialized"}),
            ("--kv-transfer-config", nixl),
            (
                "--speculative-config",
                {"method": "dspark", "model": "Inferact/Kimi-K3.1-Pro-DSpark-preview", "num_speculative_tokens": 7},
            ),
        )
    )
    assert problems == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(data=st.data())
def test_whatever_the_parser_offers_passes(engine: Engine, data: st.DataObject) -> None:
    actions = engine.parser._option_string_actions
    flags = sorted(flag for flag, action in actions.items() if flag.startswith("--") and action.choices)
    flag = data.draw(st.sampled_from(flags))
    value = data.draw(st.sampled_from([choice for choice in actions[flag].choices or () if choice is not None]))
    assert engine.check(process((flag, value if isinstance(value, str) else str(value)))) == []


def test_a_router_is_not_held_against_vllm(engine: Engine, b300_tp8: Deployment) -> None:
    router = process(("--policy", "round_robin")).model_copy(update={"program": ("vllm-router",), "role": "router"})
    assert check(b300_tp8.model_copy(update={"processes": (router,)}), engine) == []


def test_a_missing_vllm_is_a_clear_error_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """A double: vLLM is installed here, so its import is made to fail."""
    monkeypatch.setitem(__import__("sys").modules, "vllm.tool_parsers", None)
    with pytest.raises(InputError, match=r"vLLM cannot be imported here: .*scripts/install cpu"):
        load_engine()
