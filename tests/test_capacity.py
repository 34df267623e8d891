"""Memory as arithmetic: the published figures, and what has to hold for any numbers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cookbook.capacity import (
    GIB,
    Layout,
    capacities,
    capacity,
    indexer_bytes_per_token,
    kv_bytes_per_token,
    latent_bytes_per_token,
    pool_bytes,
    sequence_bytes,
    state_bytes_per_sequence,
    weight_bytes_per_device,
)
from cookbook.catalog import Catalog
from cookbook.catalog.schema import Shape
from cookbook.resolve import resolve
from cookbook.selection import named

TP8 = Layout(tensor_parallel=8, kv_cache_dtype="fp8", memory_gib=268, utilization=0.95)
LAYOUTS = st.builds(
    Layout,
    tensor_parallel=st.sampled_from([1, 2, 4, 8, 16, 32]),
    data_parallel=st.sampled_from([1, 2, 4, 16]),
    decode_context_parallel=st.sampled_from([1, 2, 4, 8]),
    expert_parallel=st.booleans(),
    kv_cache_dtype=st.sampled_from(["fp8", "nvfp4_ds_mla", "auto", "never heard of"]),
    memory_gib=st.one_of(st.none(), st.floats(1, 2000)),
    utilization=st.floats(0, 1),
    devices_per_node=st.sampled_from([4, 8, 16]),
)


@pytest.fixture
def shape(catalog: Catalog) -> Shape:
    return catalog.model.shape


def tokens(catalog: Catalog, recipe: str) -> float:
    (one,) = capacities(catalog, resolve(catalog, named(catalog, recipe)))
    assert one.tokens_that_fit is not None
    return one.tokens_that_fit


# What is published, and how far the arithmetic is from it


def test_bytes_of_a_token_and_layer_are_the_published_ones(shape: Shape) -> None:
    assert latent_bytes_per_token(shape, "fp8") / shape.mla_layers == 576
    assert latent_bytes_per_token(shape, "nvfp4_ds_mla") / shape.mla_layers == 352


def test_a_million_tokens_take_the_published_memory(shape: Shape) -> None:
    assert kv_bytes_per_token(shape, "fp8") == 16_992
    assert 2**20 * kv_bytes_per_token(shape, "fp8") / GIB == pytest.approx(16.6, abs=0.05)
    assert 2**20 * kv_bytes_per_token(shape, "nvfp4_ds_mla") / GIB == pytest.approx(11.3, abs=0.05)


def test_state_of_a_sequence_is_54_mib_a_gpu(shape: Shape) -> None:
    assert state_bytes_per_sequence(shape, 8) / 2**20 == pytest.approx(53.6, abs=0.1)


def test_weights_of_a_gpu_are_a_share_of_the_checkpoint(shape: Shape) -> None:
    assert weight_bytes_per_device(shape, TP8) / GIB == pytest.approx(181.7, abs=0.1)


def test_expert_parallelism_copies_all_but_the_experts(shape: Shape) -> None:
    decode = Layout(tensor_parallel=1, data_parallel=16, expert_parallel=True)
    alone = weight_bytes_per_device(shape, decode)
    assert shape.checkpoint_bytes / 16 < alone < shape.checkpoint_bytes / 4
    assert weight_bytes_per_device(shape, decode.model_copy(update={"expert_parallel": False})) > 7 * alone


def test_nvfp4_holds_about_one_and_a_half_times_the_tokens(catalog: Catalog) -> None:
    assert tokens(catalog, "gb300_nvfp4_kv") / tokens(catalog, "gb300_tp8") == pytest.approx(1.5, rel=0.05)


def test_dcp8_holds_about_seven_times_the_tokens(catalog: Catalog) -> None:
    """Calibrated: the figure for TP8 gives the overhead, the one for DCP8 the copies of the state."""
    assert tokens(catalog, "b300_tp8") == pytest.approx(2.6e6, rel=0.01)
    assert tokens(catalog, "b300_dcp8") == pytest.approx(18.5e6, rel=0.02)
    assert tokens(catalog, "b300_dcp8") / tokens(catalog, "b300_tp8") == pytest.approx(7, rel=0.05)


def test_without_the_calibration_dcp8_would_hold_almost_eight_times(shape: Shape) -> None:
    """What arithmetic alone says: the difference to 7 is the state, which DCP does not cut."""
    full = shape.max_context
    dcp8 = TP8.model_copy(update={"decode_context_parallel": 8})
    assert sequence_bytes(shape, TP8, full) / sequence_bytes(shape, dcp8, full) == pytest.approx(7.83, abs=0.01)


def test_offload_of_128_gib_holds_eight_million_tokens(catalog: Catalog) -> None:
    prefill, decode = capacities(catalog, resolve(catalog, named(catalog, "gb300_pd_kv_offload")))
    assert prefill.offload_bytes == 128 * GIB
    assert prefill.offload_bytes_per_node == 512 * GIB
    assert prefill.offload_tokens == pytest.approx(8.09e6, rel=0.001)
    assert decode.offload_bytes == 0


def test_what_nobody_states_stays_unknown(catalog: Catalog) -> None:
    (m890,) = capacities(catalog, resolve(catalog, named(catalog, "ppu_m890_dep32")))
    assert (m890.pool_bytes, m890.tokens_that_fit, m890.fits) == (None, None, None)
    assert not m890.calibrated


# What holds for any numbers


def held(shape: Shape, layout: Layout, context: int, sequences: int = 1) -> Any:
    return capacity(shape, None, layout, context_tokens=context, sequences=sequences)


@given(LAYOUTS, st.integers(1, 2**20), st.integers(1, 10_000))
def test_nothing_is_negative(catalog: Catalog, layout: Layout, context: int, sequences: int) -> None:
    one = held(catalog.model.shape, layout, context, sequences)
    for name, value in one.model_dump().items():
        if isinstance(value, int | float):
            assert value >= 0, name


@given(LAYOUTS, st.integers(1, 2**20 - 1), st.integers(1, 10_000))
def test_longer_or_more_sequences_never_fit_better(catalog: Catalog, layout: Layout, context: int, many: int) -> None:
    shape = catalog.model.shape
    short, long = held(shape, layout, context, many), held(shape, layout, context + 1, many)
    assert long.sequence_bytes >= short.sequence_bytes
    if short.pool_bytes is not None:
        assert long.sequences_that_fit <= short.sequences_that_fit
        assert short.fits >= held(shape, layout, context, many + 1).fits


@given(LAYOUTS.filter(lambda layout: layout.memory_gib is not None), st.floats(0, 500))
def test_more_memory_never_holds_less(catalog: Catalog, layout: Layout, more: float) -> None:
    shape = catalog.model.shape
    larger = layout.model_copy(update={"memory_gib": (layout.memory_gib or 0) + more})
    assert (pool_bytes(shape, larger) or 0) >= (pool_bytes(shape, layout) or 0)
    assert held(shape, larger, 1000).tokens_that_fit >= held(shape, layout, 1000).tokens_that_fit


@given(LAYOUTS, st.integers(1, 2**20))
def test_sharding_the_cache_never_costs_memory(catalog: Catalog, layout: Layout, context: int) -> None:
    shape = catalog.model.shape
    sharded = layout.model_copy(update={"decode_context_parallel": layout.decode_context_parallel * 2})
    assert sequence_bytes(shape, sharded, context) <= sequence_bytes(shape, layout, context)


def test_indexer_keys_do_not_change_with_the_format(shape: Shape) -> None:
    assert indexer_bytes_per_token(shape) == 24 * 132


def test_every_size_says_its_unit() -> None:
    units = ("_bytes", "_gib", "_tokens", "bytes_per_token", "bytes_per_sequence", "per_node", "_fit")
    plain = {"role", "layout", "sequences", "states_per_sequence", "calibrated", "fits"}
    fields = held_fields()
    assert [name for name in fields - plain if not name.endswith(units)] == []


def held_fields() -> set[str]:
    from cookbook.capacity import Capacity  # noqa: PLC0415

    return set(Capacity.model_fields)
