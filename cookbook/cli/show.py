"""`cookbook show`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from cookbook.catalog import Catalog
from cookbook.cli import echo_json
from cookbook.cli.options import catalog_option, selected, selection_options
from cookbook.deployment import Deployment, Source
from cookbook.errors import InputError
from cookbook.formats import FORMATS, render
from cookbook.formats.bash import explain as rows
from cookbook.resolve import resolve


@click.command("show")
@selection_options
@click.option("--format", "name", type=click.Choice(FORMATS), default="bash", show_default=True, help="As what.")
@click.option("--node", type=click.IntRange(min=0), metavar="N", help="Only what runs on node N (bash and docker).")
@click.option("--explain", is_flag=True, help="Why each flag is there, how sure that is, and its source.")
@click.option("--json", "as_json", is_flag=True, help="The whole deployment, for a program.")
@catalog_option
def command(catalog: Catalog, name: str, node: int | None, *, explain: bool, as_json: bool, **choice: Any) -> None:
    """The exact commands of RECIPE, or of any hardware, strategy and features that go together.

    \b
        cookbook show b300_tp8
        cookbook show gb300_pd --format slurm
        cookbook show b300_tp8 --set max-model-len=262144 --set no-enable-prefix-caching --set VLLM_LOGGING_LEVEL=DEBUG
        cookbook show --hardware b300 --strategy single_node_tp --feature dcp --feature text_only
        cookbook show gb300_pd --set decode:max-num-seqs=16 --node 2
    """
    if node is not None and name not in {"bash", "docker"}:
        raise InputError(f"--node does not go with --format {name}.", "Leave one of them out.")
    deployment = resolve(catalog, selected(catalog, **choice))
    if as_json:
        echo_json(deployment.model_dump(mode="json"))
        return
    click.echo(render(catalog, deployment, name, node), nl=False)
    if explain:
        for what, why, mark, source in _reasons(catalog, deployment):
            where = f" {source.title} {source.url or ''}".rstrip() if source else ""
            click.echo(f"\n{what}\n    {why}\n    [{mark}]{where}")


def _reasons(catalog: Catalog, deployment: Deployment) -> Iterator[tuple[str, str, str, Source | None]]:
    """Name, reason, how sure that is and from which layer, and source: layout, image, flags, published figures."""

    def known(key: str | None) -> Source | None:
        return catalog.sources[key] if key else None

    placement = catalog.hardware[deployment.hardware].strategies[deployment.strategy]
    yield f"{deployment.strategy} on {deployment.hardware}", placement.why, placement.basis, known(placement.source)
    if deployment.image:
        origin = deployment.image.origin
        yield f"image {deployment.image.tag}", origin.why, f"{origin.basis}, {origin.layer}", known(origin.source)
    for step in deployment.install:
        yield step.command, step.origin.why, f"{step.origin.basis}, {step.origin.layer}", known(step.origin.source)
    for row in rows(deployment):
        yield f"{row.name} {row.value}".strip(), row.why, f"{row.basis}, {row.layer}", row.source
    for claim in deployment.claims:
        yield f"published: {claim.name}", claim.statement, claim.basis, known(claim.source)
