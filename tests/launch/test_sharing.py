"""Servers that several rehearsals use, with stubs for vLLM: who shares, what is lent, and when they end."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cookbook import begin, smallmodel
from cookbook.begin import Parameters, Plan
from cookbook.catalog import Catalog
from cookbook.errors import InputError, ServerError
from cookbook.launch import loan
from cookbook.launch.fleet import Fleet
from cookbook.launch.loan import Borrowed, Loan
from cookbook.launch.processes import members
from cookbook.pool import Pool, side_by_side
from tests.launch.conftest import MakeProcess
from tests.launch.test_fleet import named

PAIR = ("first", "second")


@pytest.fixture
def rehearsals(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Plan]:
    """All recipes as they would be rehearsed, with a folder in place of the small model."""
    monkeypatch.setattr(smallmodel, "prepare", lambda *, on_step: tmp_path)
    chosen = Parameters(model="moonshotai/Kimi-K3.1-Pro", rehearse=True)
    return {
        recipe: begin.plan(catalog, recipe, chosen, on_step=lambda _: None)
        for recipe in ("b300_tp8", "b300_dcp8", "gb300_tp8", "gb300_nvfp4_kv", "gb300_pd")
    }


@pytest.fixture
def plan(rehearsals: Mapping[str, Plan], stub_server_process: MakeProcess) -> Plan:
    """One whose server is a stub."""
    process = named(stub_server_process(), "engine-0", "engine")
    whole = rehearsals["b300_tp8"]
    deployment = whole.deployment.model_copy(update={"processes": (process,), "served_model_name": "kimi"})
    return replace(whole, deployment=deployment, parameters=replace(whole.parameters, ready_timeout_s=30))


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool([PAIR, ("alone",)]) as lender:
        yield lender


def silent(_: Mapping[str, Any]) -> None:
    pass


def lend(pool: Pool, recipe: str, plan: Plan, folder: Path) -> Loan | None:
    home = folder / recipe
    home.mkdir()
    pool.lend(recipe, plan, home, silent)
    return loan.read(home)


def test_rehearsals_share_what_has_the_same_commands_but_for_ports(rehearsals: Mapping[str, Plan]) -> None:
    assert side_by_side(rehearsals) == [("b300_tp8", "b300_dcp8"), ("gb300_tp8", "gb300_nvfp4_kv"), ("gb300_pd",)]


def test_on_the_hardware_nothing_is_shared(rehearsals: Mapping[str, Plan]) -> None:
    real = {name: replace(one, parameters=replace(one.parameters, rehearse=False)) for name, one in rehearsals.items()}
    assert side_by_side(real) == [(name,) for name in real]


def test_pages_use_one_stub_which_ends_after_the_last_and_each_has_its_log(
    pool: Pool, plan: Plan, tmp_path: Path
) -> None:
    first = lend(pool, "first", plan, tmp_path)
    assert first
    assert first.recipes == PAIR
    sessions = pool.sessions
    fleet = Fleet([Borrowed(server) for server in first.servers])
    assert fleet.alive()
    fleet.check_alive()
    fleet.stop()
    pool.take_back("first", tmp_path / "first")
    assert members(sessions)
    second = lend(pool, "second", plan, tmp_path)
    assert second
    assert second.servers == first.servers
    pool.take_back("second", tmp_path / "second")
    assert not members(sessions)
    assert pool.sessions == ()
    for recipe in PAIR:
        assert (tmp_path / recipe / "logs" / "engine-0.log").read_text() != ""


def test_a_recipe_that_stands_alone_is_lent_nothing(pool: Pool, plan: Plan, tmp_path: Path) -> None:
    assert lend(pool, "alone", plan, tmp_path) is None
    assert pool.sessions == ()


def test_a_stub_that_died_is_told_by_its_log_and_replaced_for_the_next_page(
    pool: Pool, plan: Plan, tmp_path: Path
) -> None:
    first = lend(pool, "first", plan, tmp_path)
    assert first
    borrowed = Borrowed(first.servers[0])
    assert first.servers[0].pid
    os.kill(first.servers[0].pid, 9)
    while borrowed.alive():
        os.sched_yield()
    with pytest.raises(ServerError, match="engine-0"):
        borrowed.check_alive()
    second = lend(pool, "second", plan, tmp_path)
    assert second
    assert second.servers[0].pid != first.servers[0].pid
    assert Borrowed(second.servers[0]).alive()


def test_when_the_stub_does_not_come_up_the_page_launches_its_own(
    pool: Pool, plan: Plan, stub_server_process: MakeProcess, tmp_path: Path
) -> None:
    dying = named(stub_server_process("--exit", "3"), "engine-0", "engine")
    broken = replace(plan, deployment=plan.deployment.model_copy(update={"processes": (dying,)}))
    told: list[Mapping[str, Any]] = []
    pool.lend("first", broken, tmp_path, told.append)
    assert loan.read(tmp_path) is None
    assert "The shared servers did not come up" in told[-1]["title"]


def test_a_page_on_shared_servers_says_so_in_its_record(pool: Pool, plan: Plan, tmp_path: Path) -> None:
    lent = lend(pool, "first", plan, tmp_path)
    assert lent
    other = replace(plan, deployment=plan.deployment.model_copy(update={"processes": (plan.own[0],)}))
    used = other.borrowing(lent)
    assert used.own == tuple(server.process for server in lent.servers)
    assert (used.substitutions[-1].what, used.substitutions[-1].replacement) == (
        "server",
        "one for the pages of first, second",
    )


def test_a_file_that_is_no_loan_is_named(tmp_path: Path) -> None:
    (tmp_path / loan.LOAN).write_text('{"recipes": 1}')
    with pytest.raises(InputError, match=r"loan\.json is no loan of servers"):
        loan.read(tmp_path)
