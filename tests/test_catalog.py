"""The catalog reads as it should, and says file and key when it does not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cookbook.catalog import BUILTIN, Catalog, load
from cookbook.errors import CatalogError
from cookbook.notebook import RECIPES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for file in BUILTIN.glob("*.yaml"):
        shutil.copy(file, tmp_path)
    return tmp_path


def replace(folder: Path, file: str, old: str, new: str) -> None:
    path = folder / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def layers(catalog: Catalog) -> Iterator[Any]:
    """Everything that brings flags and variables."""
    for part in (
        [catalog.model],
        catalog.vendors.values(),
        catalog.hardware.values(),
        catalog.strategies.values(),
        catalog.features.values(),
        (role for strategy in catalog.strategies.values() for role in strategy.roles.values()),
        catalog.recipes.values(),
    ):
        for layer in part:
            yield layer
            yield from layer.where


def test_every_argument_says_why_and_how_sure_it_is(catalog: Catalog) -> None:
    entries = [entry for layer in layers(catalog) for entry in (*layer.args.values(), *layer.env.values())]
    assert len(entries) > 100
    for entry in entries:
        assert entry.why.endswith(".")
        assert entry.source in catalog.sources or entry.basis in {"chosen", "unknown"}


def test_the_rows_that_were_asked_for_are_there(catalog: Catalog) -> None:
    assert set(catalog.hardware) == {"b300", "gb300", "vr200", "mi355x", "ppu_810e", "ppu_m890", "tpu_v7x", "cpu"}
    assert len(catalog.recipes) == 19
    assert set(catalog.features) == {
        *("tool_calling", "reasoning", "text_only", "spec_decoding"),
        *("dcp", "low_latency", "nvfp4_kv", "kv_offload"),
    }


def test_every_notebook_has_a_recipe(catalog: Catalog) -> None:
    assert {path.stem for path in RECIPES.glob("*.py")} <= set(catalog.recipes)


def test_every_flag_and_variable_has_a_rehearsal_rule(catalog: Catalog) -> None:
    assert {flag for layer in layers(catalog) for flag in layer.args} <= set(catalog.rehearsal.args)
    assert {name for layer in layers(catalog) for name in layer.env} <= set(catalog.rehearsal.env)


def test_every_source_is_used(catalog: Catalog) -> None:
    text = "".join(path.read_text() for path in BUILTIN.glob("*.yaml") if path.name != "sources.yaml")
    assert [name for name in catalog.sources if f"source: {name}" not in text] == []


@pytest.mark.parametrize(
    ("file", "old", "new", "key"),
    [
        ("hardware.yaml", "devices_per_node: 8", "devices_per_node: none", "b300.devices_per_node"),
        ("hardware.yaml", "devices_per_node: 8", "devices_per_nodes: 8", "b300.devices_per_node"),
        ("hardware.yaml", "basis: from_k3", "basis: certain", "b300.requirements.1.basis"),
        ("hardware.yaml", "vendor: nvidia", "vendor: nvidia\n  colour: green", "b300.colour"),
        ("hardware.yaml", "vendor: nvidia", "vendor: novideo", "b300.vendor"),
        ("hardware.yaml", "single_node_tep:", "single_node_step:", "b300.strategies"),
        ("hardware.yaml", "nodes: {engine: 1}", "nodes: {motor: 1}", "b300.strategies.single_node_tp.nodes"),
        ("features.yaml", "--tool-call-parser:", "-tool-call-parser:", "tool_calling.args.-tool-call-parser"),
        ("features.yaml", "vendors: [cpu]", "vendors: [abacus]", "tool_calling.where.0.vendors"),
        ("strategies.yaml", "source: spec", "source: rumour", "single_node_tp.args.--tensor-parallel-size.source"),
        ("rules.yaml", "families: [blackwell]", "families: [hopper]", "low_latency_hardware.unless.0.families"),
        ("rules.yaml", "severity: warning", "severity: mild", "mega_moe_size.severity"),
        ("model.yaml", "mla_layers: 24", "mla_layers: none", "shape.mla_layers"),
        ("names.yaml", "hardware: [tpu_v7x]", "hardware: [tpu]", "foreign.6.hardware"),
        ("recipes.yaml", "hardware: b300", "hardware: b3000", "b300_tp8.hardware"),
        ("recipes.yaml", "[tool_calling, reasoning]", "[tool_calling, telepathy]", "b300_tp8.features"),
        ("claims.yaml", "tolerance: 0.1", "tolerance: 2", "kv_cache_tokens.tolerance"),
        ("rehearsal.yaml", "keep: true", "keep: true\n    drop: true", "args.--enable-prefix-caching"),
        ("model.yaml", "    source: k3_recipe\n  --max-model-len:", "  --max-model-len:", "args.--trust-remote-code"),
    ],
)
def test_a_wrong_entry_names_file_and_key(folder: Path, file: str, old: str, new: str, key: str) -> None:
    replace(folder, file, old, new)
    with pytest.raises(CatalogError) as caught:
        load(folder)
    assert str(folder / file) in str(caught.value)
    assert caught.value.key.startswith(key)
    assert caught.value.exit_code == 2


def test_a_key_given_twice_is_an_error_with_its_line(folder: Path) -> None:
    replace(folder, "features.yaml", "reasoning:\n", "tool_calling:\n")
    with pytest.raises(CatalogError, match=r"features\.yaml: line \d+: .*\"tool_calling\" stands twice"):
        load(folder)


def test_text_that_is_not_yaml_is_an_error_with_its_line(folder: Path) -> None:
    (folder / "claims.yaml").write_text("a: [1,\nb: 2")
    with pytest.raises(CatalogError, match=r"claims\.yaml: line 3: is not valid YAML"):
        load(folder)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "problems.yaml").unlink()
    with pytest.raises(CatalogError, match=r"problems\.yaml: cannot be read"):
        load(folder)
