"""A team's own accelerator: YAML and a notebook in a folder of its own, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cookbook.catalog import OVERLAY, load
from cookbook.cli import main
from cookbook.errors import CatalogError
from cookbook.formats import FORMATS
from cookbook.rehearse import Cpu, rehearse
from cookbook.resolve import resolve
from cookbook.selection import named
from tests.roadrunner import write


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(OVERLAY, raising=False)
    return write(tmp_path)


def run(folder: Path, *arguments: str) -> Result:
    result = CliRunner(env={OVERLAY: str(folder)}).invoke(main, list(arguments))
    assert "Traceback" not in result.output
    return result


@pytest.mark.parametrize("name", FORMATS)
def test_its_recipe_is_shown_in_every_format(folder: Path, name: str) -> None:
    result = CliRunner().invoke(main, ["show", "roadrunner_tp8", "--format", name, "--catalog", str(folder)])
    assert result.exit_code == 0, result.output
    assert "Never run before." in result.output
    assert "TRITON_MLA" in result.output


def test_its_devices_reach_schedulers_and_containers(folder: Path) -> None:
    for name, words in (
        ("kubernetes", "acme.example/accelerator: 8"),
        ("slurm", "#SBATCH --gres=acme:8"),
        ("docker", "--device=/dev/acme"),
        ("compose", "/dev/acme"),
    ):
        text = run(folder, "show", "roadrunner_tp8", "--format", name).output.replace("'8'", "8").replace('"8"', "8")
        assert words in text


def test_its_pools_leave_the_nvlink_domain_that_it_has_not(folder: Path) -> None:
    text = run(folder, "show", "--hardware", "roadrunner", "--strategy", "pd_cluster").output
    assert "--data-parallel-size 16" in text
    assert "deep_gemm_mega_moe" not in text


def test_the_rules_hold_for_it(folder: Path) -> None:
    text = ("show", "--hardware", "roadrunner", "--strategy", "single_node_tp", "--feature", "low_latency")
    result = run(folder, *text)
    assert result.exit_code == 2
    assert "rule low_latency_hardware" in result.stderr


def test_it_is_listed_and_has_a_notebook(folder: Path) -> None:
    listed = json.loads(run(folder, "list", "--json", "--runs", str(folder / "runs")).output)
    (row,) = (row for row in listed["recipes"] if row["recipe"] == "roadrunner_tp8")
    assert row["state"] == "not_run"
    states = {cell["name"]: cell["state"] for cell in listed["matrix"] if cell["hardware"] == "roadrunner"}
    assert states["single_node_tp"] == "recipe"
    assert states["low_latency"] == "refused"


def test_its_memory_is_planned(folder: Path) -> None:
    text = run(folder, "capacity", "roadrunner_tp8").output
    assert "181.7 GiB" in text
    assert "at most" in text


def test_the_machine_is_examined_for_it(folder: Path) -> None:
    result = run(folder, "doctor", "roadrunner_tp8")
    assert result.exit_code == 1
    assert "0 seen (no acme-smi)" in result.output


def test_it_rehearses(folder: Path) -> None:
    catalog = load(overlay=folder)
    deployment = resolve(catalog, named(catalog, "roadrunner_tp8"))
    rehearsal = rehearse(deployment, catalog, Cpu(cores=(0, 1), port=8123, model=Path("/models/small")))
    assert any(change.what == "ACME_TURBO" for change in rehearsal.substitutions)


def test_what_is_built_in_stays(folder: Path) -> None:
    own, built_in = load(overlay=folder), load()
    for name in built_in.recipes:
        assert resolve(own, named(own, name)) == resolve(built_in, named(built_in, name))
    assert len(own.problems) == len(built_in.problems) + 1


def test_one_value_of_an_entry_can_be_changed(tmp_path: Path) -> None:
    (tmp_path / "hardware.yaml").write_text("b300:\n  image: {tag: mirror.example/vllm:k31, why: Our mirror.}\n")
    catalog = load(overlay=tmp_path)
    image = resolve(catalog, named(catalog, "b300_tp8")).image
    assert image
    assert image.tag == "mirror.example/vllm:k31"


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("hardware.yaml", "b300: {memory: {gib: much}}", "hardware.yaml: b300.memory.gib"),
        ("hardware.yaml", "b300: {vendor: acme}", 'hardware.yaml: b300.vendor: there is no "acme" in vendors.yaml'),
        ("hardware.yaml", "b300: [", "is not valid YAML"),
        ("hardwear.yaml", "b300: {}", "the catalog has no part hardwear.yaml"),
        ("notes.txt", "nothing", "holds no YAML file"),
    ],
)
def test_a_wrong_overlay_names_its_file(tmp_path: Path, file: str, text: str, message: str) -> None:
    (tmp_path / file).write_text(text)
    with pytest.raises(CatalogError) as caught:
        load(overlay=tmp_path)
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_an_overlay_that_is_no_folder_is_an_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["list", "--catalog", str(tmp_path / "nowhere")])
    assert result.exit_code == 2
    assert "is not a folder" in result.stderr
