"""A rehearsal is the same deployment cut down, and says all that it changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cookbook.catalog import Catalog
from cookbook.deployment import Deployment
from cookbook.errors import CatalogError, InputError
from cookbook.rehearse import PORTS, Cpu, Rehearsal, rehearse, threads_bind
from cookbook.resolve import resolve
from cookbook.selection import Override, named


def test_the_command_on_two_cores(rehearsal: Rehearsal) -> None:
    assert rehearsal.deployment.processes[0].argv == (
        *("vllm", "serve", "/models/small"),
        *("--max-model-len", "2048"),
        "--enable-prefix-caching",
        *("--kv-cache-dtype", "fp8"),
        *("--tensor-parallel-size", "2"),
        "--enable-auto-tool-choice",
        *("--tool-call-parser", "hermes"),
        *("--host", "127.0.0.1"),
        *("--port", "8123"),
        "--disable-hybrid-kv-cache-manager",
        *("--served-model-name", "SmolLM2-135M-Instruct"),
        *("--dtype", "bfloat16"),
        "--enforce-eager",
    )
    environment = {v.name: v.value for v in rehearsal.deployment.processes[0].environment}
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "0|1"
    assert "VLLM_USE_RUST_FRONTEND" not in environment


def test_every_difference_is_listed_with_its_reason(b300_tp8: Deployment, rehearsal: Rehearsal) -> None:
    before = {a.flag: a.words() for a in b300_tp8.processes[0].arguments}
    after = {a.flag: a.words() for a in rehearsal.deployment.processes[0].arguments}
    before |= {v.name: (v.value,) for v in b300_tp8.processes[0].environment}
    after |= {v.name: (v.value,) for v in rehearsal.deployment.processes[0].environment}
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    listed = {s.what for s in rehearsal.substitutions}
    assert changed <= listed
    assert {"model", "image", "claim kv_cache_tokens"} <= listed
    assert all(s.reason.endswith(".") for s in rehearsal.substitutions)


def test_the_rehearsal_says_that_it_is_one(rehearsal: Rehearsal) -> None:
    assert rehearsal.deployment.notices[0].kind == "rehearsal"
    assert rehearsal.deployment.image is None


def test_the_kv_claim_becomes_the_small_models_arithmetic(rehearsal: Rehearsal) -> None:
    claim = rehearsal.deployment.claim("kv_cache_tokens")
    assert claim
    # 2 workers of 1 GiB; 30 layers, key and value, 4 KV heads of 64, one byte each.
    assert claim.value == 2 * 2**30 // (30 * 2 * 4 * 64)


def test_one_core_has_no_tensor_parallelism(b300_tp8: Deployment, catalog: Catalog) -> None:
    alone = rehearse(b300_tp8, catalog, Cpu(cores=(3,), port=1, model=Path("/m")))
    assert alone.deployment.processes[0].value("--tensor-parallel-size") == 1


def test_a_flag_of_the_catalog_without_a_rule_is_an_error(b300_tp8: Deployment, catalog: Catalog) -> None:
    rules = dict(catalog.rehearsal.args)
    del rules["--kv-cache-dtype"]
    broken = catalog.model_copy(update={"rehearsal": catalog.rehearsal.model_copy(update={"args": rules})})
    with pytest.raises(CatalogError, match=r"rehearsal\.yaml: args\.--kv-cache-dtype: has no rule"):
        rehearse(b300_tp8, broken, Cpu(cores=(0,), port=1, model=Path("/m")))


def test_a_flag_of_the_user_is_kept(catalog: Catalog) -> None:
    overrides = (Override(name="max-logprobs", value="4"), Override(name="VLLM_LOGGING_LEVEL", value="DEBUG"))
    deployment = resolve(catalog, named(catalog, "b300_tp8", overrides=overrides))
    process = rehearse(deployment, catalog, Cpu(cores=(0, 1), port=1, model=Path("/m"))).deployment.processes[0]
    assert process.value("--max-logprobs") == "4"
    assert any(v.name == "VLLM_LOGGING_LEVEL" for v in process.environment)


def rehearsed(catalog: Catalog, recipe: str) -> Rehearsal:
    cpu = Cpu(cores=(0, 1), port=8123, ports=tuple(range(9000, 9000 + PORTS)), model=Path("/models/small"))
    return rehearse(resolve(catalog, named(catalog, recipe)), catalog, cpu)


def argv(rehearsal: Rehearsal, name: str) -> tuple[str, ...]:
    return next(process.argv for process in rehearsal.deployment.processes if process.name == name)


def after(words: tuple[str, ...], flag: str) -> str:
    return words[words.index(flag) + 1]


@pytest.mark.parametrize("recipe", ["gb300_tp8", "ppu_810e_tp32", "tpu_v7x_tep32"])
def test_nodes_become_two_processes_of_one_tensor_parallel_group(catalog: Catalog, recipe: str) -> None:
    found = rehearsed(catalog, recipe)
    head, worker = argv(found, "engine-0"), argv(found, "engine-1")
    assert len(found.deployment.processes) == 2
    for rank, words in enumerate((head, worker)):
        assert after(words, "--tensor-parallel-size") == "2"
        assert after(words, "--nnodes") == "2"
        assert after(words, "--node-rank") == str(rank)
        assert after(words, "--master-addr") == "127.0.0.1"
    assert after(head, "--master-port") == after(worker, "--master-port") != "8123"
    assert "--headless" in worker
    assert "--headless" not in head
    binds = [
        variable.value
        for process in found.deployment.processes
        for variable in process.environment
        if variable.name == "VLLM_CPU_OMP_THREADS_BIND"
    ]
    assert binds == ["0", "1"]


def test_groups_become_two_processes_of_a_group_each(catalog: Catalog) -> None:
    found = rehearsed(catalog, "ppu_m890_dep32")
    for rank in (0, 1):
        words = argv(found, f"engine-{rank}")
        assert after(words, "--data-parallel-size") == "2"
        # vLLM 0.32.0 takes a head with a start rank for one of several servers, and refuses headless nodes (seen).
        assert ("--data-parallel-start-rank" in words) == ("--headless" in words) == (rank == 1)
        assert after(words, "--tensor-parallel-size") == "1"
    assert any(change.what == "processes" for change in found.substitutions)


def test_pools_become_two_servers_and_a_router_that_knows_them(catalog: Catalog) -> None:
    found = rehearsed(catalog, "gb300_pd_kv_offload")
    assert [process.name for process in found.deployment.processes] == ["prefill-0", "decode-0", "router-0"]
    prefill, decode, router = (argv(found, name) for name in ("prefill-0", "decode-0", "router-0"))
    assert after(router, "--port") == "8123"
    assert after(router, "--prefill") == f"http://127.0.0.1:{after(prefill, '--port')}"
    assert after(router, "--decode") == f"http://127.0.0.1:{after(decode, '--port')}"
    assert router.count("--decode") == 1
    first, second = json.loads(after(prefill, "--kv-transfer-config"))["kv_connector_extra_config"]["connectors"]
    assert (first["kv_connector"], first["kv_buffer_device"]) == ("NixlConnector", "cpu")
    assert second["kv_connector"] == "ExampleConnector"
    assert json.loads(after(decode, "--kv-transfer-config"))["kv_connector"] == "NixlConnector"
    for words in (prefill, decode):
        assert "--nnodes" not in words
        assert "--data-parallel-size" not in words
        assert "--headless" not in words
    side_ports = [
        variable.value
        for process in found.deployment.processes
        for variable in process.environment
        if variable.name == "VLLM_NIXL_SIDE_CHANNEL_PORT"
    ]
    assert len(set(side_ports)) == 2


def test_on_nodes_of_their_own_the_pools_find_each_other_by_address(catalog: Catalog) -> None:
    cpu = Cpu(cores=(0,), port=8123, ports=tuple(range(9000, 9000 + PORTS)), model=Path("/m"), apart=True)
    deployment = rehearse(resolve(catalog, named(catalog, "gb300_pd")), catalog, cpu).deployment
    prefill, decode, router = deployment.processes
    assert [process.node for process in deployment.processes] == [0, 1, 0]
    assert [(address.name, address.node) for address in deployment.addresses] == [
        ("PREFILL_0_IP", 0),
        ("DECODE_0_IP", 1),
    ]
    assert (prefill.host, decode.host, router.host) == ("${PREFILL_0_IP}", "${DECODE_0_IP}", "127.0.0.1")
    assert router.value("--decode") == f"http://${{DECODE_0_IP}}:{decode.port}"
    assert router.variables == ("PREFILL_0_IP", "DECODE_0_IP")


def test_every_recipe_rehearses_without_an_address_or_port_twice(catalog: Catalog) -> None:
    for recipe in catalog.recipes:
        found = rehearsed(catalog, recipe)
        ports = [process.port for process in found.deployment.processes if process.serves]
        assert len(set(ports)) == len(ports), recipe
        assert not [process for process in found.deployment.processes if process.variables], recipe
        assert all(change.reason for change in found.substitutions)


def test_too_few_ports_are_an_error(catalog: Catalog) -> None:
    deployment = resolve(catalog, named(catalog, "gb300_pd"))
    with pytest.raises(InputError, match="ports are too few"):
        rehearse(deployment, catalog, Cpu(cores=(0, 1), port=1, model=Path("/m")))


@given(st.lists(st.integers(0, 500), unique=True, min_size=2, max_size=64).map(sorted))
def test_workers_get_cores_of_their_own(cores: list[int]) -> None:
    groups = [group.split(",") for group in threads_bind(tuple(cores), 2).split("|")]
    taken = [int(core) for group in groups for core in group]
    assert len(groups) == 2
    assert len(groups[0]) == len(groups[1]) >= 1
    assert len(set(taken)) == len(taken)
    assert set(taken) <= set(cores)


@pytest.mark.parametrize("recipe", ["b300_kv_offload", "gb300_pd_kv_offload", "mi355x_agentx"])
def test_a_second_tier_has_a_small_first_one_so_that_prefixes_leave_it(catalog: Catalog, recipe: str) -> None:
    found = rehearsed(catalog, recipe)
    first, *others = found.deployment.processes
    assert first.value("--num-gpu-blocks-override") == 24
    assert not any(process.has("--num-gpu-blocks-override") for process in others if process.role == "decode")
    assert found.deployment.claims[0].value == 24 * 128
    assert any(change.what == "--num-gpu-blocks-override" for change in found.substitutions)


def test_without_a_second_tier_the_cache_is_as_large_as_its_memory(rehearsal: Rehearsal) -> None:
    assert not rehearsal.deployment.processes[0].has("--num-gpu-blocks-override")
