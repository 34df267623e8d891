"""What mkdocs-jupyter lacks, mended in one place. mkdocs calls the `on_…` functions.

mkdocs-jupyter (through nbconvert) renders code cells and their outputs. Markdown cells and Markdown outputs go through
mkdocs instead, so that links are rewritten and checked, and admonitions and tabs work. The two meet at markers:

    notebook ──Markdown with markers──> mkdocs ──────────┐
             ──code cells with markers─> mkdocs-jupyter ──┴─> one page

Styles and scripts that mkdocs-jupyter puts into each page (595 kB, one of them from another host) are dropped; the
site's own stylesheet assets/notebook.css takes their place.
"""

from __future__ import annotations

import html
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page as MkDocsPage
from mkdocs_jupyter import convert

from cookbook.site import Page, pages_for_mkdocs

MARK = "<!--part {}-->"
MARKED = re.compile(r"<!--part (\d+)-->")
DROPPED = re.compile(r"<(style|script)\b.*?</\1>|<link\b[^>]*>|<clipboard-copy\b.*?</clipboard-copy>", re.DOTALL)
COPY_TEXT = re.compile(r'<div class="clipboard-(?:container|copy-txt)"[^>]*>.*?</div>', re.DOTALL)
CODE = re.compile(r'<div class="highlight-ipynb hl-\w+ ?"><pre>(.*?)</pre></div>', re.DOTALL)

ADMONITION = {
    "executed": "success",
    "rehearsed": "info",
    "attached": "info",
    "failed": "failure",
    "stale": "warning",
    "not_run": "warning",
}


@event_priority(100)  # before mkdocs-jupyter, which looks for notebooks among the files
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add each recipe's notebook as a page, and its source and evidence as downloads."""
    staging = Path(tempfile.mkdtemp(prefix="cookbook-site-"))
    config.extra["cookbook"] = {page.recipe: page for page in pages_for_mkdocs()}
    config.extra["cookbook_staging"] = staging
    for page in config.extra["cookbook"].values():
        content = {
            f"recipes/{page.recipe}.ipynb": json.dumps(page.notebook),
            f"recipes/{page.recipe}/{page.recipe}.py": page.source.read_text(),
        }
        if page.evidence:
            content[f"recipes/{page.recipe}/evidence.json"] = page.evidence.model_dump_json(indent=2)
        for uri, text in content.items():
            path = staging / uri
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            # Not File.generated: mkdocs-jupyter's wrapper around it loses its path.
            files.append(File(uri, str(staging), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page: MkDocsPage, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Fill in the table of recipes where a page asks for it."""
    rows = [
        f"| [{entry.title}]({'../' * page.file.src_uri.count('/')}recipes/{name}.ipynb) | {entry.hardware} "
        f"| {entry.status.text} |"
        for name, entry in config.extra["cookbook"].items()
    ]
    table = "\n".join(["| Recipe | Hardware | Status |", "| --- | --- | --- |", *rows])
    return markdown.replace("<!-- recipes -->", table)


@event_priority(-100)  # after mkdocs-jupyter, whose way to render is replaced here
def on_pre_page(page: MkDocsPage, config: MkDocsConfig, files: Files) -> MkDocsPage:  # noqa: ARG001
    """Render a recipe's page in two halves that meet at their markers."""
    recipe = Path(page.file.src_uri).stem
    if not page.file.src_uri.endswith(".ipynb"):
        return page
    entry: Page = config.extra["cookbook"][recipe]

    def render(config: MkDocsConfig, files: Files) -> None:
        notebook, markdown = halves(entry.notebook)
        page.markdown = with_header(markdown, header(entry))
        MkDocsPage.render(page, config, files)
        page.title = entry.title
        marked = config.extra["cookbook_staging"] / f"{recipe}.ipynb"
        marked.write_text(json.dumps(notebook))
        page.content = joined(cells_html(marked), page.content or "")

    page.render = render  # type: ignore[method-assign]
    return page


def halves(notebook: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Split a notebook: its code with markers for the Markdown, and its Markdown with the same markers before it."""
    parts: list[str] = []

    def mark(text: str) -> str:
        parts.append(text)
        return MARK.format(len(parts) - 1)

    cells: list[dict[str, Any]] = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            raw = {"raw_mimetype": "text/html"}
            cells.append({"cell_type": "raw", "metadata": raw, "source": mark(text)})
        elif text.strip():
            outputs = [marked_output(output, mark) for output in cell.get("outputs", ())]
            cells.append({**cell, "metadata": {}, "outputs": outputs})
    markdown = "\n\n".join(f"{MARK.format(number)}\n\n{text}" for number, text in enumerate(parts))
    return {**notebook, "cells": cells}, markdown


def marked_output(output: dict[str, Any], mark: Any) -> dict[str, Any]:
    """An output with a marker where it has Markdown."""
    data = output.get("data", {})
    if "text/markdown" not in data:
        return output
    return {**output, "data": {"text/html": mark("".join(data["text/markdown"]))}}


def with_header(markdown: str, box: str) -> str:
    """Put the header box under the page's title."""
    return re.sub(r"^(# .*)$", lambda match: f"{match[1]}\n\n{box}", markdown, count=1, flags=re.MULTILINE)


def header(entry: Page) -> str:
    """What stands at the top of a recipe's page: status, versions, checks, downloads."""
    lines = []
    found = entry.evidence
    if found:
        if found.mode == "rehearsal":
            lines.append(
                "**Rehearsed on a CPU with a small model: no number on this page is a number of the hardware.**"
            )
        made = [check for check in found.checks if check.verdict != "left_out"]
        held = sum(check.verdict == "pass" for check in made)
        lines.append(f"{held} of {len(made)} checks hold, {len(found.checks) - len(made)} left out.")
        machine = found.machine
        where = ", ".join(device.name for device in machine.accelerators) or machine.processor
        lines.append(f"Ran on {html.escape(where)}, {machine.cores} cores, {machine.memory_bytes / 2**30:.0f} GiB.")
        if found.error:
            lines.append(html.escape(found.error))
    else:
        lines.append("Nobody has run this recipe here yet: it is shown without outputs.")
    names = [f"{entry.recipe}.ipynb", f"{entry.recipe}.py", *(["evidence.json"] if found else [])]
    links = " · ".join(f'<a href="{name}" download>{name}</a>' for name in names)
    lines.append(f"Download: {links}")
    title = entry.status.text[0].upper() + entry.status.text[1:]
    body = "\n\n".join(f"    {' '.join(line.split())}" for line in lines)
    return f'!!! {ADMONITION[entry.status.state]} "{html.escape(title)}"\n\n{body}\n'


def cells_html(path: Path) -> str:
    """The cells as mkdocs-jupyter renders them, without its styles and scripts, and with code that the theme knows."""
    content = convert.nb2html(str(path), allow_errors=False, no_prompt=True, custom_mathjax_url="")
    content = COPY_TEXT.sub("", DROPPED.sub("", content))
    return CODE.sub(r'<div class="highlight"><pre><code>\1</code></pre></div>', content)


def joined(cells: str, markdown: str) -> str:
    """Put each part of the Markdown where its marker stands among the cells."""
    pieces = MARKED.split(markdown)
    parts = {int(number): text for number, text in zip(pieces[1::2], pieces[2::2], strict=True)}
    return MARKED.sub(lambda match: parts[int(match[1])], cells)
