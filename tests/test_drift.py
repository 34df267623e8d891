"""Upstream's recipe against the catalog: what is read, what differs, and what --apply writes."""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from cookbook.catalog import BUILTIN, Catalog, load
from cookbook.cli import drift as drift_command
from cookbook.cli import main
from cookbook.drift import Difference, apply, compare, fetch, parse
from cookbook.errors import CookbookError, InputError
from cookbook.resolve import resolve
from cookbook.selection import named

RECIPE = Path(__file__).parent / "data" / "drift" / "recipe.yaml"


KEYS = st.sampled_from(["model", "model_id", "features", "args", "hardware_overrides", "x"])
CONTENT = st.recursive(
    st.none() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the catalog, to be written into."""
    copy = tmp_path / "catalog"
    copy.mkdir()
    for path in BUILTIN.glob("*.yaml"):
        shutil.copy(path, copy)
    return copy


def found(catalog: Catalog, text: str | None = None) -> dict[tuple[str, str], Difference]:
    upstream = parse(RECIPE.read_text() if text is None else text, "recipe.yaml")
    return {(one.state, one.subject): one for one in compare(catalog, upstream)}


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["drift", *arguments])
    assert "Traceback" not in result.output
    return result


def test_a_flag_that_differs_names_both_sides_and_their_sources(catalog: Catalog) -> None:
    upstream = parse(RECIPE.read_text(), "recipe.yaml")
    ours_from = "vendor nvidia: from_k3, k3_recipe"
    several = (one for one in compare(catalog, upstream) if one.subject == "--gpu-memory-utilization")
    (one,) = (one for one in several if one.ours_from == ours_from)
    assert (one.state, one.ours, one.theirs) == ("differs", "0.95", "0.92")
    assert one.their_layer == "base"
    assert {"b300_tp8", "gb300_pd"} <= set(one.recipes)


@pytest.mark.parametrize(
    ("state", "subject", "ours", "theirs"),
    [
        ("differs", "--tool-call-parser", "kimi_k3", "kimi_k31"),
        ("differs", "VLLM_ENGINE_READY_TIMEOUT_S", "3600", "7200"),
        ("differs", "image for b300", "vllm/vllm-openai:kimi-k31", "vllm/vllm-openai:k31-final"),
        ("differs", "--max-num-seqs", "8", "16"),
        ("missing_here", "--seed", None, "7"),
        ("missing_here", "VLLM_LOGGING_LEVEL", None, "INFO"),
        ("only_here", "--no-enable-flashinfer-autotune", "on", None),
        ("confirmed", "--trust-remote-code", "on", "on"),
        ("confirmed", "--kv-cache-dtype", "fp8", "fp8"),
        ("confirmed", "VLLM_USE_V2_MODEL_RUNNER", "1", "1"),
        ("confirmed", "--dcp-comm-backend", "a2a", "a2a"),
        (
            "confirmed",
            "--compilation-config",
            '{"cudagraph_mode":"FULL_DECODE_ONLY"}',
            '{"cudagraph_mode":"FULL_DECODE_ONLY"}',
        ),
        ("remark", "hardware h200", None, "listed"),
        ("remark", "hardware tpu_v7x", "has recipes", None),
        ("remark", "feature telepathy", None, "listed"),
        ("remark", "devices of multi_node_tp", "8", "at least 16"),
    ],
)
def test_what_is_found(catalog: Catalog, state: str, subject: str, ours: str | None, theirs: str | None) -> None:
    many = [
        one
        for one in compare(catalog, parse(RECIPE.read_text(), "recipe.yaml"))
        if (one.state, one.subject) == (state, subject)
    ]
    assert (ours, theirs) in [(one.ours, one.theirs) for one in many]


def test_a_preset_and_a_feature_that_upstream_has_not_stand_above_it(catalog: Catalog) -> None:
    """Else --apply would make the NVFP4 cache an FP8 one."""
    listed = compare(catalog, parse(RECIPE.read_text(), "recipe.yaml"))
    states = {(one.ours_from.partition(":")[0], one.state) for one in listed if one.ours_from}
    assert ("feature nvfp4_kv", "only_here") in states
    assert ("recipe mi355x_agentx", "only_here") in states
    assert not {("feature nvfp4_kv", "differs"), ("recipe mi355x_agentx", "differs")} & states


def test_what_is_stated_already_is_no_news(catalog: Catalog) -> None:
    subjects = {subject for _, subject in found(catalog)}
    assert "VLLM_SSM_CONV_STATE_LAYOUT" not in subjects
    assert "--decode-context-parallel-size" not in subjects
    assert "--tensor-parallel-size" not in subjects


def test_what_is_not_understood_is_shown() -> None:
    assert parse(RECIPE.read_text(), "x").not_understood == ("model.colour",)
    assert "Not understood: model.colour" in run("--from", str(RECIPE)).output


def test_json_and_a_wrapped_recipe_read_the_same(catalog: Catalog) -> None:
    content = yaml.safe_load(RECIPE.read_text())
    text = json.dumps({"recipe": content}, default=str)
    assert found(catalog, text).keys() == found(catalog).keys()


def test_bounds_that_contradict_are_remarks(catalog: Catalog) -> None:
    text = "model: {model_id: moonshotai/Kimi-K4, min_vllm_version: 0.33.0, context_length: 4096}"
    remarks = {subject for state, subject in found(catalog, text) if state == "remark"}
    assert {"model", "vLLM version", "context length"} <= remarks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "model is missing, so this is no recipe"),
        ("- a\n- b", "model is missing"),
        ("model: {}", "model"),
        ("model: {title: x}", "model.model_id is missing"),
        ("model: [", "is neither YAML nor JSON"),
        ('{"model": ', "is neither YAML nor JSON"),
        ("model: {model_id: x, base_args: 5}", "model.base_args is not a list of words"),
        ("model: {model_id: x, base_args: [loose]}", 'model.base_args has "loose" without a flag'),
        ('model: {model_id: x, base_args: ["--a \'b"]}', "a shell cannot read"),
        ("model: {model_id: x, context_length: long}", "model.context_length is 'long' and no whole number"),
        ("model: {model_id: x, docker_image: [a]}", "model.docker_image is neither an image nor a mapping"),
        ("model: {model_id: x}\nfeatures: [a]", "features is not a mapping"),
        ("model: {model_id: x}\nhardware_overrides: {b300: 5}", "hardware_overrides.b300 is not a mapping"),
        ("model: {model_id: x}\nstrategy_min_gpus: {a: -1}", "strategy_min_gpus.a is -1"),
    ],
)
def test_a_broken_recipe_names_its_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    result = run("--from", str(path))
    assert result.exit_code == 2
    assert message in result.stderr
    assert "--from" in result.stderr


@settings(deadline=None, max_examples=80)
@given(CONTENT)
def test_any_content_is_read_or_is_a_clear_error(content: object) -> None:
    try:
        parse(json.dumps({"model": {"model_id": "m"}, "features": content}), "x")
    except CookbookError as error:
        assert error.exit_code == 2
        assert error.todo


def test_a_file_that_is_not_there_or_too_large_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        fetch(str(tmp_path / "none.yaml"))
    (tmp_path / "huge").write_bytes(b"a" * 5_000_001)
    with pytest.raises(InputError, match="larger than 5 MB"):
        fetch(str(tmp_path / "huge"))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """A web server on loopback, as the double of upstream's."""
    shutil.copy(RECIPE, tmp_path / "recipe.yaml")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_address_is_read(site: str) -> None:
    assert run("--from", f"{site}/recipe.yaml").exit_code == 1
    missing = run("--from", f"{site}/none.yaml")
    assert missing.exit_code == 2
    assert "answers HTTP 404" in missing.stderr


def test_an_address_that_cannot_be_reached_is_an_error() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        result = run("--from", f"http://127.0.0.1:{closed.getsockname()[1]}/x.yaml")
    assert result.exit_code == 2
    assert "cannot be reached" in result.stderr


def test_the_command_shows_it_in_a_hundred_columns() -> None:
    result = run("--from", str(RECIPE))
    assert result.exit_code == 1
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert "Upstream says otherwise" in result.stdout
    assert "things differ from" in result.stderr
    listed = json.loads(run("--from", str(RECIPE), "--json").stdout)
    assert {one["state"] for one in listed["differences"]} >= {"differs", "missing_here", "confirmed"}


def test_apply_writes_whole_entries_with_their_new_basis(folder: Path) -> None:
    upstream = parse(RECIPE.read_text(), "https://example.com/recipe.yaml")
    before = load(folder)
    lines = apply(folder, compare(before, upstream), upstream)
    assert any("--gpu-memory-utilization = 0.92" in line for line in lines)
    after = load(folder)
    deployment = resolve(after, named(after, "b300_tp8"))
    argument = next(one for one in deployment.processes[0].arguments if one.flag == "--gpu-memory-utilization")
    assert (argument.value, argument.origins[0].basis, argument.origins[0].source) == (0.92, "stated", "k31_recipe")
    assert deployment.image
    assert deployment.image.tag == "vllm/vllm-openai:k31-final"
    assert after.sources["k31_recipe"].url == "https://example.com/recipe.yaml"
    assert after.rehearsal.args["--seed"].drop
    # What was to change is changed, and nothing is left to apply.
    left = compare(after, upstream)
    assert {one.state for one in left} <= {"only_here", "remark"}


def test_apply_keeps_comments_and_changes_nothing_else(folder: Path) -> None:
    upstream = parse(RECIPE.read_text(), "recipe.yaml")
    before = {path.name: path.read_bytes() for path in folder.glob("*.yaml")}
    apply(folder, compare(load(folder), upstream), upstream)
    after = {path.name: path.read_bytes() for path in folder.glob("*.yaml")}
    assert after.keys() == before.keys()
    assert b"# The wheel of 0.33.0 was read" in after["model.yaml"]
    for name in ("rules.yaml", "claims.yaml", "problems.yaml", "recipes.yaml", "names.yaml"):
        assert after[name] == before[name]


def test_apply_without_differences_changes_no_byte(folder: Path) -> None:
    upstream = parse("model: {model_id: moonshotai/Kimi-K3.1-Pro}", "recipe.yaml")
    before = {path.name: path.read_bytes() for path in folder.glob("*.yaml")}
    assert apply(folder, compare(load(folder), upstream), upstream) == ()
    assert {path.name: path.read_bytes() for path in folder.glob("*.yaml")} == before


def test_apply_that_would_break_the_catalog_leaves_it_whole(folder: Path) -> None:
    upstream = parse("model: {model_id: moonshotai/Kimi-K3.1-Pro, base_args: [--Bad_Flag, '1']}", "recipe.yaml")
    before = {path.name: path.read_bytes() for path in folder.glob("*.yaml")}
    with pytest.raises(InputError, match="--Bad_Flag"):
        apply(folder, compare(load(folder), upstream), upstream)
    assert {path.name: path.read_bytes() for path in folder.glob("*.yaml")} == before


def test_apply_by_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift_command, "BUILTIN", folder)
    result = run("--from", str(RECIPE), "--apply")
    assert result.exit_code == 0, result.output
    assert "--tool-call-parser = kimi_k31" in result.output
    refused = run("--from", str(RECIPE), "--apply", "--catalog", str(folder))
    assert refused.exit_code == 2
