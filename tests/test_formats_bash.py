"""A deployment as bash: what it looks like, and that no value changes on its way through a real bash."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cookbook.deployment import Argument, Basis, Deployment, EnvVar, Image, Notice, Origin, Process, Role, Source
from cookbook.formats.bash import Row, explain, render

ORIGIN = Origin(layer="test", why="Test.", basis="chosen")
STATED = Origin(layer="hardware b300", why="The page says so.", basis="stated", source="k3")
TP = Origin(layer="hardware b300", why="Eight devices.", basis="from_k3", source="k3")

# Bash cannot hold a NUL in a word, and a process has no word with a lone surrogate.
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)
NASTY = st.sampled_from(
    [
        "",
        "'",
        '"',
        "\\",
        "\\\n",
        "\n",
        "\r\n",
        "$(touch x)",
        "`id`",
        "${HOME}",
        "*",
        "~",
        "!!",
        "# no",
        "a;b",
        "&&",
        "é\u2028",
    ]
)
VALUES = st.one_of(TEXT, NASTY)


def process(name: str = "engine-0", role: Role = "engine", node: int = 0, **changes: Any) -> Process:
    fields: dict[str, Any] = {
        "program": ("vllm", "serve", "some/model"),
        "arguments": (),
        "environment": (),
        "host": "127.0.0.1",
        "port": 8000,
        "devices": 8,
    }
    return Process(name=name, role=role, node=node, **(fields | changes))


def deployment(*processes: Process, **changes: Any) -> Deployment:
    fields: dict[str, Any] = {
        "recipe": "a_recipe",
        "title": "A recipe",
        "hardware": "b300",
        "hardware_title": "B300",
        "nodes": 1,
        "strategy": "single_node_tp",
        "features": (),
        "model": "some/model",
        "served_model_name": "some/model",
        "image": None,
        "claims": (),
        "notices": (),
        "sources": {"k3": Source(title="Kimi-K3's recipe", url="https://example.org/k3")},
    }
    return Deployment(processes=processes or (process(),), **(fields | changes))


def image(basis: Basis) -> Image:
    return Image(tag="vllm/vllm-openai:some", origin=ORIGIN.model_copy(update={"basis": basis}))


def argument(flag: str, value: Any = None) -> Argument:
    return Argument(flag=flag, value=value, origins=(ORIGIN,))


def bash(script: str) -> subprocess.CompletedProcess[bytes]:
    """Run `script` in a bash that has an empty environment; through stdin, so that its length has no bound."""
    command = ["bash", "--noprofile", "--norc"]
    return subprocess.run(command, input=script.encode(), capture_output=True, env={}, timeout=30, check=False)


def comments(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("#")]


def test_golden() -> None:
    two = deployment(
        process(
            arguments=(
                Argument(flag="--tensor-parallel-size", value=8, origins=(TP,)),
                argument("--enable-prefix-caching"),
                argument("--attention-config", {"indexer_kv_dtype": "fp8", "backend": "auto"}),
                Argument(flag="--gpu-memory-utilization", value=0.95, origins=(STATED,)),
            ),
            environment=(
                EnvVar(name="VLLM_USE_V2_MODEL_RUNNER", value="1", origin=ORIGIN),
                EnvVar(name="VLLM_CPU_OMP_THREADS_BIND", value="0|1", origin=ORIGIN),
            ),
        ),
        process("router", "router", 1, program=("vllm-router",), arguments=(argument("--policy", "round_robin"),)),
        image=image("inferred"),
        notices=(Notice(kind="preview", text="Nobody ran this."),),
    )
    assert render(two) == (
        "# A recipe (a_recipe)\n"
        "# image: vllm/vllm-openai:some (inferred)\n"
        "# preview: Nobody ran this.\n"
        "\n"
        "# engine-0, role engine, node 0\n"
        "# inferred from Kimi-K3, not stated for K3.1: --tensor-parallel-size\n"
        "# our choice: --enable-prefix-caching, --attention-config, VLLM_USE_V2_MODEL_RUNNER,"
        " VLLM_CPU_OMP_THREADS_BIND\n"
        "VLLM_USE_V2_MODEL_RUNNER=1 \\\n"
        "VLLM_CPU_OMP_THREADS_BIND='0|1' \\\n"
        "vllm serve some/model \\\n"
        "  --tensor-parallel-size 8 \\\n"
        "  --enable-prefix-caching \\\n"
        '  --attention-config \'{"backend":"auto","indexer_kv_dtype":"fp8"}\' \\\n'
        "  --gpu-memory-utilization 0.95\n"
        "\n"
        "# router, role router, node 1\n"
        "# our choice: --policy\n"
        "vllm-router \\\n"
        "  --policy round_robin\n"
    )


UNSURE: list[tuple[Basis, str]] = [
    ("from_k3", "from Kimi-K3"),
    ("vllm_source", "vLLM's source"),
    ("inferred", "inferred"),
    ("unknown", "unknown"),
    ("chosen", "our choice"),
]


@pytest.mark.parametrize(("basis", "words"), UNSURE)
def test_what_is_not_stated_is_named_above_the_command(basis: Basis, words: str) -> None:
    unsure = ORIGIN.model_copy(update={"basis": basis})
    started = process(
        arguments=(
            Argument(flag="--sure", origins=(STATED,)),
            Argument(flag="--unsure", origins=(STATED, unsure)),
        ),
        environment=(EnvVar(name="UNSURE", value="1", origin=unsure),),
    )
    (line,) = [line for line in comments(render(deployment(started))) if "--unsure" in line]
    assert words in line
    assert line.endswith(": --unsure, UNSURE")


def test_what_is_stated_needs_no_comment() -> None:
    started = process(arguments=(Argument(flag="--sure", origins=(STATED,)),))
    assert not [line for line in comments(render(deployment(started))) if "--sure" in line]


def test_the_same_deployment_gives_the_same_text(b300_tp8: Deployment) -> None:
    copy = Deployment.model_validate_json(b300_tp8.model_dump_json())
    assert render(copy) == render(b300_tp8)


def test_the_recipes_command_is_legal_bash_with_one_flag_a_line(b300_tp8: Deployment) -> None:
    text = render(b300_tp8)
    flags = [flag.flag for process in b300_tp8.processes for flag in process.arguments]
    assert [line.split()[0] for line in text.splitlines() if line.startswith("  ")] == flags
    checked = subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True, timeout=30, check=False)
    assert (checked.returncode, checked.stderr) == (0, b"")


@pytest.mark.parametrize("basis", ["from_k3", "vllm_source", "inferred", "unknown", "chosen"])
def test_an_image_that_nobody_states_is_marked(basis: Basis) -> None:
    assert f"# image: vllm/vllm-openai:some ({basis})" in comments(render(deployment(image=image(basis))))


def test_a_stated_image_carries_no_mark() -> None:
    assert "# image: vllm/vllm-openai:some" in comments(render(deployment(image=image("stated"))))


def test_without_an_image_the_text_says_so() -> None:
    assert "# image: none is published or named by a source" in comments(render(deployment(process(), image=None)))


@settings(deadline=None, max_examples=60)
@given(values=st.lists(VALUES, max_size=8), variable=VALUES)
def test_every_value_survives_bash(values: list[str], variable: str) -> None:
    started = process(
        program=("show", "serve", "some/model"),
        arguments=(argument("--enable-x"), *(argument(f"--flag-{n}", value) for n, value in enumerate(values))),
        environment=(EnvVar(name="VARIABLE", value=variable, origin=ORIGIN),),
    )
    # A function in place of the program: it prints what bash hands to it.
    show = 'show() { printf "%s\\0" "$VARIABLE" show "$@"; }\n'
    shown = bash(show + render(deployment(started)))
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert tuple(shown.stdout.decode().split("\0")[:-1]) == (variable, *started.argv)


@settings(deadline=None, max_examples=60)
@given(value=st.dictionaries(TEXT, st.one_of(VALUES, st.integers(), st.booleans(), st.none()), max_size=4))
def test_every_json_value_survives_bash(value: dict[str, Any]) -> None:
    started = process(program=("show",), arguments=(argument("--json", value),))
    shown = bash('show() { printf "%s\\0" "$@"; }\n' + render(deployment(started)))
    flag, text, _ = shown.stdout.decode().split("\0")
    assert (flag, json.loads(text)) == ("--json", value)


@settings(deadline=None, max_examples=60)
@given(text=st.one_of(VALUES, VALUES.map(lambda value: f"{value}\necho BROKEN OUT\n{value}")))
def test_no_comment_can_be_broken_out_of(text: str) -> None:
    """Nothing but the one command runs, whatever a title, a notice, an image's tag or a name holds."""
    hostile = deployment(
        process(text, program=("true",)),
        title=text,
        recipe=text,
        image=Image(tag=text, origin=ORIGIN),
        notices=(Notice(kind="warning", text=text),),
    )
    rendered = render(hostile)
    assert [line for line in rendered.split("\n") if line and not line.startswith("#")] == ["true"]
    ran = bash(rendered)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")


def test_every_flag_and_variable_is_explained() -> None:
    merged = Argument(flag="--attention-config", value={"a": 1}, origins=(ORIGIN, TP))
    variable = EnvVar(name="UCX_TLS", value="tcp", origin=ORIGIN)
    started = process(arguments=(merged, argument("--headless")), environment=(variable,))
    source = Source(title="Kimi-K3's recipe", url="https://example.org/k3")
    assert explain(deployment(started)) == (
        Row("--attention-config", '{"a":1}', "test", "chosen", "Test.", None),
        Row("--attention-config", '{"a":1}', "hardware b300", "from_k3", "Eight devices.", source),
        Row("--headless", "", "test", "chosen", "Test.", None),
        Row("UCX_TLS", "tcp", "test", "chosen", "Test.", None),
    )


def test_the_recipes_reasons_are_whole(b300_tp8: Deployment) -> None:
    rows = explain(b300_tp8)
    started = b300_tp8.processes
    names = {item.flag for one in started for item in one.arguments} | {
        v.name for one in started for v in one.environment
    }
    assert {row.name for row in rows} == names
    assert all(row.layer and row.why for row in rows)
