"""What may be published, and how the site takes its place."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jupytext
import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from cookbook import evidence, notebook, site
from cookbook.catalog import Catalog
from cookbook.errors import InputError
from cookbook.evidence import CheckResult
from cookbook.execute import look_at
from cookbook.gate import Gate
from cookbook.redact import Redactor
from cookbook.site import Page
from tests.test_evidence import an_evidence

pytest.importorskip("mkdocs_jupyter", reason="the site needs the extra docs")

ROOT = Path(__file__).parents[1]
RECIPE = "b300_tp8"
RUN = "20261201T050000Z-abcd"
NOW = datetime(2026, 12, 2, tzinfo=UTC)
TOKEN = "hf_" + "Ab1" * 8

SAMPLE = """# %% [markdown]
# # A sample recipe
#
# A word that nothing else has: quizzaciously. See [how to run](../run.md).

# %% tags=["parameters"]
port: int = 8000

# %% [markdown]
# ## Outputs
#
# !!! note "An admonition"
#     Inside it.

# %%
from IPython.display import HTML, JSON, Markdown, display

print("\\x1b[32mgreen\\x1b[0m and <plain>")

# %%
for number in range(120):
    print(f"line {number}", "wide " * 80)

# %%
display(Markdown("| Flag | Why |\\n| --- | --- |\\n| `--port` | " + "a long reason " * 30 + " |"))
display(HTML("<table class='dataframe'><tr><th>a</th><td>" + "w" * 600 + "</td></tr></table>"))
display(JSON({"model": "small", "port": port}))
"""


@pytest.fixture(autouse=True)
def _stay_in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a build leaves in the temporary folder and in the environment goes with the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    monkeypatch.setenv("COOKBOOK_RUNS", "")


def write_recipe(folder: Path, text: str = SAMPLE) -> Path:
    """A recipe that stands in for the one of this name in the catalog."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{RECIPE}.py"
    path.write_text(text)
    return path


def write_run(runs: Path, recipe: Path, executed: Any | None = None, **changes: Any) -> Path:
    """A run's folder, its evidence true to its notebook. Without `executed`: the notebook that lies there."""
    folder = runs / RECIPE / RUN
    folder.mkdir(parents=True, exist_ok=True)
    if executed is not None:
        nbformat.write(executed, folder / "notebook.ipynb")
    record = look_at(folder / "notebook.ipynb", recipe)
    evidence.write(folder / "evidence.json", an_evidence(**{"run_id": RUN, "notebook": record, **changes}))
    return folder


def run_of(recipe: Path, *more: Any) -> Any:
    """The recipe's notebook as if it had run without printing. With more cells at its end, the recipe gets them too."""
    executed = jupytext.read(recipe)
    executed.cells += more
    if more:
        recipe.write_text(jupytext.writes(executed, fmt="py:percent"))
    for count, cell in enumerate((c for c in executed.cells if c.cell_type == "code"), 1):
        cell.execution_count = count
    return executed


def execute(recipe: Path, runs: Path) -> Path:
    """A run by a real kernel, as `cookbook run` starts it, without a server."""
    folder = runs / RECIPE / RUN
    folder.mkdir(parents=True)
    order = json.dumps({"source": str(recipe), "folder": str(folder), "parameters": {"port": 8123}})
    subprocess.run([sys.executable, "-m", "cookbook.notebook_process", order], cwd=ROOT, check=True, timeout=60)
    failed = CheckResult(name="b", title="B", expected="1", measured="2", verdict="fail", source="This recipe")
    left = CheckResult(name="c", title="C", expected="1", measured="", verdict="left_out", source="This recipe")
    return write_run(runs, recipe, checks=(*an_evidence().checks, failed, left))


def built(into: Path, recipe: Path, runs: Path) -> Path:
    """The whole site, with `recipe` in the place of the catalog's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(notebook, "RECIPES", recipe.parent)
        patch.setenv("COOKBOOK_RUNS", "")
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        patch.setattr(tempfile, "tempdir", str(into.parent))
        return site.build(ROOT, into, runs)


@pytest.fixture(scope="module")
def sample_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of a recipe that a real kernel ran."""
    folder = tmp_path_factory.mktemp("sample")
    recipe = write_recipe(folder / "recipes")
    execute(recipe, folder / "runs")
    return built(folder / "site", recipe, folder / "runs")


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = write_recipe(tmp_path / "recipes")
    monkeypatch.setattr(notebook, "RECIPES", path.parent)
    return path


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def the_catalog(catalog: Catalog) -> Catalog:
    """Only the recipe that the sample stands in for."""
    return catalog.model_copy(update={"recipes": {RECIPE: catalog.recipes[RECIPE]}})


def staged(catalog: Catalog, runs: Path, now: datetime = NOW) -> Page:
    (page,) = site.stage(catalog, runs, now)
    return page


# What becomes a page


def test_without_a_run_the_page_has_no_outputs_and_says_so(the_catalog: Catalog, runs: Path, recipe: Path) -> None:
    page = staged(the_catalog, runs)
    assert page.status.state == "not_run"
    assert page.evidence is None
    assert not any(cell.get("outputs") for cell in page.notebook["cells"])


def test_a_run_is_published_with_its_outputs_and_without_its_traces(
    the_catalog: Catalog, runs: Path, recipe: Path
) -> None:
    executed = run_of(recipe)
    executed.metadata["papermill"] = {"input_path": "x", "duration": 3}
    executed.metadata["widgets"] = {"state": {}}
    executed.cells[1].metadata |= {"papermill": {"duration": 1}, "execution": {"shell.execute_reply": "t"}}
    executed.cells[1].outputs = [new_output("stream", name="stdout", text="printed\n")]
    write_run(runs, recipe, executed)
    page = staged(the_catalog, runs)
    assert page.status.state == "rehearsed"
    assert "printed" in json.dumps(page.notebook["cells"][1]["outputs"])
    assert set(page.notebook["metadata"]) <= {"kernelspec", "language_info"}
    assert page.notebook["cells"][1]["metadata"] == {"tags": ["parameters"]}


def test_two_runs_that_print_the_same_are_published_as_the_same_bytes(
    the_catalog: Catalog, runs: Path, recipe: Path
) -> None:
    write_run(runs, recipe, run_of(recipe))
    first = staged(the_catalog, runs).notebook
    write_run(runs, recipe, run_of(recipe))  # jupytext gives cells new ids at random
    assert staged(the_catalog, runs).notebook == first


def test_of_two_runs_the_newer_one_is_published(the_catalog: Catalog, runs: Path, recipe: Path) -> None:
    folder = write_run(runs, recipe, run_of(recipe))
    folder.rename(folder.with_name("20261130T050000Z-ffff"))
    write_run(runs, recipe, run_of(recipe), status="failed", exit_code=1, error="It fell short.")
    assert staged(the_catalog, runs).status.state == "failed"


def test_a_notebook_that_was_edited_stops_the_build(the_catalog: Catalog, runs: Path, recipe: Path) -> None:
    folder = write_run(runs, recipe, run_of(recipe))
    path = folder / "notebook.ipynb"
    path.write_text(path.read_text().replace("quizzaciously", "bodaciously"))
    with pytest.raises(InputError, match="is not the notebook that its evidence speaks of"):
        staged(the_catalog, runs)


def test_a_notebook_that_is_gone_stops_the_build(the_catalog: Catalog, runs: Path, recipe: Path) -> None:
    (write_run(runs, recipe, run_of(recipe)) / "notebook.ipynb").unlink()
    with pytest.raises(InputError, match="is missing, but its evidence names it"):
        staged(the_catalog, runs)


def test_a_recipe_that_changed_makes_its_page_stale(the_catalog: Catalog, runs: Path, recipe: Path) -> None:
    write_run(runs, recipe, run_of(recipe))
    recipe.write_text(recipe.read_text() + "\n# %%\nport + 1\n")
    page = staged(the_catalog, runs)
    assert page.status.state == "stale"
    assert "the recipe changed since" in page.status.text


def test_an_old_run_makes_its_page_stale(the_catalog: Catalog, runs: Path, recipe: Path) -> None:
    write_run(runs, recipe, run_of(recipe))
    assert staged(the_catalog, runs, NOW + timedelta(days=100)).status.state == "stale"


def failing(recipe: Path) -> Any:
    error = new_output("error", ename="ValueError", evalue="too small", traceback=["ValueError: too small"])
    executed = run_of(recipe, new_code_cell("raise", outputs=[error]))
    banner = new_markdown_cell("<span>An Exception was encountered</span>")
    banner.metadata["tags"] = ["papermill-error-cell-tag"]
    executed.cells.insert(0, banner)
    return executed


def test_an_error_in_a_run_that_passed_stops_the_build(the_catalog: Catalog, runs: Path, recipe: Path) -> None:
    write_run(runs, recipe, failing(recipe))
    with pytest.raises(InputError, match="shows an error, but its evidence says that the run passed"):
        staged(the_catalog, runs)


def test_a_run_that_failed_shows_its_error_and_not_papermills_banner(
    the_catalog: Catalog, runs: Path, recipe: Path
) -> None:
    write_run(runs, recipe, failing(recipe), status="failed", exit_code=1, error="A cell failed.")
    page = staged(the_catalog, runs)
    text = json.dumps(page.notebook)
    assert page.status.state == "failed"
    assert "too small" in text
    assert "An Exception was encountered" not in text


# What must not be published


def secret_cells(secret: str) -> dict[str, Any]:
    def output(**data: Any) -> Any:
        return new_code_cell("1", outputs=[new_output("display_data", data=data)])

    return {
        "markdown": new_markdown_cell(f"The key is {secret}."),
        "source": new_code_cell(f'os.environ["X"] = "{secret}"'),
        "stdout": new_code_cell("1", outputs=[new_output("stream", name="stdout", text=f"key: {secret}\n")]),
        "html": output(**{"text/html": f"<b>{secret}</b>"}),
        "json": output(**{"application/json": {"answer": [secret]}}),
        "error": new_code_cell(
            "1", outputs=[new_output("error", ename="E", evalue="", traceback=["a", f"b {secret}"])]
        ),
    }


SECRETS = [TOKEN, "sk-" + "a1B2" * 6, "Bearer abc123.def456", "https://me:pass1234@hub"]
PLACES = ["markdown", "source", "stdout", "html", "json", "error"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_stops_the_build_and_is_not_repeated(
    the_catalog: Catalog, runs: Path, recipe: Path, place: str, secret: str
) -> None:
    executed = run_of(recipe, secret_cells(secret)[place])
    write_run(runs, recipe, executed, status="failed", exit_code=1)
    with pytest.raises(InputError, match=rf"cell {len(executed.cells)}, .*looks like a secret") as caught:
        staged(the_catalog, runs)
    assert secret.rsplit(maxsplit=1)[-1] not in str(caught.value)


def test_the_value_of_a_secret_variable_stops_the_build(
    the_catalog: Catalog, runs: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "correct-horse-battery")
    said = new_code_cell("1", outputs=[new_output("stream", name="stdout", text="I am correct-horse-battery\n")])
    write_run(runs, recipe, run_of(recipe, said), status="failed", exit_code=1)
    with pytest.raises(InputError, match="looks like a secret"):
        staged(the_catalog, runs)


def test_a_secret_behind_the_escapes_of_json_is_found(the_catalog: Catalog, runs: Path, recipe: Path) -> None:
    """Scanners that read the file miss it: there it is `\\"api_key\\": \\"…\\"`."""
    said = new_code_cell("1", outputs=[new_output("stream", name="stdout", text='{"api_key": "s3cr3t-value"}')])
    folder = write_run(runs, recipe, run_of(recipe, said), status="failed", exit_code=1)
    assert '"api_key": "s3cr3t-value"' not in (folder / "notebook.ipynb").read_text()
    with pytest.raises(InputError, match="looks like a secret"):
        staged(the_catalog, runs)


def test_code_that_reads_a_key_is_no_secret(the_catalog: Catalog, runs: Path, recipe: Path) -> None:
    code = 'OpenAI(api_key=client.api_key(), timeout=3)\nkey = os.environ["VLLM_API_KEY"]'
    write_run(runs, recipe, run_of(recipe, new_code_cell(code)), status="failed", exit_code=1)
    assert "client.api_key()" in json.dumps(staged(the_catalog, runs).notebook)


PRIVATE = [IPv4Network(net) for net in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")]


def private_addresses() -> st.SearchStrategy[IPv4Address]:
    return st.sampled_from(PRIVATE).flatmap(lambda net: st.integers(int(net[0]), int(net[-1])).map(IPv4Address))


@given(before=st.text(), address=private_addresses(), after=st.text())
def test_no_private_address_is_left(before: str, address: IPv4Address, after: str) -> None:
    text = Gate("gpu-node-17", Redactor(())).scrub(f"{before} tcp://{address}:8000 {after}")
    found = re.findall(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])", text, re.ASCII)
    assert not [a for a in found if _is_private(a)]


def _is_private(text: str) -> bool:
    parts = [int(part) for part in text.split(".")]
    return max(parts) < 256 and any(IPv4Address(".".join(map(str, parts))) in net for net in PRIVATE)


@pytest.mark.parametrize("text", ["http://127.0.0.1:8000/v1", "bound to 0.0.0.0", "vLLM 0.32.0", "8.8.8.8", "11.0.0.1"])
def test_loopback_public_addresses_and_versions_stay(text: str) -> None:
    assert Gate("gpu-node-17", Redactor(())).scrub(text) == text


@pytest.mark.parametrize("gone", ["gpu-node-17", "/home/anna", "/home/bert/x.py", "/root/.cache/x", "10.1.2.3"])
def test_host_and_users_are_taken_out_of_everything(gone: str) -> None:
    said = {"a": [f"in {gone} there", {"b": gone}]}
    clean = json.dumps(Gate("gpu-node-17", Redactor(())).clean(said))
    assert "gpu-node" not in clean
    assert not re.search(r"anna|bert|/root|10\.1\.2", clean)


def test_a_host_name_inside_other_words_stays() -> None:
    assert Gate("vm", Redactor(())).scrub("vmm and vm") == "vmm and vm"


def test_the_evidence_is_cleaned_too(the_catalog: Catalog, runs: Path, recipe: Path) -> None:
    write_run(runs, recipe, run_of(recipe), model="/root/.cache/cookbook/small")
    page = staged(the_catalog, runs)
    assert page.evidence
    assert "/root" not in page.evidence.model_dump_json()


# The build


def test_it_is_built_from_a_checkout_only(tmp_path: Path, runs: Path) -> None:
    with pytest.raises(InputError, match=r"There is no mkdocs\.yml in .*built from a checkout"):
        site.build(tmp_path, tmp_path / "site", runs)


def test_without_mkdocs_it_says_what_to_install(
    tmp_path: Path, runs: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mkdocs" else find(name))
    with pytest.raises(InputError, match=r"pip install 'cookbook\[docs\]'"):
        site.build(ROOT, tmp_path / "site", runs)
    assert not list(tmp_path.glob("*site*"))


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path, runs: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be written: .*--output"):
        site.build(ROOT, tmp_path / "file" / "site", runs)


def digest(folder: Path) -> dict[str, str]:
    return {str(f): hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.rglob("*") if f.is_file()}


def test_a_build_that_fails_leaves_the_old_site_whole(tmp_path: Path, runs: Path, recipe: Path) -> None:
    into = site.build(ROOT, tmp_path / "out" / "site", runs)
    before = digest(into)
    said = new_code_cell("1", outputs=[new_output("stream", name="stdout", text=TOKEN)])
    write_run(runs, recipe, run_of(recipe, said), status="failed", exit_code=1)
    with pytest.raises(InputError, match="looks like a secret"):
        site.build(ROOT, into, runs)
    assert digest(into) == before
    assert [path.name for path in into.parent.iterdir()] == ["site"]


def test_a_build_replaces_the_old_site(tmp_path: Path, runs: Path, recipe: Path) -> None:
    into = site.build(ROOT, tmp_path / "out" / "site", runs)
    (into / "old.html").write_text("")
    assert site.build(ROOT, into, runs) == into
    assert not (into / "old.html").exists()
    assert [path.name for path in into.parent.iterdir()] == ["site"]


LOADED_BY = {"script": "src", "img": "src", "iframe": "src", "source": "src", "embed": "src", "object": "data"}


class Loads(HTMLParser):
    """Collects what a browser loads by itself; the address of a link is not among it."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.style = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if tag == "link" and known.get("rel") != "canonical":
            self.addresses.append(known.get("href") or "")
        elif tag in LOADED_BY:
            self.addresses.append(known.get(LOADED_BY[tag]) or "")
        self.style += known.get("style") or ""

    def handle_data(self, data: str) -> None:
        if self.lasttag == "style":
            self.style += data


def loaded(path: Path) -> Iterator[str]:
    text = path.read_text()
    if path.suffix == ".html":
        parser = Loads()
        parser.feed(text)
        yield from parser.addresses
        text = parser.style
    yield from re.findall(r"url\(\s*['\"]?([^'\")]+)", text)
    yield from re.findall(r"@import\s+['\"]([^'\"]+)", text)


def test_nothing_is_loaded_from_another_host(sample_site: Path) -> None:
    files = [path for kind in ("html", "css") for path in sample_site.rglob(f"*.{kind}")]
    addresses = [(path.name, address) for path in files for address in loaded(path)]
    assert len(addresses) > 20
    assert not [found for found in addresses if urlsplit(found[1]).netloc]


def test_what_is_not_a_page_is_not_in_the_site(sample_site: Path) -> None:
    names = {path.name for path in sample_site.rglob("*")}
    assert not names & {"hooks.py", "hooks.pyc", "__pycache__", "mkdocs.yml"}


def test_a_page_is_small(sample_site: Path) -> None:
    assert (sample_site / "recipes" / RECIPE / "index.html").stat().st_size < 100_000
