"""Markdown for people: nothing from outside can break a table or become markup."""

from __future__ import annotations

import html

import markdown
from hypothesis import given
from hypothesis import strategies as st

from cookbook import report
from cookbook.begin import Parameters, Plan
from cookbook.catalog import Catalog
from cookbook.deployment import Deployment
from cookbook.formats.bash import render
from cookbook.rehearse import Rehearsal
from tests.test_evidence import an_evidence


def rehearsed(deployment: Deployment, rehearsal: Rehearsal) -> Plan:
    parameters = Parameters(model="m", rehearse=True)
    return Plan(parameters, deployment, rehearsal.deployment, rehearsal.substitutions)


def test_a_rehearsal_says_first_that_it_is_one(b300_tp8: Deployment, rehearsal: Rehearsal) -> None:
    text = report.about(rehearsed(b300_tp8, rehearsal))
    assert text.startswith("**Rehearsed on a CPU with a small model: no number here is a number of the hardware.**")
    for substitution in rehearsal.substitutions:
        assert report.plain(substitution.what) in text
        assert report.cell(substitution.reason) in text


def test_both_commands_are_shown_in_a_rehearsal(b300_tp8: Deployment, rehearsal: Rehearsal) -> None:
    text = report.commands(rehearsed(b300_tp8, rehearsal), render)
    assert "--tensor-parallel-size 8" in text
    assert "--tensor-parallel-size 2" in text


def test_on_the_hardware_one_command_is_shown(b300_tp8: Deployment) -> None:
    text = report.commands(Plan(Parameters(model="m"), b300_tp8, b300_tp8, ()), render)
    assert text.count("vllm serve moonshotai") == 1
    assert "To stop: Ctrl-C" in text


def test_every_reason_and_its_basis_is_on_the_page(b300_tp8: Deployment) -> None:
    text = report.reasons(b300_tp8)
    for argument in b300_tp8.processes[0].arguments:
        assert report.plain(argument.flag) in text
        assert argument.origins[0].why in text
    assert "from Kimi-K3" in text
    assert "stated" in text


def test_the_inferred_image_is_marked(catalog: Catalog, b300_tp8: Deployment) -> None:
    row = next(line for line in report.requirements(catalog, b300_tp8).splitlines() if "kimi-k31`" in line)
    assert "| inferred |" in row


def test_only_problems_that_apply_are_shown(catalog: Catalog, b300_tp8: Deployment) -> None:
    assert "vllm#53246" in report.problems(catalog, b300_tp8)
    without = b300_tp8.model_copy(update={"features": ()})
    assert "vllm#53246" not in report.problems(catalog, without)


@given(st.text(max_size=60))
def test_measured_text_survives_and_stays_text(text: str) -> None:
    check = an_evidence().checks[0].model_copy(update={"measured": text, "expected": text})
    table = report.checks_table([check])
    assert len(table.splitlines()) == 3
    rendered = markdown.markdown(table, extensions=["tables"])
    assert rendered.count("<td>") == 5
    shown = html.unescape(rendered.split("<td>")[3].partition("</td>")[0])
    assert " ".join(shown.split()) == " ".join(text.replace("\x02", "").replace("\x03", "").split())


@given(st.text(max_size=60))
def test_code_stays_one_cell(text: str) -> None:
    rendered = markdown.markdown(report.table(("A", "B"), [(report.code(text), "x")]), extensions=["tables"])
    assert rendered.count("<td>") == 2
    assert "<strong>" not in rendered
    assert "<em>" not in rendered
