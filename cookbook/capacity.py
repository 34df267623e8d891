"""Memory as arithmetic: weights, KV cache and state of a layout, what fits, and what it is bounded by.

All of it follows from the model's own numbers (`Shape`), except for two that are fitted to published figures
(`Calibration`): what graphs and workspaces take of a device, and how many copies of the KDA state a sequence has.
Without a calibration for the hardware, every count of tokens and sequences is an upper bound.

    a device:  weights | overhead | KV pool
    KV pool:   for each sequence, latents and indexer keys of its tokens, and its KDA states

Bytes are exact; GiB are 2^30 bytes. Nothing here is a measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from cookbook.catalog import Catalog
from cookbook.catalog.schema import Calibration, Shape
from cookbook.deployment import Deployment, Frozen, Process

__all__ = [
    "GIB",
    "Capacity",
    "Layout",
    "capacities",
    "indexer_bytes_per_token",
    "kv_bytes_per_token",
    "latent_bytes_per_token",
    "layout_of",
    "offload_bytes_per_device",
    "pool_bytes",
    "sequence_bytes",
    "state_bytes_per_sequence",
    "weight_bytes_per_device",
]

GIB = 2**30
DEFAULT_UTILIZATION = 0.9
"""Of `--gpu-memory-utilization`, vLLM's own."""


class Layout(Frozen):
    """How one role spreads the model.

    Attributes:
        tensor_parallel: Devices of a group.
        data_parallel: Groups.
        decode_context_parallel: Devices of a group that share one copy of the KV cache's latents.
        expert_parallel: Whether the experts are spread over all devices of all groups.
        kv_cache_dtype: Value of `--kv-cache-dtype`.
        memory_gib: Of one device; None where nobody states it.
        utilization: Share of that memory which the engine may take, 0 to 1.
        devices_per_node: Devices of one node.
    """

    tensor_parallel: int
    data_parallel: int = 1
    decode_context_parallel: int = 1
    expert_parallel: bool = False
    kv_cache_dtype: str = "auto"
    memory_gib: float | None = None
    utilization: float = DEFAULT_UTILIZATION
    devices_per_node: int = 8


def routed_bytes(shape: Shape) -> int:
    """Bytes of all routed experts: three matrices each."""
    weights = shape.moe_layers * shape.routed_experts * 3 * shape.expert_width * shape.latent_width
    return math.ceil(weights * shape.expert_bits / 8)


def weight_bytes_per_device(shape: Shape, layout: Layout) -> int:
    """Bytes of weights on one device. Expert parallelism cuts the experts over all devices, else a group cuts all."""
    routed = min(routed_bytes(shape), shape.checkpoint_bytes)
    over = layout.tensor_parallel * (layout.data_parallel if layout.expert_parallel else 1)
    return math.ceil(routed / over) + math.ceil((shape.checkpoint_bytes - routed) / layout.tensor_parallel)


def latent_bytes_per_token(shape: Shape, kv_cache_dtype: str) -> int:
    """Bytes of one token's latents in all MLA layers; a format that the model does not list counts as its widest."""
    known = shape.latent_bytes
    return shape.mla_layers * known.get(kv_cache_dtype, max(known.values()))


def indexer_bytes_per_token(shape: Shape) -> int:
    """Bytes of one token's indexer keys in all MLA layers."""
    return shape.mla_layers * shape.indexer_bytes


def kv_bytes_per_token(shape: Shape, kv_cache_dtype: str) -> int:
    """Bytes of KV cache of one token: latents and indexer keys. KDA layers have none."""
    return latent_bytes_per_token(shape, kv_cache_dtype) + indexer_bytes_per_token(shape)


def state_bytes_per_sequence(shape: Shape, tensor_parallel: int) -> int:
    """Bytes of one copy of a sequence's KDA state on one device. It does not grow with the context."""
    width = shape.kda_head_width
    heads = math.ceil(shape.kda_heads / tensor_parallel)
    recurrent = heads * width * width * shape.recurrent_bytes
    convolution = 3 * heads * width * (shape.conv_width - 1) * shape.conv_bytes
    return shape.kda_layers * (recurrent + convolution)


def sequence_bytes(shape: Shape, layout: Layout, context_tokens: int, states: float = 1) -> int:
    """Bytes of one sequence on one device of its group.

    Args:
        shape: The model.
        layout: Tensor parallelism copies the latents to each device; decode context parallelism cuts them.
        context_tokens: Length of the sequence, at least 0.
        states: Copies of the KDA state.
    """
    tokens = math.ceil(context_tokens / layout.decode_context_parallel)
    state = state_bytes_per_sequence(shape, layout.tensor_parallel)
    return tokens * kv_bytes_per_token(shape, layout.kv_cache_dtype) + math.ceil(states * state)


def pool_bytes(shape: Shape, layout: Layout, overhead_gib: float = 0) -> int | None:
    """Bytes of a device that are left for KV cache and state, at least 0; None where its memory is not known."""
    if layout.memory_gib is None:
        return None
    usable = layout.memory_gib * layout.utilization - overhead_gib
    return max(0, math.floor(usable * GIB) - weight_bytes_per_device(shape, layout))


def offload_bytes_per_device(process: Process) -> int:
    """Bytes of host memory that a process pins for each of its devices; 0 without offload."""
    return _offload(process.value("--kv-transfer-config"), process.devices)


def _offload(config: object, devices: int) -> int:
    if not isinstance(config, Mapping):
        return 0
    extra = config.get("kv_connector_extra_config")
    if not isinstance(extra, Mapping):
        return 0
    children = extra.get("connectors")
    inner = sum(_offload(child, devices) for child in children) if isinstance(children, list | tuple) else 0
    per_device = extra.get("cpu_bytes_to_use_per_rank")
    if isinstance(per_device, int | float):
        return inner + int(per_device)
    whole = extra.get("cpu_bytes_to_use")
    return inner + (int(whole) // max(devices, 1) if isinstance(whole, int | float) else 0)


class Capacity(Frozen):
    """What one role holds. Sizes in bytes are of one device unless the name says otherwise.

    Attributes:
        role: Its name.
        layout: How it spreads the model.
        context_tokens: Length of the sequences that were asked for.
        sequences: How many were asked for, over the whole role.
        weight_bytes: Weights.
        latent_bytes_per_token: Latents of a token in all layers.
        indexer_bytes_per_token: Indexer keys of a token in all layers.
        state_bytes_per_sequence: One copy of the KDA state of a sequence.
        states_per_sequence: Copies; fitted where `calibrated`, else 1.
        overhead_bytes: Graphs, workspaces and buffers; fitted where `calibrated`, else 0.
        calibrated: Whether the two are fitted for this hardware. Where not, counts are upper bounds.
        pool_bytes: What is left for sequences; None where the device's memory is not known.
        sequence_bytes: One sequence of `context_tokens`, states included.
        full_sequence_bytes: One sequence of the model's full context, states included.
        sequences_that_fit: Of `context_tokens`, over the whole role.
        tokens_that_fit: Over the whole role, as sequences of the full context: the figure that is published.
        fits: Whether `sequences` of `context_tokens` fit.
        offload_bytes: Host memory that is pinned for a device.
        offload_bytes_per_node: The same for a node.
        offload_tokens: Tokens that the offload of one group holds.
    """

    role: str
    layout: Layout
    context_tokens: int
    sequences: int
    weight_bytes: int
    latent_bytes_per_token: int
    indexer_bytes_per_token: int
    state_bytes_per_sequence: int
    states_per_sequence: float
    overhead_bytes: int
    calibrated: bool
    pool_bytes: int | None
    sequence_bytes: int
    full_sequence_bytes: int
    sequences_that_fit: int | None
    tokens_that_fit: int | None
    fits: bool | None
    offload_bytes: int
    offload_bytes_per_node: int
    offload_tokens: int


def layout_of(process: Process, memory_gib: float | None) -> Layout:
    """The layout that a `vllm serve` command asks for.

    Args:
        process: Any of the role's processes.
        memory_gib: Of one of its devices, in GiB.
    """
    return Layout(
        tensor_parallel=_number(process, "--tensor-parallel-size"),
        data_parallel=_number(process, "--data-parallel-size"),
        decode_context_parallel=_number(process, "--decode-context-parallel-size"),
        expert_parallel=process.has("--enable-expert-parallel"),
        kv_cache_dtype=str(process.value("--kv-cache-dtype") or "auto"),
        memory_gib=memory_gib,
        utilization=_share(process.value("--gpu-memory-utilization")),
        devices_per_node=process.devices,
    )


def _number(process: Process, flag: str) -> int:
    value = str(process.value(flag) or 1)
    return int(value) if value.isdecimal() and int(value) > 0 else 1


def _share(value: object) -> float:
    try:
        return min(1.0, max(0.0, float(str(value))))
    except ValueError:
        return DEFAULT_UTILIZATION


def capacity(
    shape: Shape,
    calibration: Calibration | None,
    layout: Layout,
    *,
    role: str = "engine",
    context_tokens: int,
    sequences: int = 1,
    offload_bytes: int = 0,
) -> Capacity:
    """What a layout holds.

    Args:
        shape: The model.
        calibration: What was fitted for this hardware; None gives upper bounds.
        layout: How it is spread.
        role: Its name.
        context_tokens: Length of the sequences, at least 1.
        sequences: How many, at least 1.
        offload_bytes: Host memory that is pinned for a device.
    """
    states = calibration.states_per_sequence if calibration else 1
    overhead = calibration.overhead_gib if calibration else 0
    pool = pool_bytes(shape, layout, overhead)
    one = sequence_bytes(shape, layout, context_tokens, states)
    full = sequence_bytes(shape, layout, shape.max_context, states)
    fit = None if pool is None else pool // one * layout.data_parallel
    per_token = kv_bytes_per_token(shape, layout.kv_cache_dtype)
    return Capacity(
        role=role,
        layout=layout,
        context_tokens=context_tokens,
        sequences=sequences,
        weight_bytes=weight_bytes_per_device(shape, layout),
        latent_bytes_per_token=latent_bytes_per_token(shape, layout.kv_cache_dtype),
        indexer_bytes_per_token=indexer_bytes_per_token(shape),
        state_bytes_per_sequence=state_bytes_per_sequence(shape, layout.tensor_parallel),
        states_per_sequence=states,
        overhead_bytes=math.ceil(overhead * GIB),
        calibrated=calibration is not None,
        pool_bytes=pool,
        sequence_bytes=one,
        full_sequence_bytes=full,
        sequences_that_fit=fit,
        tokens_that_fit=None if pool is None else pool * shape.max_context * layout.data_parallel // full,
        fits=None if fit is None else sequences <= fit,
        offload_bytes=offload_bytes,
        offload_bytes_per_node=offload_bytes * layout.devices_per_node,
        offload_tokens=offload_bytes // per_token * layout.decode_context_parallel,
    )


def capacities(
    catalog: Catalog, deployment: Deployment, *, context_tokens: int | None = None, sequences: int = 1
) -> tuple[Capacity, ...]:
    """What each role of a deployment holds, routers left out.

    Args:
        catalog: The model's shape, and memory of the hardware.
        deployment: Of the model itself, not of a small one.
        context_tokens: Length of the sequences; None for the context of the command.
        sequences: How many.
    """
    model, hardware = catalog.model, catalog.hardware[deployment.hardware]
    memory = hardware.memory.gib if hardware.memory else None
    calibration = model.calibration if hardware.family in model.calibration.families else None
    found: dict[str, Capacity] = {}
    for process in deployment.processes:
        if process.role in found or process.role == "router":
            continue
        length = context_tokens or _number(process, "--max-model-len")
        found[process.role] = capacity(
            model.shape,
            calibration,
            layout_of(process, memory),
            role=process.role,
            context_tokens=min(length, model.shape.max_context) if context_tokens is None else length,
            sequences=sequences,
            offload_bytes=offload_bytes_per_device(process),
        )
    return tuple(found.values())
