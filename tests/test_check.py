"""`cookbook check --all`: every allowed combination against the real vLLM, and that it can fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cookbook.catalog import Catalog, load
from cookbook.cli import main
from cookbook.combinations import every
from cookbook.commands import commands
from cookbook.parser import Engine, check_processes, load_engine, load_router
from cookbook.rehearse import PORTS, Cpu, rehearse
from cookbook.resolve import resolve
from cookbook.selection import Selection, named, parse_override


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load_engine()


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["check", *arguments])
    assert "Traceback" not in result.output
    return result


def test_all_allowed_combinations_are_accepted() -> None:
    result = run("--all", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["problems"] == []
    assert found["combinations"] > 3000
    assert found["allowed"] > 1000
    assert found["commands"] > 2000
    assert found["router_commands"] > 50
    assert found["router_checked"] is True
    assert found["serves_the_model"] is False


@pytest.mark.parametrize(
    ("file", "broken", "subject"),
    [
        (
            "features.yaml",
            "dcp: {args: {--decode-context-paralel-size: {value: 8, why: A typo., basis: chosen}}}",
            "--dec",
        ),
        ("features.yaml", "nvfp4_kv: {args: {--kv-cache-dtype: {value: nvfp4_ds}}}", "--kv-cache-dtype"),
        ("features.yaml", "reasoning: {args: {--reasoning-parser: {value: kimi_k31}}}", "--reasoning-parser"),
        ("features.yaml", "dcp: {env: {VLLM_DCP_Q_REPLICAT: {value: '1', why: A typo., basis: chosen}}}", "VLLM_DCP_Q"),
        ("features.yaml", "dcp: {env: {ACME_TURBO: {value: '1', why: Who reads it., basis: chosen}}}", "ACME_TURBO"),
        (
            "hardware.yaml",
            "ppu_m890: {args: {--moe-backend: {value: ppu_magic, why: No., basis: chosen}}}",
            "--moe-backend",
        ),
        ("hardware.yaml", "tpu_v7x: {env: {TPU_MAGIC: {value: '1', why: No., basis: chosen}}}", "TPU_MAGIC"),
        (
            "hardware.yaml",
            "mi355x: {env: {VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4: {value: '1', why: Old., basis: chosen}}}",
            "VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4",
        ),
        ("recipes.yaml", "tpu_v7x_tep32: {args: {--max-num-seqs: {value: many}}}", "--max-num-seqs"),
    ],
)
def test_a_flag_that_is_broken_on_purpose_is_found(
    tmp_path: Path, engine: Engine, file: str, broken: str, subject: str
) -> None:
    (tmp_path / file).write_text(broken)
    catalog = load(overlay=tmp_path)
    name = broken.partition(":")[0]
    touched = (
        selection
        for selection in every(catalog)
        if name in {selection.hardware, selection.recipe, *selection.features} and commands(catalog, selection)
    )
    selection = next(touched)
    problems = check_processes(commands(catalog, selection), engine, selection.hardware, catalog.names)
    assert any(problem.subject.startswith(subject) for problem in problems)


def test_a_broken_flag_fails_the_command(tmp_path: Path) -> None:
    (tmp_path / "recipes.yaml").write_text("tpu_v7x_tep32: {args: {--max-num-seqs: {value: many}}}")
    result = run("--all", "--catalog", str(tmp_path))
    assert result.exit_code == 1, result.output
    assert "tpu_v7x_tep32, engine: --max-num-seqs: " in result.output
    assert "4 problems with vLLM" in result.stderr


@pytest.mark.parametrize(
    ("recipe", "change", "instead"),
    [
        ("b300_tp8", "VLLM_ENABLE_K3_LATENT_MOE_TAIL_FUSION=1", ""),
        ("b300_tp8", "VLLM_PREFIX_CACHE_RETENTION_INTERVAL=1", ""),
        ("b300_tp8", "VLLM_RPC_TIMEOUT=1", ""),
        ("mi355x_tp8", "VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4=1", "VLLM_ROCM_USE_AITER_MOE_SITUV2=a8w4"),
    ],
)
def test_names_that_are_stale_are_refused(
    catalog: Catalog, engine: Engine, recipe: str, change: str, instead: str
) -> None:
    selection = named(catalog, recipe, overrides=(parse_override(change),))
    (problem,) = check_processes(commands(catalog, selection), engine, selection.hardware, catalog.names)
    assert problem.subject == change.partition("=")[0]
    assert problem.nearest == ((instead,) if instead else ())


def test_a_listed_name_is_known_on_its_hardware_only(catalog: Catalog, engine: Engine) -> None:
    change = (parse_override("moe-backend=ppu_deep_gemm"),)
    for hardware, strategy, problems in (("ppu_m890", "multi_node_dep", 0), ("b300", "single_node_tp", 1)):
        selection = Selection(hardware=hardware, strategy=strategy, overrides=change)
        processes = commands(catalog, selection)[:1]
        assert len(check_processes(processes, engine, hardware, catalog.names)) == problems


def test_every_listed_exception_is_needed(catalog: Catalog, engine: Engine) -> None:
    """A name that vLLM has learnt, or that no command has any more, leaves the list."""
    used = {
        (subject, str(value))
        for selection in every(catalog)
        for process in commands(catalog, selection)
        for subject, value in (
            *((argument.flag, argument.value) for argument in process.arguments),
            *(("environment", variable.name) for variable in process.environment),
        )
    }
    spare = {"ppu_deep_gemm", "ppu_acext", "VLLM_SAIL_MOE_BACKEND", "VLLM_SAIL_DENSE_BACKEND", "HF_HUB_OFFLINE"}
    for entry in catalog.names.foreign:
        assert entry.value in spare or (entry.subject, entry.value) in used, entry.value
        if entry.subject == "environment":
            assert entry.value not in engine.tables.variables


def test_a_routers_flags_are_held_against_vllm_router(catalog: Catalog, engine: Engine) -> None:
    changes = tuple(map(parse_override, ("router:polcy=random", "router:policy=lucky")))
    selection = named(catalog, "gb300_pd").model_copy(update={"overrides": changes})
    problems = check_processes(commands(catalog, selection), engine, "gb300", catalog.names, load_router())
    assert [(problem.process, problem.subject) for problem in problems] == [
        ("router-0", "--polcy"),
        ("router-0", "--policy"),
    ]
    assert problems[0].nearest[0] == "--policy"


def test_what_every_recipe_becomes_on_a_cpu_is_accepted_too(catalog: Catalog, engine: Engine) -> None:
    cpu = Cpu(cores=(0, 1), port=8123, ports=tuple(range(9000, 9000 + PORTS)), model=Path("/models/small"))
    router = load_router()
    for recipe in catalog.recipes:
        found = rehearse(resolve(catalog, named(catalog, recipe)), catalog, cpu).deployment
        assert check_processes(found.processes, engine, "cpu", None, router) == [], recipe


def test_another_vllm_can_be_captured_and_used(tmp_path: Path) -> None:
    file = tmp_path / "vllm.json"
    captured = run("--capture", str(file))
    assert captured.exit_code == 0, captured.output
    assert file.stat().st_size < 150_000
    text = run("--all", "--against", str(file)).output
    assert "combinations" in text
    assert "commands a second" in text
    assert "KimiK31ForConditionalGeneration is not in its registry" in text
    result = run("b300_tp8", "--set", "kv-cache-dtype=fp9", "--against", str(file))
    assert result.exit_code == 1
    assert "--kv-cache-dtype" in result.output


def test_a_capture_that_is_none_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    result = run("b300_tp8", "--against", str(tmp_path / "x.json"))
    assert result.exit_code == 2
    assert "cookbook check --capture" in result.stderr
