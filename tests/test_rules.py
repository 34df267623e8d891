"""Each rule of the catalog is broken once, and says so with its source and the nearest selection that works."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cookbook.capacity import offload_bytes_per_device
from cookbook.catalog import Catalog
from cookbook.combinations import every
from cookbook.commands import allowed, commands
from cookbook.deployment import Deployment
from cookbook.errors import CookbookError, InputError, RuleError
from cookbook.nearest import nearest_allowed
from cookbook.resolve import resolve
from cookbook.selection import Selection, named, parse_override

B300 = {"hardware": "b300", "strategy": "single_node_tp"}
TEP = {"hardware": "b300", "strategy": "single_node_tep"}
GB300 = {"hardware": "gb300", "strategy": "multi_node_tp"}
PD = {"hardware": "gb300", "strategy": "pd_cluster"}
MI355X = {"hardware": "mi355x", "strategy": "single_node_tp"}
PPU = {"hardware": "ppu_810e", "strategy": "multi_node_tep"}
TPU = {"hardware": "tpu_v7x", "strategy": "multi_node_tep"}
CPU = {"hardware": "cpu", "strategy": "single_node_tp"}

# Rule, what breaks it, its features, its overrides.
BROKEN: list[tuple[str, dict[str, str], tuple[str, ...], tuple[str, ...]]] = [
    ("low_latency_hardware", MI355X, ("low_latency",), ()),
    ("low_latency_hardware", {"hardware": "vr200", "strategy": "multi_node_tp"}, ("low_latency",), ()),
    ("low_latency_layout", TEP, ("low_latency",), ()),
    ("low_latency_layout", PD, ("low_latency",), ()),
    ("low_latency_layout", B300, ("low_latency",), ("tensor-parallel-size=4",)),
    ("low_latency_layout", B300, ("low_latency", "dcp"), ("decode-context-parallel-size=4",)),
    ("low_latency_runner", B300, ("low_latency",), ("VLLM_USE_V2_MODEL_RUNNER=0",)),
    ("low_latency_graphs", B300, ("low_latency",), ("enforce-eager",)),
    ("low_latency_graphs", B300, ("low_latency",), ('compilation-config={"cudagraph_mode":"PIECEWISE"}',)),
    ("low_latency_draft", B300, ("low_latency", "spec_decoding"), ('speculative-config={"num_speculative_tokens":8}',)),
    ("dcp_divides_tp", B300, ("dcp",), ("decode-context-parallel-size=3",)),
    ("dcp_hardware", PPU, ("dcp",), ()),
    ("dcp_hardware", CPU, ("dcp",), ()),
    ("dcp_pools", PD, ("dcp",), ()),
    ("tp_divides_heads", B300, (), ("tensor-parallel-size=7",)),
    ("mega_moe_experts", B300, (), ("moe-backend=deep_gemm_mega_moe",)),
    ("mega_moe_domain", {"hardware": "b300", "strategy": "pd_cluster"}, (), ("decode:moe-backend=deep_gemm_mega_moe",)),
    ("tpu_text_only", TPU, (), ()),
    ("tpu_no_draft", TPU, ("text_only", "spec_decoding"), ()),
    ("tpu_no_offload", TPU, ("text_only", "kv_offload"), ()),
    ("ppu_no_draft", PPU, ("spec_decoding",), ()),
    ("ppu_no_offload", PPU, ("kv_offload",), ()),
    ("ppu_810e_w4a16", PPU, (), ("moe-backend=ppu_deep_gemm",)),
    ("ppu_810e_w4a16", PPU, (), ("moe-backend=false",)),
    ("nvfp4_hardware", MI355X, ("nvfp4_kv",), ()),
    ("nvfp4_hardware", {"hardware": "vr200", "strategy": "multi_node_tp"}, ("nvfp4_kv",), ()),
    ("pd_conv_layout", PD, (), ("VLLM_SSM_CONV_STATE_LAYOUT=SD",)),
    ("pd_conv_layout", PD, (), ("decode:VLLM_SSM_CONV_STATE_LAYOUT=false",)),
    ("pd_decode_plain", PD, ("kv_offload",), ('decode:kv-transfer-config={"kv_connector":"MultiConnector"}',)),
    ("offload_prefix_caching", B300, ("kv_offload",), ("no-enable-prefix-caching",)),
    ("offload_prefix_caching", PD, ("kv_offload",), ("prefill:enable-prefix-caching=false",)),
    ("offload_hash_seed", B300, ("kv_offload",), ("PYTHONHASHSEED=false",)),
    ("offload_cpu", CPU, ("kv_offload",), ()),
    ("draft_pipeline", GB300, ("spec_decoding",), ("tensor-parallel-size=4", "pipeline-parallel-size=2")),
    ("cpu_no_draft", CPU, ("spec_decoding",), ()),
    ("cpu_no_reasoning", CPU, ("reasoning",), ()),
    ("cpu_text_only", CPU, ("text_only",), ()),
    ("weights_fit", B300, (), ("tensor-parallel-size=4",)),
    ("weights_fit", B300, (), ("gpu-memory-utilization=0.5",)),
]
WARNED: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("No source supports an NVFP4 KV cache under DCP", B300, ("dcp", "nvfp4_kv")),
    ("MegaMoE crashed on K3", {"hardware": "gb300", "strategy": "multi_node_tep", "nodes": 4}, ()),
]


def selection(place: dict[str, Any], features: tuple[str, ...], overrides: tuple[str, ...] = ()) -> Selection:
    return Selection(**place, features=features, overrides=tuple(map(parse_override, overrides)))


@pytest.mark.parametrize(("rule", "place", "features", "overrides"), BROKEN)
def test_a_broken_rule_is_named_with_its_source_and_a_way_out(
    catalog: Catalog, rule: str, place: dict[str, str], features: tuple[str, ...], overrides: tuple[str, ...]
) -> None:
    with pytest.raises(RuleError) as caught:
        resolve(catalog, selection(place, features, overrides))
    assert rule in caught.value.rules
    assert f"rule {rule}" in str(caught.value)
    entry = catalog.rules.get(rule)
    if entry and entry.source:
        assert catalog.sources[entry.source].title in str(caught.value)
    assert all(link in str(caught.value) for link in (entry.links if entry else ()))
    assert "The nearest selection that works: " in caught.value.todo
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("words", "place", "features"), WARNED)
def test_a_warning_is_shown_and_refuses_nothing(
    catalog: Catalog, words: str, place: dict[str, Any], features: tuple[str, ...]
) -> None:
    notices = resolve(catalog, selection(place, features)).notices
    assert any(notice.kind == "warning" and words in notice.text for notice in notices)


def test_every_rule_is_broken_here(catalog: Catalog) -> None:
    errors = {name for name, rule in catalog.rules.items() if rule.severity == "error"}
    assert errors | {"weights_fit"} == {rule for rule, *_ in BROKEN}
    assert len(WARNED) == sum(rule.severity == "warning" for rule in catalog.rules.values())


def test_what_is_at_most_seven_may_be_seven(catalog: Catalog) -> None:
    assert not allowed(catalog, selection(B300, ("low_latency", "spec_decoding")))


@pytest.mark.parametrize(
    ("place", "features", "overrides", "todo"),
    [
        (TEP, ("low_latency",), (), "--hardware b300 --strategy single_node_tep."),
        (TPU, ("dcp",), (), "--hardware tpu_v7x --strategy multi_node_tep --feature dcp --feature text_only."),
        (TPU, ("spec_decoding",), (), "--hardware tpu_v7x --strategy multi_node_tep --feature text_only."),
        (PPU, ("reasoning", "spec_decoding"), (), "--hardware ppu_810e --strategy multi_node_tep --feature reasoning."),
        (B300, ("kv_offload",), ("no-enable-prefix-caching",), "the same without --set no-enable-prefix-caching."),
    ],
)
def test_the_nearest_has_the_fewest_changes(
    catalog: Catalog, place: dict[str, str], features: tuple[str, ...], overrides: tuple[str, ...], todo: str
) -> None:
    with pytest.raises(RuleError) as caught:
        resolve(catalog, selection(place, features, overrides))
    assert caught.value.todo == f"The nearest selection that works: {todo}"


# Host memory for the offload


def offload(catalog: Catalog, recipe: str, **given: float) -> Deployment:
    return resolve(catalog, named(catalog, recipe, **given))


def bytes_per_device(deployment: Deployment) -> int:
    return offload_bytes_per_device(deployment.processes[0])


@pytest.mark.parametrize("recipe", ["b300_kv_offload", "gb300_pd_kv_offload", "mi355x_agentx"])
def test_the_offload_is_as_tested_unless_it_is_said_otherwise(catalog: Catalog, recipe: str) -> None:
    assert bytes_per_device(offload(catalog, recipe)) == 128 * 2**30
    assert bytes_per_device(offload(catalog, recipe, offload_gib=32)) == 32 * 2**30


def test_the_offload_follows_from_the_hosts_memory(catalog: Catalog) -> None:
    assert bytes_per_device(offload(catalog, "b300_kv_offload", host_memory_gib=1000)) == 112 * 2**30
    assert bytes_per_device(offload(catalog, "gb300_pd_kv_offload", host_memory_gib=1000)) == 225 * 2**30


def test_too_much_offload_is_an_error_with_the_arithmetic(catalog: Catalog) -> None:
    with pytest.raises(RuleError, match="8 devices x 128 GiB are 1024 GiB a node, of which 512 GiB are free") as caught:
        offload(catalog, "b300_kv_offload", host_memory_gib=512, offload_gib=128)
    assert "--offload 57" in caught.value.todo


def test_an_override_of_the_size_is_counted_too(catalog: Catalog) -> None:
    size = 'kv-transfer-config={"kv_connector_extra_config":{"cpu_bytes_to_use_per_rank":999999999999}}'
    with pytest.raises(RuleError, match="offload_fits"):
        resolve(catalog, named(catalog, "b300_kv_offload", host_memory_gib=1024, overrides=(parse_override(size),)))


# Names


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hardware": "b30"}, 'no hardware called "b30". Did you mean b300'),
        ({"strategy": "single_tp"}, 'no strategy called "single_tp". Did you mean single_node_tp'),
        ({"strategy": "multi_node_tp"}, "No source shows the strategy multi_node_tp on NVIDIA B300"),
        ({"features": ("nvfp4",)}, 'no feature called "nvfp4". Did you mean nvfp4_kv'),
        ({"features": ("dcp", "dcp")}, "A feature stands twice"),
        ({"nodes": 3}, "has 1 node(s) on NVIDIA B300"),
        ({"host_memory_gib": 0.0}, "a number of GiB above 0"),
    ],
)
def test_a_name_that_does_not_exist_is_an_error(catalog: Catalog, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(catalog, Selection(**{**B300, **changes}))
    assert message in str(caught.value)


def test_nodes_can_be_chosen_where_the_strategy_leaves_them_open(catalog: Catalog) -> None:
    wide = resolve(catalog, Selection(**GB300, nodes=4))
    assert [process.value("--tensor-parallel-size") for process in wide.processes] == [16] * 4
    with pytest.raises(InputError, match="1 nodes are not several"):
        resolve(catalog, Selection(**GB300, nodes=1))


# Any selection


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_any_selection_gives_commands_or_a_reason(catalog: Catalog, data: st.DataObject) -> None:
    hardware = data.draw(st.sampled_from(sorted(catalog.hardware)))
    chosen = Selection(
        hardware=hardware,
        strategy=data.draw(st.sampled_from(sorted(catalog.strategies))),
        features=tuple(data.draw(st.lists(st.sampled_from(sorted(catalog.features)), unique=True))),
        nodes=data.draw(st.one_of(st.none(), st.integers(1, 20))),
    )
    try:
        deployment = resolve(catalog, chosen)
    except CookbookError as error:
        assert error.exit_code == 2
        assert error.todo
        found = nearest_allowed(catalog, chosen) if isinstance(error, RuleError) else None
        assert found is None or not allowed(catalog, found)
        return
    assert deployment.processes
    nodes = {process.node for process in deployment.processes}
    assert nodes == set(range(deployment.nodes))
    assert set().union(*(process.variables for process in deployment.processes)) <= {
        address.name for address in deployment.addresses
    }
    assert [process.name for process in deployment.processes] == [process.name for process in commands(catalog, chosen)]


def test_the_order_of_features_changes_no_flag(catalog: Catalog) -> None:
    one = resolve(catalog, selection(B300, ("dcp", "kv_offload"))).processes[0]
    other = resolve(catalog, selection(B300, ("kv_offload", "dcp"))).processes[0]
    assert {a.flag: a.value for a in one.arguments} == {a.flag: a.value for a in other.arguments}


def test_every_allowed_combination_says_what_is_not_verified(catalog: Catalog) -> None:
    """None of this hardware was at hand: no output of it may look as if it had been."""
    for chosen in every(catalog):
        if not catalog.hardware[chosen.hardware].model and commands(catalog, chosen):
            kinds = {notice.kind for notice in resolve(catalog, chosen).notices}
            assert kinds & {"preview", "unverified"}, str(chosen)
