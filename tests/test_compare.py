"""Two runs beside each other: what differs, what moved, and what is more than noise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click.testing
import pytest
from rich.console import Console

from cookbook import compare as module
from cookbook.cli import main
from cookbook.cli.evidence import differences_table, rows_table
from cookbook.compare import Comparison, Row, Runs, compare, earlier
from cookbook.errors import InputError
from cookbook.evidence import Accelerator, CheckResult, CommandRecord, Evidence, Machine
from tests.test_baseline import a_run, keep


def check(measured: str, name: str = "kv_cache_tokens", **changes: Any) -> CheckResult:
    fields = {"name": name, "title": f"Title of {name}", "expected": "x", "verdict": "pass", "source": "s"}
    return CheckResult(**{**fields, "measured": measured, **changes})


def measured(day: int, *checks: CheckResult | str, **changes: Any) -> Evidence:
    made = tuple(check(each) if isinstance(each, str) else each for each in checks)
    return a_run(day, checks=made, **changes)


def only(found: Comparison) -> Row:
    (row,) = found.rows
    return row


def of(values: Sequence[str], first_day: int, **changes: Any) -> Runs:
    """Runs of one kind, a day apart; the last one is compared."""
    made = [measured(first_day + i, value, **changes) for i, value in enumerate(values)]
    return Runs(made[-1], tuple(reversed(made[:-1])))


# What moved


@pytest.mark.parametrize(
    ("name", "unit", "before", "after", "change"),
    [
        ("kv_cache_tokens", "tokens", "100", "90", "worse"),
        ("kv_cache_tokens", "tokens", "100", "110", "better"),
        ("prefix_cache", "tokens", "2176", "2000", "worse"),
        ("accuracy", "%", "96.20", "95.00", "worse"),
        ("ready", "s", "HTTP 200 after 25.0", "HTTP 200 after 30.0", "worse"),
        ("ready", "s", "HTTP 200 after 25.0", "HTTP 200 after 20.0", "better"),
        ("dcp_decode_step", "times TP8's decode step", "1.10", "1.20", "worse"),
        ("made_up", "ms", "10", "9", "better"),
        ("made_up", "tokens/s", "10", "9", "worse"),
        ("made_up", "tokens/s", "10", "10", "same"),
        ("made_up", "", "10", "9", "same"),
        ("made_up", "tokens/s", "none", "9", "same"),
    ],
)
def test_which_way_is_better_is_said_by_the_check(name: str, unit: str, before: str, after: str, change: str) -> None:
    pair = (measured(day, check(text, name, unit=unit)) for day, text in ((1, before), (2, after)))
    row = only(compare(*map(Runs, pair)))
    assert row.change == change


@pytest.mark.parametrize(
    ("before", "after", "change", "beyond"),
    [
        ("pass", "fail", "worse", True),
        ("fail", "pass", "better", True),
        ("fail", "fail", "same", None),
        ("pass", "left_out", "none", None),
        ("left_out", "fail", "none", None),
    ],
)
def test_a_check_without_figures_is_compared_by_its_verdict(
    before: str, after: str, change: str, beyond: bool | None
) -> None:
    row = only(compare(*(Runs(measured(i, check("text", verdict=v))) for i, v in enumerate((before, after), 1))))
    assert (row.change, row.beyond_noise) == (change, beyond)
    assert (row.before, row.after) == (before.replace("_", " "), after.replace("_", " "))


def test_a_check_that_one_run_did_not_make_is_shown() -> None:
    found = compare(Runs(measured(1, check("1", "a"))), Runs(measured(2, check("1", "b"))))
    assert [(row.name, row.before, row.after, row.change) for row in found.rows] == [
        ("a", "pass", "not made", "none"),
        ("b", "not made", "pass", "none"),
    ]


# Noise


NEW: dict[str, Any] = {"image_digest": "sha256:bb"}


@pytest.mark.parametrize(
    ("before", "after", "beyond"),
    [
        (of(["100"], 1), of(["90"], 11), None),  # one run each shows no noise
        (of(["100", "100"], 1), of(["99"], 11), True),  # a figure that never moved
        (of(["100", "95"], 1), of(["96"], 11), False),
        (of(["100", "95"], 1), of(["94"], 11), True),
        (of(["100"], 1), of(["104", "95", "94"], 11), True),  # those between the two count too
        (of(["100"], 1), of(["104", "93", "94"], 11), False),
        (of(["100", "96"], 1), of(["97", "94"], 11, **NEW), False),  # another image brings its own noise
        (of(["100", "96"], 1), of(["95", "94"], 11, **NEW), True),
        (of(["100", "96"], 1), of(["x"], 11), None),
    ],
)
def test_noise_is_how_far_runs_of_one_kind_lie_apart(before: Runs, after: Runs, beyond: bool | None) -> None:
    found = compare(before, after)
    row = only(found)
    if row.change != "same":
        assert row.beyond_noise is beyond
    assert bool(found.worse) == bool(beyond)


def test_what_got_better_is_not_worse() -> None:
    found = compare(of(["100", "100"], 1), of(["110"], 11))
    assert (only(found).change, only(found).beyond_noise, found.worse) == ("better", True, ())


@pytest.mark.parametrize(
    ("detail", "beyond"),
    [
        ("spread 90 to 110", False),
        ("95 % interval 97.60 to 101.00, standard error 1", True),
        ("range: 95.5..100", False),
        ("± 3 over 5 repeats", False),
        ("± 1", True),
        ("measured from 1 to 200", True),
    ],
)
def test_the_spread_that_a_check_states_counts(detail: str, beyond: bool) -> None:
    pair = (measured(1, check("100", detail=detail)), measured(2, check("96", detail="± 1.5")))
    assert only(compare(*map(Runs, pair))).beyond_noise is beyond


def test_faults_of_earlier_runs_are_no_noise() -> None:
    before, bad = measured(3, "100"), measured(2, check("10", verdict="fail"))
    row = only(compare(Runs(before, (bad, measured(1, "99"))), Runs(measured(4, "50"))))
    assert row.beyond_noise
    assert row.noise
    assert (row.noise.low, row.noise.median, row.noise.high, row.noise.runs) == (99, 99.5, 100, 2)


def test_ten_runs_are_looked_at(tmp_path: Path) -> None:
    for day in range(1, 15):
        keep(tmp_path, measured(day, str(100 + day)))
    found = earlier(tmp_path, measured(14, "114"))
    assert [run.run_id[6:8] for run in found.earlier] == [f"{day:02}" for day in range(13, 3, -1)]
    noise = only(compare(found, Runs(measured(15, "90")))).noise
    assert noise
    assert (noise.low, noise.high, noise.runs) == (105, 114, module.HISTORY)


def test_earlier_runs_of_another_kind_are_left_out(tmp_path: Path) -> None:
    keep(tmp_path, measured(1, "1", image_digest="sha256:bb"))
    keep(tmp_path, measured(2, "1", recipe="b300_tep"))
    keep(tmp_path, measured(5, "1"))
    assert earlier(tmp_path, measured(3, "1")).earlier == ()


# What differs


COMMAND = CommandRecord(
    name="engine-0",
    role="engine",
    node=0,
    argv=("vllm", "serve", "model", "--port", "1", "--flag", "--size", "8", "--x=1", "--list", "a", "b"),
    environment={"VLLM_X": "1"},
)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"versions": {"vllm": "0.33.0"}}, ("version: vllm", "0.32.0", "0.33.0")),
        ({"image": "other"}, ("image", "vllm/vllm-openai:v0.32.0", "other")),
        ({"image_digest": None}, ("image digest", "sha256:aa", "")),
        ({"environment": {"NCCL_DEBUG": "1"}}, ("variable: NCCL_DEBUG", "", "1")),
        ({"parameters": {"revision": "def"}}, ("parameter: revision", "abc", "def")),
        (
            {"commands": (COMMAND.model_copy(update={"environment": {"VLLM_X": "2"}}),)},
            ("engine-0: VLLM_X", "1", "2"),
        ),
        (
            {"commands": (COMMAND.model_copy(update={"argv": (*COMMAND.argv[:7], "4", *COMMAND.argv[8:])}),)},
            ("engine-0: --size", "8", "4"),
        ),
        (
            {"commands": (COMMAND.model_copy(update={"argv": (*COMMAND.argv, "--more")}),)},
            ("engine-0: --more", "", "set"),
        ),
        (
            {"machine": Machine(system="Linux", processor="CPU", cores=4, memory_bytes=2**34)},
            ("machine: cores", "2", "4"),
        ),
        (
            {
                "machine": Machine(
                    system="Linux",
                    processor="CPU",
                    cores=2,
                    memory_bytes=2**34,
                    accelerators=(Accelerator(name="B300", memory_bytes=5, driver="580"),),
                )
            },
            ("machine: accelerators", "", "B300 5 580"),
        ),
    ],
)
def test_what_differs_is_listed(change: dict[str, Any], expected: tuple[str, str, str]) -> None:
    (difference,) = module.differences(a_run(commands=(COMMAND,)), a_run(**{"commands": (COMMAND,), **change}))
    assert (difference.what, difference.before, difference.after) == expected


def test_the_port_is_no_difference() -> None:
    argv = ("vllm", "serve", "model", "--port", "2", *COMMAND.argv[5:])
    assert [
        *module.differences(a_run(commands=(COMMAND,)), a_run(commands=(COMMAND.model_copy(update={"argv": argv}),)))
    ] == []


# What is refused


@pytest.mark.parametrize("mode", ["hardware", "attached"])
def test_a_rehearsal_is_compared_with_rehearsals_only(mode: str) -> None:
    rehearsed, real = Runs(measured(1, "1", mode="rehearsal")), Runs(measured(2, "1", mode=mode))
    for pair in ((rehearsed, real), (real, rehearsed)):
        with pytest.raises(InputError, match=r"Run 20261201\S+ of b300_tp8 is a rehearsal on a CPU and run 20261202"):
            compare(*pair)
    assert compare(rehearsed, Runs(measured(3, "1", mode="rehearsal"))).worse == ()


def test_a_run_is_not_compared_with_itself() -> None:
    with pytest.raises(InputError, match="Both are run 20261201T050000Z-abcd of b300_tp8"):
        compare(Runs(measured(1, "1")), Runs(measured(1, "1")))


# The command


def call(*arguments: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(main, ["evidence", "compare", *arguments], env={"COLUMNS": "100"})


def test_the_command_shows_both_tables_and_ends_with_1_when_something_got_worse(tmp_path: Path) -> None:
    for run in (measured(1, "100"), measured(2, "101"), measured(3, "90", versions={"vllm": "0.32.0", "torch": "3"})):
        keep(tmp_path, run)
    first = str(tmp_path / "b300_tp8" / "20261202T050000Z-abcd")
    result = call(first, "b300_tp8", "--runs", str(tmp_path))
    assert result.exit_code == 1
    assert "version: torch" in result.stdout
    assert result.stdout.index("What differs") < result.stdout.index("What moved")
    assert "worse, beyond" in result.stdout
    assert "Worse by more than noise: Title of kv_cache_tokens." in result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 100
    better = call("b300_tp8", f"{first}/evidence.json", "--runs", str(tmp_path), "--json")
    assert better.exit_code == 0
    assert json.loads(better.stdout)["rows"][0]["change"] == "better"


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    result = call("b300_tp9", "b300_tp8", "--runs", str(tmp_path))
    assert result.exit_code == 2
    assert 'No run of "b300_tp9"' in result.stderr


def test_the_tables_fit_a_hundred_columns() -> None:
    long = check("18,500,000", title="A title that is rather long for a table " * 2, unit="times TP8's decode step")
    found = compare(
        Runs(measured(1, long, image="registry.example.org/" + "x" * 120)), Runs(measured(2, long, recipe="b300_dcp8"))
    )
    console = Console(width=100, record=True)
    console.print(differences_table(found), rows_table(found))
    assert max(map(len, console.export_text().splitlines())) <= 100


def test_rehearsals_are_marked(tmp_path: Path) -> None:
    for day in (1, 2):
        keep(tmp_path, measured(day, "100", mode="rehearsal"))
    result = call(str(tmp_path / "b300_tp8" / "20261201T050000Z-abcd"), "b300_tp8", "--runs", str(tmp_path))
    assert result.exit_code == 0
    assert "What differs: nothing" in result.stdout
    assert "no figure here is one of the hardware" in result.stdout
