"""Markdown for people: pure functions from what a run knows to what its page shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from cookbook.begin import Plan
from cookbook.catalog import Catalog
from cookbook.catalog.schema import FactEntry, Place
from cookbook.deployment import Basis, Deployment, Source
from cookbook.evidence import CheckResult, Substitution
from cookbook.formats.bash import explain

__all__ = [
    "BASIS",
    "VERDICT",
    "about",
    "check_line",
    "checks_table",
    "commands",
    "problems",
    "reasons",
    "references",
    "requirements",
    "stopping",
    "table",
]

BASIS: dict[Basis, str] = {
    "stated": "stated",
    "from_k3": "from Kimi-K3",
    "vllm_source": "vLLM's source",
    "inferred": "inferred",
    "unknown": "unknown",
    "chosen": "our choice",
}
HOW = (
    "This page is a notebook, and what stands below each cell is what it printed when it ran. Its servers belong to a"
    " supervisor outside of it and end with it, whatever ends it; their logs go to files. With `base_url` nothing is"
    " launched and the server at that address is used; with `rehearse` a small model answers on a CPU in place of"
    " Kimi-K3.1-Pro."
)
MARKUP = frozenset("\\`*_[]|<>&~$#!")
VERDICT = {"pass": "✓ pass", "fail": "✗ fail", "left_out": "– left out"}


def cell(text: str) -> str:
    """Markdown that cannot break a table."""
    return " ".join(text.split()).replace("|", "&#124;")


def plain(text: str) -> str:
    """Text from outside, for a table: whatever Markdown or HTML would read as markup becomes an entity."""
    return "".join(f"&#{ord(c)};" if c in MARKUP else c for c in " ".join(text.split()))


def code(text: str) -> str:
    """Text from outside as code, for a table; empty stays empty.

    Not as backticks: the Markdown of JupyterLab and that of the site disagree on a bar between them.
    """
    return f"<code>{plain(text)}</code>" if text else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of cells that are already escaped."""
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def link(source: Source | None) -> str:
    """A source, linked where it has an address."""
    if source is None:
        return ""
    return f"[{cell(source.title)}]({source.url})" if source.url else cell(source.title)


def about(plan: Plan) -> str:
    """Notices, and in a rehearsal what was replaced and what was left out."""
    deployment = plan.deployment
    lines = [f"**{notice.text}**" if notice.kind == "rehearsal" else notice.text for notice in deployment.notices]
    lines.append(HOW)
    lines.append(f"Recipe for {deployment.hardware_title}; strategy {deployment.strategy}.")
    if plan.parameters.mode == "attached":
        lines.append("This run uses a server that was already running; nothing is known of its command.")
    if plan.substitutions:
        replaced = [s for s in plan.substitutions if s.replacement is not None]
        left_out = [s for s in plan.substitutions if s.replacement is None]
        lines += ["**Replaced or added in this rehearsal**", _replaced(replaced)]
        lines += ["**Left out of this rehearsal**", _left_out(left_out)]
    return "\n\n".join(lines)


def _replaced(entries: Iterable[Substitution]) -> str:
    rows = ((code(e.what), code(e.original) or "–", code(e.replacement or ""), cell(e.reason)) for e in entries)
    return table(("What", "On the hardware", "Here", "Why"), rows)


def _left_out(entries: Iterable[Substitution]) -> str:
    rows = ((code(e.what), code(e.original), cell(e.reason)) for e in entries)
    return table(("What", "On the hardware", "Why"), rows)


def requirements(catalog: Catalog, deployment: Deployment) -> str:
    """What has to be there, each statement with how sure it is and its source."""
    hardware = catalog.hardware[deployment.hardware]
    strategy = catalog.strategies[deployment.strategy]
    features = (catalog.features[name] for name in deployment.features)
    facts = [*hardware.requirements, *strategy.requirements, *(one for f in features for one in f.requirements)]
    facts += catalog.model.requirements
    if deployment.image:
        origin = deployment.image.origin
        text = f"The image `{deployment.image.tag}`. {origin.why}"
        facts.append(FactEntry(text=text, basis=origin.basis, source=origin.source))
    else:
        facts.append(FactEntry(text=hardware.image.why, basis=hardware.image.basis, source=hardware.image.source))
    rows = ((cell(f.text), BASIS[f.basis], link(catalog.sources[f.source] if f.source else None)) for f in facts)
    return table(("Needed", "Basis", "Source"), rows)


def commands(plan: Plan, render: Callable[[Deployment], str]) -> str:
    """The commands for the hardware, and what runs here where it differs."""
    text = f"On {plan.recipe_deployment.hardware_title}:\n\n```bash\n{render(plan.recipe_deployment).rstrip()}\n```"
    text += f"\n\n{stopping(plan.recipe_deployment)}"
    if plan.substitutions:
        text += f"\n\nIn this rehearsal:\n\n```bash\n{render(plan.deployment).rstrip()}\n```"
    return text


def stopping(deployment: Deployment) -> str:
    """How to stop what the commands start, and how to see that the devices are free again."""
    several = len({process.node for process in deployment.processes}) > 1
    where = "on every node, the head last" if several else "in its terminal"
    routed = any(process.role == "router" for process in deployment.processes)
    router = " Stop the router first, so that it takes no more requests." if routed else ""
    return (
        f"To stop: Ctrl-C {where}, or `kill` with the process id of `vllm serve`, and wait until it has ended.{router}"
        " An engine process can outlive a killed server and hold the memory of its devices, without which the next"
        " start fails: see in the vendor's tool that it is free again."
    )


def reasons(deployment: Deployment) -> str:
    """Why each flag and variable is there."""
    rows = (
        (code(f"{row.name} {row.value}".strip()), cell(row.why), BASIS[row.basis], cell(row.layer), link(row.source))
        for row in explain(deployment)
    )
    return table(("Flag or variable", "Why", "Basis", "Set by", "Source"), rows)


def problems(catalog: Catalog, deployment: Deployment) -> str:
    """Known problems of this hardware, strategy and features."""
    hardware = catalog.hardware[deployment.hardware]
    place = Place(
        hardware=deployment.hardware,
        vendor=hardware.vendor,
        family=hardware.family,
        strategy=deployment.strategy,
        features=frozenset(deployment.features),
    )
    known = [problem for problem in catalog.problems if problem.to(place)]
    rows = ((cell(p.symptom), cell(p.cause), cell(p.fix), f"[{cell(p.source_title)}]({p.url})") for p in known)
    return table(("You see", "Because", "Way out", "Where"), rows)


def references(deployment: Deployment) -> str:
    """The sources, with the state in which they were read."""
    entries = deployment.sources.values()
    return "\n".join(f"- {link(source)}{f', read {source.read}' if source.read else ''}" for source in entries)


def check_line(result: CheckResult) -> str:
    """One check in one line of plain text."""
    unit = f" {result.unit}" if result.unit else ""
    line = f"{VERDICT[result.verdict]}: {result.title}"
    if result.verdict == "left_out":
        return f"{line}. {result.detail}"
    return f"{line}. Expected {result.expected}{unit}; measured {result.measured}{unit}. {result.detail}".rstrip()


def checks_table(results: Iterable[CheckResult]) -> str:
    """All checks as a table."""
    rows = (
        (
            VERDICT[r.verdict],
            plain(r.title),
            plain(f"{r.expected} {r.unit}"),
            plain(f"{r.measured} {r.unit}") if r.measured else "–",
            f"{plain(r.detail)} By: {link(Source(title=r.source, url=r.source_url))}.".strip(),
        )
        for r in results
    )
    return table(("Verdict", "Check", "Expected", "Measured", "Remarks, and the source of the expectation"), rows)
