"""What docs/hooks.py mends of mkdocs-jupyter, seen in built pages."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from cookbook import evidence
from cookbook.errors import InputError
from cookbook.evidence import CheckResult
from tests.test_site import RECIPE, built, execute, run_of, write_recipe, write_run

bs4 = pytest.importorskip("bs4", reason="the site needs the extra docs")

MARKDOWN = """# %% [markdown]
# # A page of Markdown
#
# To [another page](../run.md), to [a heading](../run.md#exit-codes), to [one below](#tabs).
#
# !!! warning "Mind this"
#     Inside the admonition.
#
# ??? note "More"
#     Folded away.

# %% tags=["parameters"]
port: int = 8000

# %% [markdown]
# ## Tabs
#
# === "bash"
#     One way.
#
# === "docker"
#     Another way.
#
# A [link with a class](../index.md){ .special } and `code`.
"""


def page(site: Path, path: str = f"recipes/{RECIPE}") -> Any:
    return bs4.BeautifulSoup((site / path / "index.html").read_text(), "html.parser")


def content(site: Path, path: str = f"recipes/{RECIPE}") -> Any:
    return page(site, path).select_one("article")


def shown(*outputs: Any) -> Any:
    return new_code_cell("print(1)", outputs=list(outputs))


def text_output(text: str, name: str = "stdout") -> Any:
    return new_output("stream", name=name, text=text)


def data_output(**data: Any) -> Any:
    return new_output("display_data", data={kind.replace("__", "/"): value for kind, value in data.items()})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site whose recipe has one of everything, as a passed rehearsal."""
    folder = tmp_path_factory.mktemp("hooks")
    recipe = write_recipe(folder / "recipes", MARKDOWN)
    executed = run_of(
        recipe,
        shown(text_output("\x1b[32mgreen\x1b[0m <tag>\n"), text_output("a warning\n", "stderr")),
        shown(data_output(text__markdown="| Flag | Why |\n| --- | --- |\n| `--port` | See [run](../run.md). |")),
        shown(data_output(text__html="<table class='dataframe'><tr><td>cell</td></tr></table>")),
        shown(data_output(**{"image__svg+xml": "<svg xmlns='http://www.w3.org/2000/svg'><circle r='4'/></svg>"})),
    )
    left_out = CheckResult(name="b", title="B", expected="1", measured="", verdict="left_out", source="This recipe")
    passed = CheckResult(name="a", title="A", expected="1", measured="1", verdict="pass", source="This recipe")
    # Now, so that no test begins to fail when the sample grows old.
    ended = datetime.now(UTC) - timedelta(hours=1)
    write_run(folder / "runs", recipe, executed, checks=(passed, left_out), ended_at=ended, model="small", error="")
    return built(folder / "site", recipe, folder / "runs")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def site_of(folder: Path, text: str, *more: Any, run: bool = True, **changes: Any) -> Path:
    """A site of its own, for what changes the whole page or fails."""
    recipe = write_recipe(folder / "recipes", text)
    if run:
        changes = {"ended_at": datetime.now(UTC), **changes}
        write_run(folder / "runs", recipe, run_of(recipe, *more), **changes)
    return built(folder / "site", recipe, folder / "runs")


# Markdown


def test_admonitions_tabs_and_details_are_rendered(site: Path) -> None:
    article = content(site)
    assert article.select_one(".admonition.warning .admonition-title").text == "Mind this"
    assert [label.text for label in article.select(".tabbed-labels label")] == ["bash", "docker"]
    assert article.select_one("details.note summary").text == "More"
    assert "!!!" not in article.text


def test_links_are_rewritten_for_the_site(site: Path) -> None:
    addresses = {link.text: link["href"] for link in content(site).select("a[href]")}
    assert addresses["another page"] == "../../run/"
    assert addresses["a heading"] == "../../run/#exit-codes"
    assert addresses["one below"] == "#tabs"
    assert addresses["run"] == "../../run/"  # in Markdown that a run printed


def test_attributes_are_set(site: Path) -> None:
    assert content(site).select_one("a.special")["href"] == "../../"


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ("[x](nowhere.md)", r"contains a link 'nowhere\.md'"),
        ("[x](../run.md#nowhere)", r"'\.\./run\.md#nowhere', but the doc 'run\.md' does not contain an anchor"),
        ("[x](#nowhere)", "'#nowhere', but there is no such anchor on this page"),
    ],
)
def test_a_broken_link_in_a_markdown_cell_stops_the_build(folder: Path, link: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        site_of(folder, f"# %% [markdown]\n# # T\n#\n# {link}\n", run=False)
    assert f"recipes/{RECIPE}.ipynb" in str(caught.value)


def test_a_broken_link_in_markdown_that_a_run_printed_stops_the_build(folder: Path) -> None:
    said = shown(data_output(text__markdown="[x](nowhere.md)"))
    with pytest.raises(InputError, match=r"contains a link 'nowhere\.md'"):
        site_of(folder, MARKDOWN, said, status="failed", exit_code=1)


# Code and outputs


def test_code_looks_as_on_any_page_and_can_be_copied(site: Path) -> None:
    blocks = content(site).select("div.highlight > pre > code")
    assert "port: int = 8000" in " ".join(block.text for block in blocks)
    assert blocks[0].select_one("span")


def test_tags_and_prompts_are_not_shown(site: Path) -> None:
    text = " ".join(content(site).text.split())
    assert "injected-parameters" not in text
    assert not re.search(r"\b(In|Out)\s*\[", text)


def test_outputs_are_shown_with_their_colours_and_escaped(site: Path) -> None:
    article = content(site)
    assert article.select_one(".ansi-green-fg").text == "green"
    assert "<tag>" in article.text
    assert article.find(string=re.compile("a warning"))
    assert article.select_one("table.dataframe td").text == "cell"
    assert article.select_one('img[src^="data:image/svg+xml"]')


def test_markdown_that_a_run_printed_is_a_table(site: Path) -> None:
    cells = [cell.text for row in content(site).select("table tr") for cell in row.select("td")]
    assert "--port" in cells


def test_parts_stand_in_the_order_of_the_notebook(site: Path) -> None:
    text = content(site).text
    places = [text.index(part) for part in ("Mind this", "port: int", "One way", "green", "See run", "cell")]
    assert places == sorted(places)


def test_nothing_of_mkdocs_jupyters_styles_and_scripts_is_left(site: Path) -> None:
    text = (site / "recipes" / RECIPE / "index.html").read_text()
    assert not content(site).select("style, script, link, clipboard-copy")
    assert not re.search(r"cdnjs|unpkg|jsdelivr|require\.min|jp-", text, re.IGNORECASE)
    assert len(text) < 100_000
    sheets = [Path(link["href"]).name for link in page(site).select('link[rel="stylesheet"]')]
    assert "notebook.css" in sheets


# Title, contents, search


def test_the_title_is_the_recipes(site: Path) -> None:
    assert page(site).title.text.startswith("B300: tensor parallel 8")
    assert [heading.find(string=True) for heading in content(site).select("h1")] == ["A page of Markdown"]


def test_the_contents_list_the_headings_without_their_pilcrow(site: Path) -> None:
    contents = [" ".join(link.text.split()) for link in page(site).select(".md-nav--secondary a.md-nav__link")]
    assert set(contents) == {"Tabs"}  # the theme has them twice, once for narrow screens


def test_search_finds_headings_and_outputs(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    entries = {doc["location"]: doc for doc in index["docs"]}
    assert not [doc["title"] for doc in index["docs"] if "¶" in doc["title"]]
    assert entries[f"recipes/{RECIPE}/#tabs"]["title"] == "Tabs"
    assert "green" in entries[f"recipes/{RECIPE}/#tabs"]["text"]


# The status


def test_a_rehearsal_is_unmistakable(site: Path) -> None:
    text = " ".join(content(site).text.split())
    assert re.search(r"rehearsed on a CPU, \d{4}-\d\d-\d\d, vLLM 0\.32\.0", text, re.IGNORECASE)
    assert "no number on this page is a number of the hardware" in text
    assert "1 of 1 hold, 1 left out" in text
    assert "2 CPU cores, 16 GiB" in text
    heading, notice = text.index("A page of Markdown"), text.index("no number on this page")
    assert heading < notice < text.index("Mind this")


def test_notebook_source_and_evidence_can_be_downloaded(site: Path) -> None:
    links = [link["href"] for link in content(site).select("a[download]")]
    assert links == [f"{RECIPE}.ipynb", f"{RECIPE}.py", "evidence.json"]
    folder = site / "recipes" / RECIPE
    nbformat.validate(nbformat.read(folder / links[0], as_version=4))
    assert "port: int = 8000" in (folder / links[1]).read_text()
    assert evidence.read(folder / links[2]).recipe == RECIPE


def test_the_home_page_lists_each_recipe_with_its_status(site: Path) -> None:
    rows = [row.text for row in content(site, "").select("table tr") if row.select_one("a[href='recipes/b300_tp8/']")]
    assert len(rows) == 1
    assert "NVIDIA B300" in rows[0]
    assert "rehearsed on a CPU" in rows[0]


@pytest.mark.parametrize(
    ("changes", "words", "look"),
    [
        ({"mode": "hardware"}, "executed on NVIDIA B300", "status-executed"),
        ({"mode": "attached"}, "executed on a running server", "status-attached"),
        ({"status": "failed", "exit_code": 1, "error": "A <check> fell short."}, "failed on a CPU", "status-failed"),
        ({"ended_at": datetime(2024, 1, 1, tzinfo=UTC)}, "older than 90 days", "status-stale"),
    ],
)
def test_each_state_says_what_it_is_and_only_the_hardware_is_green(
    folder: Path, changes: dict[str, Any], words: str, look: str
) -> None:
    box = content(site_of(folder, MARKDOWN, **changes)).select_one(".status-box")
    assert words.lower() in " ".join(box.text.split()).lower()
    assert look in box["class"]
    assert ("no number on this page" in box.text) == (changes.get("mode", "rehearsal") == "rehearsal")
    assert ("A <check> fell short." in box.text) == ("error" in changes)


def test_a_recipe_that_nobody_ran_says_so(folder: Path) -> None:
    article = content(site_of(folder, MARKDOWN, run=False))
    box = article.select_one(".status-box")
    assert "Not run yet" in box.text
    assert "without outputs" in box.text
    assert "status-not_run" in box["class"]
    assert [link["href"] for link in article.select("a[download]")] == [f"{RECIPE}.ipynb", f"{RECIPE}.py"]


def test_an_error_of_a_failed_run_is_shown(folder: Path) -> None:
    error = new_output(
        "error", ename="ValueError", evalue="too small", traceback=["\x1b[31mValueError\x1b[0m: too small"]
    )
    article = content(site_of(folder, MARKDOWN, shown(error), status="failed", exit_code=1))
    assert "ValueError: too small" in article.text


def test_what_a_kernel_really_printed_is_on_its_page(folder: Path) -> None:
    recipe = write_recipe(folder / "recipes")
    execute(recipe, folder / "runs")
    article = content(built(folder / "site", recipe, folder / "runs"))
    assert article.select_one(".ansi-green-fg").text == "green"
    assert "port = 8123" in article.text  # papermill's cell with the parameters of this run
    assert "line 119" in article.text
    assert article.select_one("table.dataframe")
    assert article.select_one(".admonition-title", string="An admonition")


def test_a_markdown_cell_before_and_after_html_keeps_its_place(folder: Path) -> None:
    more = (shown(text_output("first\n")), new_markdown_cell("Between the two."), shown(text_output("second\n")))
    text = content(site_of(folder, MARKDOWN, *more)).text
    assert text.index("first") < text.index("Between the two.") < text.index("second")
