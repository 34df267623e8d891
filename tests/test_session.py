"""What a page's run holds against what: published figures on the hardware only, and baselines that are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from cookbook import begin, evidence, experiments, feature_checks, judging
from cookbook.begin import Parameters, Plan
from cookbook.catalog import Catalog
from cookbook.errors import ChecksFailed
from cookbook.evidence import CheckResult, Evidence, Point, Series
from cookbook.rehearse import Cpu, rehearse
from cookbook.resolve import resolve
from cookbook.selection import named
from cookbook.session import RECORD, Run
from tests.test_evidence import an_evidence

MODEL = "moonshotai/Kimi-K3.1-Pro"


def run_of(catalog: Catalog, recipe: str, folder: Path, *, rehearsed: bool = False) -> Run:
    """A run that has launched nothing."""
    deployment = resolve(catalog, named(catalog, recipe))
    plan = Plan(Parameters(model=MODEL), deployment, deployment, ())
    if rehearsed:
        small = rehearse(deployment, catalog, Cpu(cores=(0, 1), port=1, ports=tuple(range(2, 14)), model=folder))
        plan = Plan(Parameters(model=MODEL, rehearse=True), deployment, small.deployment, small.substitutions)
    home = folder / recipe / "20261203T000000Z-aaaa"
    begin.make_run_folder(home)
    return Run(catalog, plan, home, own=True)


def checks(run: Run) -> dict[str, CheckResult]:
    return {check.name: check for check in evidence.read_record(run.folder / RECORD).checks}


def steps(*values: float) -> Series:
    points = tuple(Point(x=x, values=(value,)) for x, value in zip((1, 32, 64), values, strict=False))
    return Series(name="decode_step", title="Decode step", unit="ms", x="Batch", points=points)


def leave(run: Run, recipe: str, **changes: object) -> Evidence:
    """Another recipe's run in the circumstances of this one."""
    record = evidence.read_record(run.folder / RECORD).model_dump()
    fields = {"recipe": recipe, "run_id": "20261202T000000Z-bbbb", **changes}
    found = an_evidence().model_copy(update={})
    found = Evidence.model_validate({**found.model_dump(), **record, **fields})
    path = run.folder.parent.parent / recipe / found.run_id / "evidence.json"
    path.parent.mkdir(parents=True)
    evidence.write(path, found)
    return found


@pytest.mark.parametrize(("fast", "verdict"), [(10.0, "pass"), (15.0, "fail")])
def test_on_the_hardware_the_published_figure_is_the_bar(
    catalog: Catalog, tmp_path: Path, fast: float, verdict: str
) -> None:
    run = run_of(catalog, "b300_low_latency", tmp_path)
    judging.judge(run, "low_latency_batch_1", "Steps", feature_checks.times_faster, steps(fast), steps(16.5), at=[1])
    assert checks(run)["low_latency_batch_1"].verdict == verdict


def test_a_rehearsal_is_not_held_against_the_hardware(catalog: Catalog, tmp_path: Path) -> None:
    run = run_of(catalog, "b300_low_latency", tmp_path, rehearsed=True)
    judging.judge(run, "low_latency_batch_1", "Steps", feature_checks.times_faster, steps(1), steps(100), at=[1])
    found = checks(run)["low_latency_batch_1"]
    assert (found.verdict, found.measured) == ("left_out", "")
    assert "CPU" in found.detail


def test_without_a_published_figure_nothing_is_judged(catalog: Catalog, tmp_path: Path) -> None:
    run = run_of(catalog, "gb300_tp8", tmp_path)
    judging.judge(run, "low_latency_batch_1", "Steps", feature_checks.times_faster, steps(1), steps(100), at=[1])
    assert checks(run)["low_latency_batch_1"].detail == "No figure is published for these flags."


def test_a_comparison_without_a_baseline_says_so_and_what_to_run(catalog: Catalog, tmp_path: Path) -> None:
    run = run_of(catalog, "b300_dcp8", tmp_path)
    judging.against(run, "b300_tp8", "dcp_decode_step", "Steps", feature_checks.at_most_times, steps(11))
    judging.more_tokens(run, "b300_tp8", "dcp_times_tp8", "Tokens")
    judging.same_answers(run, "b300_tp8", {"a": (1, 2)})
    found = checks(run)
    assert {check.verdict for check in found.values()} == {"left_out"}
    assert all("no baseline" in check.detail and "cookbook run b300_tp8" in check.detail for check in found.values())


@pytest.mark.parametrize(("ours", "verdict"), [(12.0, "pass"), (13.0, "fail")])
def test_a_baseline_is_named(
    catalog: Catalog, tmp_path: Path, capsys: pytest.CaptureFixture[str], ours: float, verdict: str
) -> None:
    run = run_of(catalog, "b300_dcp8", tmp_path)
    leave(run, "b300_tp8", series=(steps(10),))
    judging.against(run, "b300_tp8", "dcp_decode_step", "Steps", feature_checks.at_most_times, steps(ours))
    found = checks(run)["dcp_decode_step"]
    assert found.verdict == verdict
    assert "run 20261202T000000Z-bbbb" in found.detail
    assert "Baseline: run 20261202T000000Z-bbbb" in capsys.readouterr().out


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "failed"},
        {"hardware": "gb300"},
        {"mode": "rehearsal"},
        {"image": "other:tag"},
        {"versions": {"vllm": "0.1"}},
        {"series": ()},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_run_in_other_circumstances_is_no_baseline(
    catalog: Catalog, tmp_path: Path, changes: dict[str, object]
) -> None:
    run = run_of(catalog, "b300_dcp8", tmp_path)
    leave(run, "b300_tp8", **{"series": (steps(10),), **changes})
    judging.against(run, "b300_tp8", "dcp_decode_step", "Steps", feature_checks.at_most_times, steps(11))
    assert "no baseline" in checks(run)["dcp_decode_step"].detail


@pytest.mark.parametrize(("theirs", "verdict"), [((1, 2, 3, 4), "pass"), ((9, 9, 9, 9), "fail")])
def test_answers_are_held_against_a_baseline(
    catalog: Catalog, tmp_path: Path, theirs: tuple[int, ...], verdict: str
) -> None:
    run = run_of(catalog, "b300_dcp8", tmp_path)
    leave(run, "b300_tp8", answers={"a": theirs})
    judging.same_answers(run, "b300_tp8", {"a": (1, 2, 3, 4)}, flag="--decode-context-parallel-size")
    assert checks(run)["same_tokens"].verdict == verdict


def test_a_server_is_not_compared_with_itself(catalog: Catalog, tmp_path: Path) -> None:
    run = run_of(catalog, "b300_dcp8", tmp_path, rehearsed=True)
    judging.same_answers(run, "b300_tp8", {"a": (1,)}, flag="--decode-context-parallel-size")
    assert "compare a server with itself" in checks(run)["same_tokens"].detail


def test_what_a_log_would_show_is_left_out_with_the_reason(catalog: Catalog, tmp_path: Path) -> None:
    rehearsed = run_of(catalog, "b300_tep", tmp_path / "a", rehearsed=True)
    hardware = run_of(catalog, "b300_tep", tmp_path / "b")
    for run in (rehearsed, hardware):
        judging.seen_in_log(run, "moe", "MegaMoE", "mega", expected="MegaMoE", flag="--moe-backend")
        judging.seen_in_log(run, "other", "Other", "x", expected="x", not_on_cpu="Not on a CPU.")
    assert checks(rehearsed)["moe"].detail == "The small model has no experts."
    assert checks(rehearsed)["other"].detail == "Not on a CPU."
    assert checks(hardware)["moe"].detail == "The server was not launched by this run, so its log is not at hand."


def test_sizes_are_those_of_what_answers(catalog: Catalog, tmp_path: Path) -> None:
    assert run_of(catalog, "b300_tp8", tmp_path / "a").sizes(1, rehearsal=2) == 1
    assert run_of(catalog, "b300_tp8", tmp_path / "b", rehearsed=True).sizes(1, rehearsal=2) == 2


def test_a_curve_can_be_kept_under_another_name(catalog: Catalog, tmp_path: Path) -> None:
    run = run_of(catalog, "b300_tp8", tmp_path)
    run.keep(steps(1))
    run.keep(steps(2), "decode_step_without")
    names = [series.name for series in evidence.read_record(run.folder / RECORD).series]
    assert names == ["decode_step", "decode_step_without"]


def test_a_benchmark_without_its_data_says_that_it_was_not_run(catalog: Catalog, tmp_path: Path) -> None:
    run = run_of(catalog, "tpu_v7x_tep", tmp_path)
    experiments.beam(run)
    found = checks(run)["beam_1m"]
    assert found.verdict == "left_out"
    assert "parameter beam_1m" in found.detail


def test_without_a_launch_nothing_is_said_of_a_second_tier(catalog: Catalog, tmp_path: Path) -> None:
    run = run_of(catalog, "b300_kv_offload", tmp_path)
    experiments.second_tier_grew(run, 0)
    experiments.returning_sessions(run)
    experiments.bytes_per_token(run)
    experiments.without_prefill(run)
    found = checks(run)
    assert set(found) == {"second_tier", "kv_returned", "returning_faster", "bytes_per_token", "without_prefill"}
    assert {check.verdict for check in found.values()} == {"left_out"}


def test_the_larger_cache_of_the_hardware_is_held_against_the_claim(catalog: Catalog, tmp_path: Path) -> None:
    good, bad = run_of(catalog, "gb300_nvfp4_kv", tmp_path / "a"), run_of(catalog, "gb300_nvfp4_kv", tmp_path / "b")
    experiments.more_cache(good, "nvfp4_kv_tokens", "Tokens", 3_750_000, 2_600_000)
    experiments.more_cache(bad, "nvfp4_kv_tokens", "Tokens", 2_700_000, 2_600_000)
    assert checks(good)["nvfp4_kv_tokens"].verdict == "pass"
    assert checks(bad)["nvfp4_kv_tokens"].verdict == "fail"


def test_in_a_rehearsal_the_element_sizes_are_the_bar(catalog: Catalog, tmp_path: Path) -> None:
    run = run_of(catalog, "gb300_nvfp4_kv", tmp_path, rehearsed=True)
    experiments.more_cache(run, "nvfp4_kv_tokens", "Tokens", 140_000, 90_000)
    found = checks(run)["nvfp4_kv_tokens"]
    assert (found.verdict, found.expected) == ("fail", "at least 1.96")


def test_a_run_whose_checks_were_all_left_out_proves_nothing(catalog: Catalog, tmp_path: Path) -> None:
    run = run_of(catalog, "b300_tp8", tmp_path)
    run.leave_out("a", "A", expected="x", reason="Because.")
    with pytest.raises(ChecksFailed, match="No check was made"):
        run.finish()
