"""What mkdocs-jupyter lacks, mended in one place. mkdocs calls the `on_…` functions.

mkdocs-jupyter renders code cells and their outputs. Markdown cells and Markdown outputs go through mkdocs instead, so
that admonitions and tabs work, and links and anchors are rewritten and checked. The two meet at marks, one for each
piece of HTML:

    notebook ──mkdocs-jupyter──> HTML ──> pieces ─────────────────────┐
             ──Markdown, a mark for each piece──> mkdocs, strictly ───┴──> page

The styles and scripts that mkdocs-jupyter puts into each page (about 600 kB, some of them from other hosts) are not
among the pieces. The site's own assets/notebook.css takes their place.
"""

from __future__ import annotations

import html
import json
import posixpath
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nbformat
from bs4 import BeautifulSoup, Tag
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority, get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page as MkDocsPage
from nbconvert.preprocessors import CoalesceStreamsPreprocessor

from cookbook import catalog, choosing
from cookbook.errors import CookbookError
from cookbook.evidence import Evidence
from cookbook.site import Page, stage

log = get_plugin_logger("cookbook")

RECIPES = "<!-- recipes -->"
MARK = "notebookpiece{:04d}mark"
MARKED = re.compile(r"<p>notebookpiece(\d{4})mark</p>")
# What a browser loads by itself, unlike the address of a link.
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "embed": "src", "object": "data"}
LABEL = {
    "executed": "Executed on the hardware",
    "rehearsed": "Rehearsed on a CPU",
    "attached": "Executed on a running server",
    "failed": "Failed",
    "stale": "Stale",
    "not_run": "Not run yet",
}


@event_priority(100)  # before mkdocs-jupyter, which looks for notebooks among the files
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add each recipe's notebook as a page, and its source and evidence as downloads."""
    try:
        known = catalog.load(overlay=catalog.overlay())
        pages = stage(known, Path(config.extra.get("runs", "runs")), datetime.now(UTC))
    except CookbookError as error:
        raise PluginError(str(error)) from error
    # mkdocs-jupyter wants a file on disk.
    staging = config.extra.get("staging", "build/pages")
    config.extra |= {"catalog": known, "pages": {page.recipe: page for page in pages}, "notebooks": {}, "pieces": {}}
    for page in pages:
        uri = f"recipes/{page.recipe}.ipynb"
        # A run prints line by line, and a progress bar over itself; a reader wants one block of what was left.
        joined, _ = CoalesceStreamsPreprocessor().preprocess(nbformat.from_dict(page.notebook), {})
        config.extra["notebooks"][uri] = joined
        content = {
            uri: json.dumps(joined, indent=1),
            f"recipes/{page.recipe}/{page.recipe}.py": page.source.read_text(),
        }
        if page.evidence:
            content[f"recipes/{page.recipe}/evidence.json"] = page.evidence.model_dump_json(indent=2) + "\n"
        for uri, text in content.items():
            path = Path(staging, uri)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            # Not File.generated: mkdocs-jupyter's wrapper around it loses its path.
            files.append(File(uri, staging, config.site_dir, config.use_directory_urls))
    for entry in config.nav or ():
        if isinstance(entry, dict) and isinstance(entry.get("Recipes"), list):
            entry["Recipes"] += [f"recipes/{page.recipe}.ipynb" for page in pages]
    return files


@event_priority(-100)  # after other plugins, so that they find what mkdocs renders
def on_page_markdown(markdown: str, page: MkDocsPage, config: MkDocsConfig, files: Files) -> str:
    """Fill in the table of recipes; of a notebook, return the Markdown with a mark for each piece of HTML."""
    pages: dict[str, Page] = config.extra["pages"]
    if not page.file.src_uri.endswith(".ipynb"):
        text = markdown.replace(RECIPES, recipes_table(list(pages.values()), posixpath.dirname(page.file.src_uri)))
        try:
            return choosing.fill(text, config.extra["catalog"], pages)
        except CookbookError as error:
            raise PluginError(f"{page.file.src_uri}: {error}") from error
    # This is mkdocs-jupyter's own way to render, set on this page alone. Without it mkdocs' way is back.
    page.render(config, files)
    del page.render
    try:
        parts, pieces = split(config.extra["notebooks"][page.file.src_uri], page.content or "")
    except ValueError as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from error
    config.extra["pieces"][page.file.src_uri] = pieces
    page.title = pages[Path(page.file.src_uri).stem].title
    return "\n\n".join(parts)


def on_page_content(content: str, page: MkDocsPage, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Put the pieces of a notebook where their marks stand, and the status under its title."""
    uri = page.file.src_uri
    pieces: list[str] = config.extra["pieces"].get(uri, [])
    found = [int(number) for number in MARKED.findall(content)]
    if found != list(range(len(pieces))):
        lost = next((n for n in range(len(pieces)) if n not in found), 0)
        raise PluginError(
            f"{uri}: the Markdown before piece {lost + 1} of {len(pieces)} leaves an HTML element or a comment open. "
            "Close it in its cell."
        )
    content = MARKED.sub(lambda match: pieces[int(match[1])], content)
    if pieces or uri.endswith(".ipynb"):
        box = status_box(config.extra["pages"][Path(uri).stem])
        content = content.replace("</h1>", f"</h1>\n{box}", 1) if "</h1>" in content else box + content
    for address in loaded_from_elsewhere(content):
        log.warning("%s loads %s from another host when it is opened. Put the file into the site.", uri, address)
    return content


def split(joined: Any, content: str) -> tuple[list[str], list[str]]:
    """Cut a rendered notebook into Markdown and pieces of HTML.

    Args:
        joined: The notebook as it was rendered.
        content: What mkdocs-jupyter made of it.

    Returns:
        The Markdown, with a mark for each piece, and the pieces in order.

    Raises:
        ValueError: The HTML has not the cells and outputs of the notebook, for example because an output closes more
            elements than it opens.
    """
    rendered = BeautifulSoup(content, "html.parser").select(".jp-Notebook > .jp-CodeCell")
    code = [cell for cell in joined.cells if cell.cell_type == "code"]
    if len(rendered) != len(code):
        raise ValueError(f"{len(code)} code cells, but {len(rendered)} were rendered. An output has broken HTML.")
    parts: list[str] = []
    pieces: list[str] = []

    def add(piece: str) -> None:
        parts.append(MARK.format(len(pieces)))
        pieces.append(piece)

    remaining = iter(rendered)
    for number, cell in enumerate(joined.cells, start=1):
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif cell.cell_type == "code":
            html_cell = next(remaining)
            add(code_html(html_cell, injected="injected-parameters" in cell.metadata.get("tags", ())))
            shown = html_cell.select(".jp-OutputArea-output")
            if len(shown) != len(cell.outputs):
                raise ValueError(f"cell {number} has {len(cell.outputs)} outputs, but {len(shown)} were rendered.")
            for output, area in zip(cell.outputs, shown, strict=True):
                add_output(output, area, parts, add)
    return parts, pieces


def code_html(cell: Tag, *, injected: bool) -> str:
    """The code of a cell as the theme knows it: with its colours and its copy button."""
    block = cell.select_one(".highlight-ipynb pre")
    assert block
    title = '<span class="filename">Parameters of this run</span>' if injected else ""
    return f'<div class="highlight">{title}<pre><code>{block.decode_contents()}</code></pre></div>'


def add_output(output: Any, area: Tag, parts: list[str], add: Callable[[str], None]) -> None:
    """Add one output: Markdown to the parts, anything else as a piece."""
    if "jp-RenderedMarkdown" in area.get_attribute_list("class"):
        add('<div class="nb-output nb-markdown">')
        parts.append(output.data["text/markdown"])
        add("</div>")
        return
    kind = output.output_type
    if kind == "stream":
        kind = output.name
    elif kind != "error":
        kind = "text" if "jp-RenderedText" in area.get_attribute_list("class") else "rich"
    # A keyboard reaches what scrolls only when it can take the focus.
    add(f'<div class="nb-output nb-{kind}" tabindex="0">{area.decode_contents()}</div>')


def recipes_table(pages: list[Page], folder: str) -> str:
    """Markdown: each recipe, its hardware and its status."""
    rows = ["| Recipe | Hardware | Status |", "| --- | --- | --- |"]
    for page in pages:
        link = posixpath.relpath(f"recipes/{page.recipe}.ipynb", folder or ".")
        state = f'<span class="status status-{page.status.state}">{LABEL[page.status.state]}</span>'
        rows.append(f"| [{page.title}]({link}) | {page.hardware} | {state}<br>{html.escape(page.status.text)} |")
    return "\n".join(rows)


def status_box(page: Page) -> str:
    """HTML: what may be said of a recipe, by its evidence, and what there is to download."""
    found = page.evidence
    state = page.status.state
    rows = [("Status", html.escape(page.status.text))]
    notes = []
    if found:
        rows += evidence_rows(found)
        if found.mode == "rehearsal":
            notes.append("Rehearsed on a CPU: no number on this page is a number of the hardware.")
    if not page.executed:
        notes.append("This page shows the notebook without outputs.")
    names = [f"{page.recipe}.ipynb", f"{page.recipe}.py", *(["evidence.json"] if found else [])]
    links = " ".join(f'<a href="{name}" download>{name}</a>' for name in names)
    rows.append(("Download", links))
    said = "".join(f'<p class="status-note">{note}</p>' for note in notes)
    table = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in rows)
    return (
        f'<aside class="status-box status-{state}" aria-label="Status of this recipe">'
        f'<p class="status-label">{LABEL[state]}</p>{said}<dl>{table}</dl></aside>'
    )


def evidence_rows(found: Evidence) -> list[tuple[str, str]]:
    """HTML: versions, machine and checks of a run."""
    rows = []
    if "vllm" in found.versions:
        rows.append(("vLLM", html.escape(found.versions["vllm"])))
    if found.image:
        rows.append(("Image", html.escape(" ".join(filter(None, (found.image, found.image_digest))))))
    machine = found.machine
    devices = ", ".join(sorted({device.name for device in machine.accelerators}))
    where = f"{len(machine.accelerators)} x {devices}" if devices else machine.processor
    rows.append(("Ran on", html.escape(f"{where}, {machine.cores} CPU cores, {machine.memory_bytes / 2**30:.0f} GiB")))
    made = [check for check in found.checks if check.verdict != "left_out"]
    held = sum(check.verdict == "pass" for check in made)
    left_out = f", {len(found.checks) - len(made)} left out" if len(made) < len(found.checks) else ""
    rows.append(("Checks", f"{held} of {len(made)} hold{left_out}"))
    if found.error:
        rows.append(("Error", html.escape(found.error)))
    return rows


def loaded_from_elsewhere(content: str) -> list[str]:
    """Addresses on other hosts that a browser loads when it opens this HTML."""
    addresses = []
    for tag in BeautifulSoup(content, "html.parser").find_all([*LOADED, "link"]):
        address = str(tag.get(LOADED.get(tag.name, "href")) or "")
        if urlsplit(address).netloc:
            addresses.append(address)
    return addresses
