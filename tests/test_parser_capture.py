"""A vLLM out of a file: it takes and refuses what the installed one does, as far as it can be told without code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from cookbook.errors import InputError
from cookbook.parser import Engine, capture, load_engine, read, write
from cookbook.parser.listed import ListedParser, size, size_or_auto
from cookbook.parser.shapes import shape
from tests.test_parser import B300, B300_ENVIRONMENT, NIXL, RIGHT, WRONG, process, values

WAY_OUT = "cookbook check --capture FILE"
# What vLLM finds with code of its own: a file cannot hold that.
BEYOND = {"requires --tool-call-parser", "specify kv_role"}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load_engine()


@pytest.fixture(scope="module")
def file(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("capture") / "vllm.json"
    write(path, capture(engine))
    return path


@pytest.fixture(scope="module")
def captured(file: Path) -> Engine:
    return read(file)


def test_a_capture_is_small(file: Path) -> None:
    assert file.stat().st_size < 150_000


def test_a_capture_says_which_vllm_it_is_of(engine: Engine, captured: Engine) -> None:
    assert captured.version == engine.version
    assert captured.architectures == engine.architectures


def test_a_command_without_a_model_is_caught(engine: Engine, captured: Engine) -> None:
    none = process().model_copy(update={"program": ("vllm", "serve")})
    assert captured.check(none) == engine.check(none) != []


def test_the_same_vllm_gives_the_same_bytes(engine: Engine, file: Path, tmp_path: Path) -> None:
    write(tmp_path / "again.json", capture(load_engine()))
    assert (tmp_path / "again.json").read_bytes() == file.read_bytes()
    assert json.loads(file.read_text()) == capture(engine)


def test_reading_imports_no_vllm(file: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from cookbook.parser import read;"
        f"engine = read(Path({str(file)!r})); print(engine.version, 'vllm' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0.32.0", "False", "False"]


@pytest.mark.parametrize("arguments", RIGHT)
def test_what_vllm_takes_passes(captured: Engine, arguments: tuple[tuple[str, Any], ...]) -> None:
    assert captured.check(process(*B300, *arguments, **B300_ENVIRONMENT)) == []


@pytest.mark.parametrize(
    ("argument", "subject", "nearest"),
    [(argument, subject, nearest) for argument, subject, what, nearest in WRONG if what not in BEYOND],
)
def test_a_wrong_argument_is_caught(
    captured: Engine, argument: tuple[str, Any], subject: str, nearest: str | None
) -> None:
    """Where the installed vLLM breaks on a value, the capture knows the key as well."""
    (problem,) = captured.check(process(("--port", 8000), argument, ("--trust-remote-code", None)))
    assert problem.subject in {subject, f"{subject}.cudagraph_mode"}
    if nearest:
        assert nearest in problem.nearest


MISTAKES: list[tuple[tuple[tuple[str, Any], ...], dict[str, str]]] = [
    ((("--tensor-paralel-size", 8),), {}),
    ((("--port", 8000), ("--port", 8001)), {}),
    ((("--enable-prefix-caching", None), ("--no-enable-prefix-caching", None)), {}),
    ((("-tp", 8), ("--tensor-parallel-size", 8)), {}),
    ((("--max-num-seqs", "many"),), {}),
    ((("--max-num-batched-tokens", "8q"),), {}),
    ((("--block-size", "17x"),), {}),
    ((("--moe-backend", "deep"),), {}),
    ((("--optimization-level", "turbo"), ("-O", None)), {}),
    ((("--kv-transfer-config", NIXL | {"kv_port": "all"}),), {}),
    ((("--speculative-config", {"method": "ngram", "prompt_lookup_max": 0}),), {}),
    ((("--speculative-config", {"method": "eagle3"}),), {}),
    ((("--attention-backend", "FLASHMLA"), ("--attention-config", {"backend": "FLASHMLA"})), {}),
    ((), {"VLLM_NOPE": "1"}),
    ((), {"VLLM_SSM_CONV_STATE_LAYOUT": "DSS"}),
    ((), {"VLLM_ENGINE_READY_TIMEOUT_S": "1h"}),
    ((), {"VLLM_GPT_OSS_SYSTEM_TOOL_MCP_LABELS": "container,nope"}),
]


@pytest.mark.parametrize(("arguments", "environment"), MISTAKES)
def test_both_catch_the_same_mistake(
    engine: Engine, captured: Engine, arguments: tuple[tuple[str, Any], ...], environment: dict[str, str]
) -> None:
    command = process(*arguments, **environment)
    installed = [problem.subject for problem in engine.check(command)]
    assert installed
    assert [problem.subject for problem in captured.check(command)] == installed


@pytest.mark.parametrize(
    "environment",
    [
        {"VLLM_GPT_OSS_SYSTEM_TOOL_MCP_LABELS": "container, code_interpreter,"},
        {"VLLM_GPT_OSS_SYSTEM_TOOL_MCP_LABELS": ""},
        {"VLLM_SSM_CONV_STATE_LAYOUT": "DS", "VLLM_LOGGING_LEVEL": "debug"},
        {"VLLM_PORT": "8000"},
    ],
)
def test_both_take_the_same_variables(engine: Engine, captured: Engine, environment: dict[str, str]) -> None:
    assert engine.check(process(**environment)) == captured.check(process(**environment)) == []


@pytest.mark.parametrize(
    "arguments",
    [
        (("--max-model-len", "auto"),),
        (("-O", "3"),),
        (("--compilation-config.mode=3", None),),
        (("--kv-transfer-config.kv_connector_extra_config.size", "80g"), ("--kv-transfer-config.kv_role", "kv_both"),
         ("--kv-transfer-config.kv_connector", "NixlConnector")),
        (("--kv-transfer-config", '{"kv_role": "kv_both", "kv_connector": "NixlConnector", "kv_port": 14k}'),),
        (("--safetensors-load-strategy", "None"), ("--max-log-len", "None")),
        (("--kernel-config", {"moe_backend": "Deep-GEMM"}),),
        (("--allowed-origins", '["*"]'),),
    ],
)  # fmt: skip
def test_both_take_the_same_spellings(engine: Engine, captured: Engine, arguments: tuple[tuple[str, Any], ...]) -> None:
    assert engine.check(process(*arguments)) == captured.check(process(*arguments)) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(data=st.data())
def test_whatever_the_installed_parser_takes_passes(engine: Engine, captured: Engine, data: st.DataObject) -> None:
    offered = [
        (flag, action)
        for action in engine.parser._actions
        for flag in action.option_strings
        if not values(action).is_empty
    ]
    chosen = data.draw(st.lists(st.sampled_from(offered), max_size=8, unique_by=lambda pair: pair[1].dest))
    command = process(*[(flag, data.draw(values(action), label=flag)) for flag, action in chosen])
    if engine.check(command) == []:
        assert captured.check(command) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
@given(data=st.data())
def test_a_capture_refuses_nothing_that_vllm_takes(engine: Engine, captured: Engine, data: st.DataObject) -> None:
    """For the JSON of its configurations, keys that exist with values of any kind."""
    dests = {"compilation_config", "attention_config", "kv_transfer_config", "kernel_config", "speculative_config"}
    flags = [action.option_strings[0] for action in engine.parser._actions if action.dest in dests]
    flag = data.draw(st.sampled_from(sorted(flags)))
    known = [
        key
        for name, given in engine.tables.configs.items()
        if name.lower() == flag[2:].replace("-", "")
        for key in given.get("fields", ())
    ]
    simple = st.none() | st.booleans() | st.integers(-2, 9) | st.sampled_from(["auto", "fp8", "FULL", "none", "1"])
    nested = simple | st.lists(simple, max_size=2) | st.dictionaries(st.sampled_from(["a", "max"]), simple, max_size=2)
    value = data.draw(st.dictionaries(st.sampled_from(known or ["method"]), nested, max_size=4))
    if engine.check(process((flag, value))) == []:
        assert captured.check(process((flag, value))) == []


def test_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"none\.json cannot be read: No such file or directory\. .*{WAY_OUT}"):
        read(tmp_path / "none.json")


def changed(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    def of(text: str) -> str:
        content = json.loads(text)
        change(content)
        return json.dumps(content)

    return of


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda text: text[:1000], "is no capture of a vLLM: it is not JSON"),
        (lambda _: "[" * 100_000, "is no capture of a vLLM: it is not JSON"),
        (lambda _: "[]", "is no capture of a vLLM: it names no format"),
        (lambda _: "{}", "is no capture of a vLLM: it names no format"),
        (changed(lambda content: content.update(format=2)), "is a capture of format 2; this cookbook reads format 1"),
        (changed(lambda content: content.pop("flags")), "is a broken capture: flags: Field required"),
        (changed(lambda content: content.update(more=1)), "is a broken capture: more: Extra inputs"),
        (changed(lambda content: content["flags"].append(content["flags"][0])), "is a broken capture: .*conflicting"),
        (changed(lambda content: content["flags"][0].update(flags=["port"])), "is a broken capture: .*no flags"),
        (changed(lambda content: content["flags"][0].update(nargs="many")), "is a broken capture: .*nargs"),
        (changed(lambda content: content["configs"].pop("KVTransferConfig")), "it lacks 'KVTransferConfig'"),
        (changed(lambda content: content["configs"].update(KVTransferConfig={"type": "x"})), "is a broken capture"),
        (changed(lambda content: content["speculative"].update(model={"type": "choices"})), "it lacks 'expected'"),
    ],
)  # fmt: skip
def test_a_broken_file_is_a_clear_error(file: Path, tmp_path: Path, broken: Callable[[str], str], says: str) -> None:
    path = tmp_path / "vllm.json"
    path.write_text(broken(file.read_text()))
    with pytest.raises(InputError, match=says) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert WAY_OUT in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_are_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "vllm.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(InputError, match=f"is no capture of a vLLM: it is not JSON.*{WAY_OUT}"):
        read(tmp_path / "vllm.json")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("none/vllm.json", "No such file or directory"),
        ("file/vllm.json", "Not a directory"),
        ("folder", "Is a directory"),
    ],
)
def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=rf"{name} cannot be written: {says}\. Name a file in a folder that exists"):
        write(tmp_path / name, {"format": 1})
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder"}


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, tiny_disk: Callable[[Path, str], None]) -> None:
    tiny_disk(tmp_path / "disk", "64k")
    path = tmp_path / "disk" / "vllm.json"
    write(path, {"format": 1})
    before = path.read_bytes()
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        write(path, {"format": 1, "flags": ["x" * 200_000]})
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_size_is_read_as_vllm_reads_it() -> None:
    assert [size(text) for text in ("8192", "8k", "8K", "1.5m", " 2G ")] == [8192, 8000, 8192, 1_500_000, 2 * 1024**3]
    assert [size_or_auto(text) for text in ("auto", "-1", "4k")] == [-1, -1, 4000]
    for text in ("1.5K", "long", "1.5"):
        with pytest.raises(ValueError):
            size(text)


def test_words_are_read_as_vllm_reads_them() -> None:
    parser = ListedParser()
    for flag in ("--a-config", "--b-c", "--optimization-level"):
        parser.add_argument(flag)
    parsed = parser.parse_args(["--b_c=x_y", "--a_config.k.l", "1k", "--a-config.list+", "p,q", "-O=2"])
    assert (parsed.b_c, json.loads(parsed.a_config)) == ("x_y", {"k": {"l": 1000}, "list": ["p", "q"]})
    assert parsed.optimization_level == "2"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (int, {"type": "int"}),
        (str | None, {"type": "nullable", "schema": {"type": "str"}}),
        (dict[str, list[int]], {"type": "dict", "values_schema": {"type": "list", "items_schema": {"type": "int"}}}),
        (Path, {"type": "any"}),
        (Callable[[], int], {"type": "any"}),
    ],
)
def test_a_shape_holds_what_a_file_can(kind: Any, expected: object) -> None:
    assert shape(TypeAdapter(kind).core_schema) == expected
