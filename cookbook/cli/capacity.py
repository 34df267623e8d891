"""`cookbook capacity`."""

from __future__ import annotations

from typing import Any

import click

from cookbook.capacity import GIB, Capacity, capacities
from cookbook.catalog import Catalog
from cookbook.catalog.schema import ModelEntry
from cookbook.cli import echo_json
from cookbook.cli.options import catalog_option, selected, selection_options
from cookbook.deployment import Claim
from cookbook.errors import InputError
from cookbook.resolve import resolve

MIB = 2**20


@click.command("capacity")
@selection_options
@click.option("--context", "context_tokens", type=click.IntRange(min=1), metavar="N",
              help="Tokens of each sequence; the context of the command unless given.")  # fmt: skip
@click.option("--sequences", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Sequences at once, over all devices of a role.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="For a program; every size in bytes.")
@catalog_option
def command(catalog: Catalog, context_tokens: int | None, sequences: int, *, as_json: bool, **choice: Any) -> None:
    """What fits into the memory of RECIPE's devices: weights, KV cache, state, and host memory for offload.

    \b
        cookbook capacity b300_dcp8
        cookbook capacity b300_tp8 --context 200000 --sequences 12
        cookbook capacity --hardware gb300 --strategy multi_node_tp --feature nvfp4_kv --nodes 4
    """
    deployment = resolve(catalog, selected(catalog, **choice))
    if catalog.hardware[deployment.hardware].model:
        raise InputError(
            f"{deployment.hardware_title} runs a small model, whose memory is not what you plan for.",
            "Name a recipe for an accelerator.",
        )
    if context_tokens is not None and context_tokens > catalog.model.shape.max_context:
        raise InputError(
            f"--context {context_tokens} is longer than the model's {catalog.model.shape.max_context} tokens.",
            "Name a shorter one.",
        )
    found = capacities(catalog, deployment, context_tokens=context_tokens, sequences=sequences)
    if as_json:
        echo_json([one.model_dump(mode="json") for one in found])
        return
    click.echo(f"{deployment.title} ({deployment.recipe})")
    for notice in deployment.notices:
        if notice.kind in {"preview", "unverified"}:
            click.echo(f"{notice.kind}: {notice.text}")
    for one in found:
        click.echo()
        # The figures are about the whole deployment, so they are not compared with one pool of several.
        published = [claim for claim in deployment.claims if claim.unit == "tokens" and len(found) == 1]
        for line in _lines(one, catalog.model, published):
            click.echo(line)


def _lines(one: Capacity, model: ModelEntry, published: list[Claim]) -> list[str]:
    layout, shape = one.layout, model.shape
    layers = f"{shape.mla_layers} MLA layers, "
    parts = [f"TP {layout.tensor_parallel}"]
    parts += [f"DP {layout.data_parallel}"] if layout.data_parallel > 1 else []
    parts += [f"DCP {layout.decode_context_parallel}"] if layout.decode_context_parallel > 1 else []
    parts += ["EP"] if layout.expert_parallel else []
    kv = one.latent_bytes_per_token + one.indexer_bytes_per_token
    at_most = "" if one.calibrated else "at most "
    rows = [
        ("weights of a device", _gib(one.weight_bytes), "arithmetic"),
        ("KV cache of a token, latents", f"{one.latent_bytes_per_token:,} B", layers + layout.kv_cache_dtype),
        ("KV cache of a token, indexer keys", f"{one.indexer_bytes_per_token:,} B", f"{layers}FP8 and scale"),
        (
            "KDA state of a sequence",
            f"{one.state_bytes_per_sequence / MIB:.1f} MiB",
            f"{shape.kda_layers} KDA layers, one copy",
        ),
    ]
    if one.calibrated:
        rows += [
            ("copies of that state", f"{one.states_per_sequence:g}", "calibrated"),
            ("graphs, workspaces, buffers", _gib(one.overhead_bytes), "calibrated"),
        ]
    else:
        rows.append(("graphs, workspaces, buffers", "not known", "nothing was published for this hardware"))
    if one.pool_bytes is None:
        rows.append(("left for sequences", "not known", "no source states the memory of a device"))
    else:
        share = f"{layout.utilization:g} x {layout.memory_gib:g} GiB less the above"
        rows.append(("left for sequences", at_most + _gib(one.pool_bytes), share))
    rows += [
        (f"one sequence of {one.context_tokens:,} tokens", _gib(one.sequence_bytes), f"{kv:,} B a token, and state"),
        ("one sequence of the full context", _gib(one.full_sequence_bytes), "the same"),
    ]
    if one.tokens_that_fit is not None:
        fits = "yes" if one.fits else "no"
        rows += [
            ("tokens in sequences of the full context", f"{at_most}{one.tokens_that_fit:,}", "over the whole role"),
            (f"sequences of {one.context_tokens:,} tokens", f"{at_most}{one.sequences_that_fit:,}", "the same"),
            (f"do {one.sequences:,} of them fit", fits if one.calibrated or fits == "no" else "perhaps", ""),
        ]
    if one.offload_bytes:
        node = f"{_gib(one.offload_bytes_per_node)} a node, of DRAM that is free once the engines are up"
        rows += [
            ("offload of a device", _gib(one.offload_bytes), node),
            ("tokens in it", f"{one.offload_tokens:,}", "each group of devices"),
        ]
    width, middle = max(len(row[0]) for row in rows), max(len(row[1]) for row in rows)
    lines = [f"{one.role}: {', '.join(parts)}, {layout.devices_per_node} devices a node"]
    lines += [f"  {name:<{width}}  {value:>{middle}}  {origin}".rstrip() for name, value, origin in rows]
    if one.calibrated:
        lines.append(f"  calibrated: {model.calibration.why}")
    else:
        lines.append("  Nothing was fitted for this hardware: these are bounds, not predictions.")
    for claim in published:
        off = (one.tokens_that_fit or 0) / claim.value - 1
        lines.append(f"  published: {claim.statement} The arithmetic above gives {off:+.1%}.")
    return lines


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size < 10 * GIB else f"{size / GIB:.1f} GiB"
