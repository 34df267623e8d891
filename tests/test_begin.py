"""The start of a run: nothing is started before all of it is known to fit."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from cookbook import begin, smallmodel
from cookbook.begin import Parameters
from cookbook.catalog import Catalog
from cookbook.errors import InputError
from cookbook.machine import parse_nvidia_smi

MODEL = "moonshotai/Kimi-K3.1-Pro"


@pytest.fixture
def small_model_stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the small model: nothing here loads it."""
    monkeypatch.setattr(smallmodel, "prepare", lambda *, on_step: tmp_path)
    return tmp_path


def silent(_: str) -> None:
    pass


def test_a_rehearsal_needs_its_own_vllm_double(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A double: another version, and none, cannot be installed beside the real one."""
    for found, words in (("0.31.0", "vLLM 0.31.0"), (None, "no vLLM")):
        monkeypatch.setattr(begin, "engine_version", lambda found=found: found)
        with pytest.raises(InputError, match=rf"needs vLLM 0\.32\.0\+cpu; this .* has {words}\. .*scripts/install cpu"):
            begin.plan(catalog, "b300_tp8", Parameters(model=MODEL, rehearse=True), on_step=silent)


def test_a_vllm_that_does_not_know_the_model_is_refused(catalog: Catalog) -> None:
    with pytest.raises(InputError, match=r"does not know KimiK31.*kimi-k31 or a vLLM newer than 0\.33\.0"):
        begin.plan(catalog, "b300_tp8", Parameters(model=MODEL), on_step=silent)


def test_a_port_in_use_is_refused_before_anything_starts(catalog: Catalog, small_model_stub: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"Port {port} on 127\.0\.0\.1 cannot be used: Address already in use"):
            begin.plan(catalog, "b300_tp8", Parameters(model=MODEL, rehearse=True, port=port), on_step=silent)
    plan = begin.plan(catalog, "b300_tp8", Parameters(model=MODEL, rehearse=True, port=port), on_step=silent)
    assert plan.deployment.processes[0].port == port
    assert plan.deployment.model == str(small_model_stub)


def test_a_missing_vllm_command_is_refused(
    catalog: Catalog, small_model_stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"There is no `vllm` command.*scripts/install cpu"):
        begin.plan(catalog, "b300_tp8", Parameters(model=MODEL, rehearse=True), on_step=silent)


def test_at_a_running_server_nothing_is_launched(catalog: Catalog, tmp_path: Path) -> None:
    parameters = Parameters(model="other/name", base_url="http://127.0.0.1:8000")
    plan = begin.plan(catalog, "b300_tp8", parameters, on_step=silent)
    assert plan.parameters.mode == "attached"
    assert plan.deployment.served_model_name == "other/name"
    record = begin.record(plan, begin.make_run_folder(begin.run_folder(tmp_path, "b300_tp8")))
    assert record.mode == "attached"
    assert record.image is None


def test_the_environment_is_recorded_by_name_only(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "a-planted-token")
    monkeypatch.setenv("SOMETHING_ELSE", "a-private-value")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    plan = begin.plan(catalog, "b300_tp8", Parameters(model=MODEL, base_url="http://h:1"), on_step=silent)
    text = begin.record(plan, tmp_path).model_dump_json()
    assert '"OMP_NUM_THREADS":"2"' in text
    assert "planted" not in text
    assert "private" not in text


def test_run_folders_sort_by_time_and_never_clash(tmp_path: Path) -> None:
    folders = [begin.make_run_folder(begin.run_folder(tmp_path, "b300_tp8")) for _ in range(5)]
    assert len(set(folders)) == 5
    assert all((folder / "logs").is_dir() for folder in folders)


def test_nvidia_smi_is_read() -> None:
    devices = parse_nvidia_smi("NVIDIA B300 SXM6, 275040, 580.95.05\nNVIDIA B300, Rev, [N/A], 580\n")
    assert (devices[0].name, devices[0].memory_bytes, devices[0].driver) == (
        "NVIDIA B300 SXM6",
        275040 * 2**20,
        "580.95.05",
    )
    assert (devices[1].name, devices[1].memory_bytes) == ("NVIDIA B300, Rev", None)


def test_the_small_model_lies_where_the_user_says(tmp_path: Path) -> None:
    assert smallmodel.cache_folder({"COOKBOOK_CACHE": "/a"}) == Path("/a")
    assert smallmodel.cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/cookbook")
    assert smallmodel.cache_folder({"HOME": "/c"}).name == "cookbook"


HERE = begin.Here("--kv-cache-dtype", "auto", "Two bytes an element.")


@pytest.mark.usefixtures("small_model_stub")
def test_the_other_side_of_a_comparison_lacks_the_feature_and_says_what_stands_for_it(catalog: Catalog) -> None:
    parameters = Parameters(model=MODEL, rehearse=True)
    one = begin.plan(catalog, "gb300_nvfp4_kv", parameters, on_step=silent)
    other = begin.plan(catalog, "gb300_nvfp4_kv", parameters, on_step=silent, without="nvfp4_kv", here=HERE)
    assert one.deployment.processes[0].value("--kv-cache-dtype") == "fp8"
    assert {process.value("--kv-cache-dtype") for process in other.deployment.processes} == {"auto"}
    assert other.recipe_deployment.processes[0].value("--kv-cache-dtype") == "fp8"
    assert "nvfp4_kv" not in other.recipe_deployment.features
    (change,) = [one for one in other.substitutions if one.what == "--kv-cache-dtype"]
    assert (change.original, change.replacement, change.reason) == ("fp8", "auto", "Two bytes an element.")


@pytest.mark.usefixtures("small_model_stub")
def test_the_port_that_is_named_is_the_one_that_clients_use(catalog: Catalog) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    plan = begin.plan(catalog, "gb300_pd", Parameters(model=MODEL, rehearse=True, port=port), on_step=silent)
    assert [process.role for process in plan.deployment.processes if process.port == port] == ["router"]


@pytest.mark.usefixtures("small_model_stub")
def test_a_rehearsal_runs_all_processes_on_this_machine(catalog: Catalog) -> None:
    plan = begin.plan(catalog, "gb300_pd", Parameters(model=MODEL, rehearse=True), on_step=silent)
    assert [process.role for process in plan.own] == ["prefill", "decode", "router"]
