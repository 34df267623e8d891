"""What a page measured, held against a published figure, against the log, or against a run of another recipe.

Each takes the run of the page, makes one check of `cookbook.feature_checks`, or leaves it out and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cookbook import baseline, feature_checks
from cookbook.checks import RECIPE
from cookbook.evidence import CheckResult, Evidence, Series
from cookbook.session import NOT_LAUNCHED, NOT_PUBLISHED, Run

__all__ = ["against", "judge", "more_tokens", "same_answers", "same_with_and_without", "seen_in_log"]

ON_CPU = "A CPU and a small model cannot show it."
SAME, SAME_EXPECTED = "same_tokens", "the same tokens, within a tolerance"

Answers = Mapping[str, tuple[int, ...]]


def judge(
    run: Run,
    claim: str,
    title: str,
    check: Callable[..., CheckResult],
    *measured: Any,
    name: str = "",
    **more: Any,
) -> None:
    """Hold what was measured against a published figure.

    It is left out where none is published for this recipe, where a comparison has no other side, and in a rehearsal:
    what a CPU measured is shown, and not held against a figure of the hardware.

    Args:
        run: Of the page.
        claim: Name of the figure.
        title: Of the check.
        check: Of `cookbook.feature_checks`; called with name, title, what was measured, claim and source.
        *measured: What was measured.
        name: Of the check, where it is another than the figure's.
        **more: Further arguments of the check.
    """
    found, called = run.claim(claim), name or claim
    if found is None:
        run.leave_out(called, title, expected=run.published(claim), reason=NOT_PUBLISHED)
    elif run.small or run.one_side:
        run.leave_out(called, title, expected=run.published(claim), reason=run.one_side or ON_CPU)
    else:
        run.check(check(called, title, *measured, claim=found, source=run.source(found), **more))


def seen_in_log(
    run: Run,
    name: str,
    title: str,
    pattern: str,
    *,
    expected: str,
    flag: str = "",
    not_on_cpu: str = "",
    source: str = "",
) -> None:
    """Check that a server's log tells of something. Left out where the rehearsal runs without its flag.

    Args:
        run: Of the page.
        name: Of the check.
        title: Of the check.
        pattern: Regular expression, looked for without regard to case.
        expected: What the line says, for a reader.
        flag: The flag that brings it; empty where a rehearsal shows it too.
        not_on_cpu: Why a rehearsal cannot show it, where no flag tells; empty where it can.
        source: Key of the pattern's source in the catalog; empty for this recipe.
    """
    missing = (not_on_cpu if run.rehearsal else "") or _missing(run, flag)
    if missing:
        run.leave_out(name, title, expected=expected, reason=missing)
    elif run.fleet is None:
        run.leave_out(name, title, expected=expected, reason=NOT_LAUNCHED)
    else:
        found = run.catalog.sources[source] if source else RECIPE
        run.check(feature_checks.log_shows(name, title, run.log(), pattern, expected=expected, source=found))


def same_answers(run: Run, recipe: str, ours: Answers, *, flag: str = "") -> None:
    """Hold answers at temperature 0 against those of a run of another recipe in the same circumstances.

    Args:
        run: Of the page.
        recipe: The other one.
        ours: Of `cookbook.measure.answers`.
        flag: What differs; a rehearsal without it would compare a server with itself. Empty for no such flag.
    """
    title = f"Same tokens as {run.catalog.recipes[recipe].title}"
    if _itself(run, title, flag):
        return
    found = run.baseline(recipe)
    if found is None or not found.answers:
        run.check(baseline.no_baseline(SAME, title, SAME_EXPECTED, recipe))
    else:
        run.check(feature_checks.same_tokens(SAME, title, ours, found.answers, compared_with=baseline.names(found)))


def same_with_and_without(run: Run, what: str, ours: Answers, theirs: Answers, *, flag: str) -> None:
    """Hold the answers of a server against those of the same server without one of its features, in the same run.

    Args:
        run: Of the page.
        what: The feature, for a reader.
        ours: With it; of `cookbook.measure.answers`.
        theirs: Without it.
        flag: What brings the feature; a rehearsal without it would compare a server with itself.
    """
    title = f"Same tokens with and without {what}"
    if run.one_side:
        run.leave_out(SAME, title, expected=SAME_EXPECTED, reason=run.one_side)
    elif not _itself(run, title, flag):
        other = f"the same server without {what}, in this run"
        run.check(feature_checks.same_tokens(SAME, title, ours, theirs, compared_with=other))


def _itself(run: Run, title: str, flag: str) -> bool:
    """Whether both sides are the same server here, as a rehearsal leaves the flag out; it is then said."""
    missing = _missing(run, flag)
    if missing:
        run.leave_out(SAME, title, expected=SAME_EXPECTED, reason=f"It would compare a server with itself. {missing}")
    return bool(missing)


def _missing(run: Run, flag: str) -> str:
    """Why a rehearsal runs without this flag; empty where the flag is set, or none is named."""
    changes = (change for change in run.running.substitutions if change.what == flag)
    return next((change.reason for change in changes if change.replacement is None), "")


def more_tokens(run: Run, recipe: str, claim: str, title: str) -> None:
    """Hold the tokens of the KV cache against those of a run of another recipe in the same circumstances.

    Args:
        run: Of the page.
        recipe: The other one.
        claim: Name of the published ratio.
        title: Of the check.
    """

    def tokens(found: Evidence) -> int | None:
        theirs = baseline.value(found, "kv_cache_tokens")
        return None if theirs is None else int(theirs)

    _against(run, recipe, claim, title, feature_checks.times_as_many, run.kv_tokens(), tokens)


def against(
    run: Run,
    recipe: str,
    claim: str,
    title: str,
    check: Callable[..., CheckResult],
    ours: Series,
    *,
    name: str = "",
    **more: Any,
) -> None:
    """Hold a measured curve against that of a run of another recipe in the same circumstances.

    Args:
        run: Of the page.
        recipe: The other one.
        claim: Name of the published figure that says how the two compare.
        title: Of the check.
        check: Of `cookbook.feature_checks`; called with name, title, both curves, claim, source and compared_with.
        ours: The curve; the other run's has the same name.
        name: Of the check, where it is another than the figure's.
        **more: Further arguments of the check.
    """

    def curve(found: Evidence) -> Series | None:
        return next((series for series in found.series if series.name == ours.name), None)

    _against(run, recipe, claim, title, check, ours, curve, name=name, **more)


def _against(
    run: Run,
    recipe: str,
    claim: str,
    title: str,
    check: Callable[..., CheckResult],
    ours: object,
    of: Callable[[Evidence], object | None],
    *,
    name: str = "",
    **more: Any,
) -> None:
    found = run.baseline(recipe)
    theirs = of(found) if found else None
    if found is None or theirs is None:
        run.check(baseline.no_baseline(name or claim, title, run.published(claim), recipe))
    else:
        judge(run, claim, title, check, ours, theirs, name=name, compared_with=baseline.names(found), **more)
