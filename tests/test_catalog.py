"""The catalog reads as it should, and says file and key when it does not."""

from __future__ import annotations

import shutil
from pathlib import Path

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


def test_every_argument_says_why_and_how_sure_it_is(catalog: Catalog) -> None:
    layers = [catalog.model, *catalog.hardware.values(), *catalog.strategies.values(), *catalog.features.values()]
    entries = [entry for layer in layers for entry in (*layer.args.values(), *layer.env.values())]
    assert entries
    for entry in entries:
        assert entry.why.endswith(".")
        assert entry.source in catalog.sources


def test_every_recipe_has_a_notebook_and_every_notebook_a_recipe(catalog: Catalog) -> None:
    assert {path.stem for path in RECIPES.glob("*.py")} == set(catalog.recipes)


def test_every_flag_and_variable_has_a_rehearsal_rule(catalog: Catalog) -> None:
    layers = [catalog.model, *catalog.hardware.values(), *catalog.strategies.values(), *catalog.features.values()]
    assert {flag for layer in layers for flag in layer.args} <= set(catalog.rehearsal.args)
    assert {name for layer in layers for name in layer.env} <= set(catalog.rehearsal.env)


@pytest.mark.parametrize(
    ("file", "old", "new", "key"),
    [
        ("hardware.yaml", "devices_per_node: 8", "devices_per_node: none", "b300.devices_per_node"),
        ("hardware.yaml", "devices_per_node: 8", "devices_per_nodes: 8", "b300.devices_per_node"),
        ("hardware.yaml", "basis: from_k3", "basis: certain", "b300.requirements.1.basis"),
        ("hardware.yaml", "vendor: nvidia", "vendor: nvidia\n  colour: green", "b300.colour"),
        ("features.yaml", "--tool-call-parser:", "-tool-call-parser:", "tool_calling.args.-tool-call-parser"),
        ("strategies.yaml", "source: spec", "source: rumour", "single_node_tp.args.--tensor-parallel-size.source"),
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
