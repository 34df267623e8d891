"""A selection becomes exact commands, or a reason why not."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cookbook.catalog import Catalog
from cookbook.catalog.schema import ArgumentEntry
from cookbook.deployment import Deployment
from cookbook.errors import CatalogError, CookbookError, InputError
from cookbook.resolve import resolve
from cookbook.selection import Override, named, parse_override


def overridden(catalog: Catalog, *texts: str) -> Deployment:
    return resolve(catalog, named(catalog, "b300_tp8", overrides=tuple(map(parse_override, texts))))


def test_the_command_for_b300(b300_tp8: Deployment) -> None:
    assert b300_tp8.processes[0].argv == (
        *("vllm", "serve", "moonshotai/Kimi-K3.1-Pro"),
        "--trust-remote-code",
        *("--max-model-len", "1048576"),
        "--enable-prefix-caching",
        *("--gpu-memory-utilization", "0.95"),
        *("--load-format", "fastsafetensors"),
        "--no-enable-flashinfer-autotune",
        *("--kv-cache-dtype", "fp8"),
        *("--tensor-parallel-size", "8"),
        "--enable-auto-tool-choice",
        *("--tool-call-parser", "kimi_k3"),
        *("--reasoning-parser", "kimi_k3"),
        *("--host", "127.0.0.1"),
        *("--port", "8000"),
    )
    assert {v.name: v.value for v in b300_tp8.processes[0].environment} == {
        "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
        "VLLM_ALLREDUCE_USE_FLASHINFER": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "VLLM_USE_RUST_FRONTEND": "1",
    }


def test_what_is_not_stated_is_marked(b300_tp8: Deployment) -> None:
    assert b300_tp8.image
    assert b300_tp8.image.origin.basis == "inferred"
    bases = {a.flag: a.origins[0].basis for a in b300_tp8.processes[0].arguments}
    assert bases["--tensor-parallel-size"] == "stated"
    assert bases["--load-format"] == "from_k3"
    assert bases["--host"] == "chosen"


def test_every_source_that_is_named_is_carried(b300_tp8: Deployment) -> None:
    named = {o.source for a in b300_tp8.processes[0].arguments for o in a.origins if o.source}
    assert named <= set(b300_tp8.sources)


def test_the_same_selection_gives_the_same_bytes(catalog: Catalog, b300_tp8: Deployment) -> None:
    again = resolve(catalog, named(catalog, "b300_tp8"))
    assert again.model_dump_json() == b300_tp8.model_dump_json()


def test_a_later_layer_wins_and_says_so(catalog: Catalog) -> None:
    process = overridden(catalog, "max-model-len=262144").processes[0]
    argument = next(a for a in process.arguments if a.flag == "--max-model-len")
    assert argument.words() == ("--max-model-len", "262144")
    assert argument.origins[0].layer == "your override"


def test_a_flag_can_be_added_and_taken_out(catalog: Catalog) -> None:
    argv = overridden(catalog, "enforce_eager", "trust-remote-code=false", "VLLM_LOGGING_LEVEL=DEBUG").processes[0]
    assert "--enforce-eager" in argv.argv
    assert "--trust-remote-code" not in argv.argv
    assert ("VLLM_LOGGING_LEVEL", "DEBUG") in [(v.name, v.value) for v in argv.environment]


def test_a_claim_goes_when_its_condition_is_overridden(catalog: Catalog, b300_tp8: Deployment) -> None:
    assert b300_tp8.claim("kv_cache_tokens")
    assert overridden(catalog, "kv-cache-dtype=auto").claim("kv_cache_tokens") is None


def test_json_flags_merge_key_by_key(catalog: Catalog) -> None:
    process = overridden(catalog, 'attention-config={"a":{"b":1}}', 'attention-config={"a":{"c":2}}').processes[0]
    assert process.value("--attention-config") == {"a": {"b": 1, "c": 2}}


def with_json_flag(catalog: Catalog, hardware: dict[str, object], feature: dict[str, object]) -> Catalog:
    def entry(value: dict[str, object]) -> ArgumentEntry:
        return ArgumentEntry.model_validate({"value": value, "why": "Test.", "basis": "chosen"})

    b300 = catalog.hardware["b300"].model_copy(update={"args": {"--attention-config": entry(hardware)}})
    tools = catalog.features["tool_calling"].model_copy(update={"args": {"--attention-config": entry(feature)}})
    features = {**catalog.features, "tool_calling": tools}
    return catalog.model_copy(update={"hardware": {"b300": b300}, "features": features})


def test_a_json_clash_names_both_sides(catalog: Catalog) -> None:
    clashing = with_json_flag(catalog, {"a": {"b": 1}}, {"a": {"b": 2}})
    with pytest.raises(CatalogError, match=r"--attention-config\.a\.b: hardware b300 and feature tool_calling"):
        resolve(clashing, named(catalog, "b300_tp8"))


def test_json_of_two_layers_has_both_origins(catalog: Catalog) -> None:
    merged = resolve(with_json_flag(catalog, {"a": 1}, {"b": 2}), named(catalog, "b300_tp8")).processes[0]
    argument = next(a for a in merged.arguments if a.flag == "--attention-config")
    assert argument.words() == ("--attention-config", '{"a":1,"b":2}')
    assert [o.layer for o in argument.origins] == ["hardware b300", "feature tool_calling"]


def test_a_model_folder_keeps_the_name_that_clients_use(catalog: Catalog) -> None:
    deployment = resolve(catalog, named(catalog, "b300_tp8", model="/data/k31", revision="abc123"))
    argv = deployment.processes[0].argv
    assert argv[2] == "/data/k31"
    assert argv[argv.index("--served-model-name") + 1] == "moonshotai/Kimi-K3.1-Pro"
    assert argv[argv.index("--revision") + 1] == "abc123"
    assert deployment.served_model_name == "moonshotai/Kimi-K3.1-Pro"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("=5", "is not an override"),
        ("a b=5", "is not an override"),
        ("X;ECHO;Y=1", "is not an override"),
        ('attention-config={"a":', "not valid JSON"),
        ("api-key=secret", "never a parameter"),
        ("HF_TOKEN=secret", "never a parameter"),
        ("port=high", "whole number from 1 to 65535"),
        ("port=0", "whole number from 1 to 65535"),
        ("tensor-parallel-size=16", "needs 16 devices"),
        ("host=0.0.0.0", "open the server to the network"),
    ],
)
def test_an_override_that_cannot_be_is_an_error(catalog: Catalog, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        overridden(catalog, text)
    assert caught.value.todo


def test_an_unknown_recipe_names_the_nearest(catalog: Catalog) -> None:
    with pytest.raises(InputError, match=r'"b300_tp"\. Did you mean b300_tp8 or b300_tep'):
        resolve(catalog, named(catalog, "b300_tp"))


@given(st.lists(st.text(alphabet=string.ascii_lowercase + "-_=.{}[]\"'$ 0", min_size=1, max_size=20), max_size=4))
def test_any_override_resolves_or_is_a_clear_error(catalog: Catalog, texts: list[str]) -> None:
    try:
        argv = overridden(catalog, *texts).processes[0].argv
    except CookbookError as error:
        assert error.exit_code == 2
        assert str(error)
    else:
        assert all(isinstance(word, str) for word in argv)


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2)),
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2)),
)
def test_overrides_of_json_win_key_by_key(catalog: Catalog, first: dict[str, int], second: dict[str, int]) -> None:
    overrides = tuple(Override(name="additional-config", value=dict(value)) for value in (first, second))
    process = resolve(catalog, named(catalog, "b300_tp8", overrides=overrides)).processes[0]
    assert process.value("--additional-config") == {**first, **second}
