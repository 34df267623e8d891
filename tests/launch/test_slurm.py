"""What Slurm says of a job, read. The words are those of Slurm 22.05."""

from __future__ import annotations

import pytest

from cookbook.launch.slurm import JobState

PENDING = (
    "JobId=7 JobName=kimi-k31-gb300_pd UserId=root(0) Priority=4294901753 Nice=0 Account=(null) QOS=(null) "
    "JobState=PENDING Reason=Nodes_required_for_job_are_DOWN,_DRAINED Dependency=(null) Requeue=0 "
    "StartTime=2026-12-06T10:00:00 EndTime=Unknown Partition=debug NodeList=(null) NumNodes=2-2"
)


def test_a_job_that_waits() -> None:
    state = JobState.of(PENDING)
    assert (state.name, state.nodes, state.starts) == ("PENDING", "", "2026-12-06T10:00:00")
    assert state.reason == "Nodes_required_for_job_are_DOWN,_DRAINED"
    assert not state.ended


@pytest.mark.parametrize(
    ("name", "ended"),
    [("RUNNING", False), ("COMPLETING", False), ("CANCELLED", True), ("NODE_FAIL", True), ("TIMEOUT", True)],
)
def test_whether_a_job_is_over(name: str, ended: bool) -> None:
    state = JobState.of(f"JobId=7 JobState={name} Reason=None StartTime=Unknown NodeList=n[0-1] ReqNodeList=(null)")
    assert (state.ended, state.reason, state.nodes, state.starts) == (ended, "None", "n[0-1]", "")
