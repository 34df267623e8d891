"""A rehearsal is the same deployment cut down, and says all that it changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cookbook.catalog import Catalog
from cookbook.deployment import Deployment
from cookbook.errors import CatalogError
from cookbook.rehearse import Cpu, Rehearsal, rehearse, threads_bind
from cookbook.resolve import resolve
from cookbook.selection import Override, named


def test_the_command_on_two_cores(rehearsal: Rehearsal) -> None:
    assert rehearsal.deployment.processes[0].argv == (
        *("vllm", "serve", "/models/small"),
        *("--max-model-len", "4096"),
        "--enable-prefix-caching",
        *("--kv-cache-dtype", "fp8"),
        *("--tensor-parallel-size", "2"),
        "--enable-auto-tool-choice",
        *("--tool-call-parser", "hermes"),
        *("--host", "127.0.0.1"),
        *("--port", "8123"),
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
    overrides = (Override(name="max-num-seqs", value="4"), Override(name="VLLM_LOGGING_LEVEL", value="DEBUG"))
    deployment = resolve(catalog, named(catalog, "b300_tp8", overrides=overrides))
    process = rehearse(deployment, catalog, Cpu(cores=(0, 1), port=1, model=Path("/m"))).deployment.processes[0]
    assert process.value("--max-num-seqs") == "4"
    assert any(v.name == "VLLM_LOGGING_LEVEL" for v in process.environment)


@given(st.lists(st.integers(0, 500), unique=True, min_size=2, max_size=64).map(sorted))
def test_workers_get_cores_of_their_own(cores: list[int]) -> None:
    groups = [group.split(",") for group in threads_bind(tuple(cores), 2).split("|")]
    taken = [int(core) for group in groups for core in group]
    assert len(groups) == 2
    assert len(groups[0]) == len(groups[1]) >= 1
    assert len(set(taken)) == len(taken)
    assert set(taken) <= set(cores)
