"""The site: each recipe's newest run becomes a page, if it may be published. mkdocs does the rest, strictly.

Before a run is published its notebook is held against its evidence (nobody edited it), read cell by cell for secrets (a
scanner of the raw JSON would miss what escapes hide), and cleaned of what is nobody's business: host names, private
addresses, users' folders.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import socket
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cookbook import evidence
from cookbook.catalog import Catalog, load
from cookbook.errors import CookbookError, InputError
from cookbook.evidence import Evidence
from cookbook.notebook import source
from cookbook.redact import Redactor
from cookbook.status import Status, status

__all__ = ["Page", "Scrubber", "build", "publishable", "secrets_in", "serve", "stage"]

RUNS_VARIABLE = "COOKBOOK_RUNS"


@dataclass(frozen=True)
class Page:
    """One recipe's page.

    Attributes:
        recipe: Its name.
        title: Its title.
        notebook: nbformat 4, clean; without outputs where nothing ran.
        source: The recipe's notebook as text.
        evidence: Of the newest run, clean; None where nothing ran.
        status: What may be said of it.
    """

    recipe: str
    title: str
    hardware: str
    notebook: dict[str, Any]
    source: Path
    evidence: Evidence | None
    status: Status


class Scrubber:
    """Takes out of text what identifies a machine or a person: its host name, private addresses, home folders."""

    def __init__(self, host_name: str, home: Path) -> None:
        # A short host name turns up as part of words ("vm" in "vmm"); it identifies nobody.
        host = re.escape(host_name) if len(host_name) > 3 else r"(?!)"
        self._rules = (
            (re.compile(rf"\b{host}\b"), "<host>"),
            (
                re.compile(
                    r"\b(?:10(?:\.\d{1,3}){3}|192\.168(?:\.\d{1,3}){2}|172\.(?:1[6-9]|2\d|3[01])(?:\.\d{1,3}){2})\b"
                ),
                "<address>",
            ),
            (re.compile(rf"{re.escape(str(home))}(?=/|\b)"), "~"),
            (re.compile(r"/home/[^/\s\"'<>]+|/root(?=/|\b)"), "~"),
        )

    @classmethod
    def here(cls) -> Scrubber:
        """One that knows this machine."""
        return cls(socket.gethostname(), Path.home())

    def text(self, text: str) -> str:
        """`text` without them."""
        for pattern, replacement in self._rules:
            text = pattern.sub(replacement, text)
        return text

    def value(self, value: Any) -> Any:
        """The same for data as JSON knows it."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.value(child) for key, child in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(child) for child in value]
        return value


def secrets_in(notebook: Mapping[str, Any], redactor: Redactor) -> Iterator[str]:
    """Where a notebook holds something that the redactor would take out: never what it is."""
    for number, cell in enumerate(notebook["cells"], start=1):
        if redactor.text(_joined(cell["source"])) != _joined(cell["source"]):
            yield f"cell {number}, source"
        for output in cell.get("outputs", ()):
            texts = [
                _joined(output.get("text", "")),
                *map(str, output.get("traceback", ())),
                str(output.get("evalue", "")),
            ]
            texts += [_joined(data) for data in output.get("data", {}).values()]
            if any(redactor.text(text) != text for text in texts):
                yield f"cell {number}, {output['output_type']} output"


def _joined(text: Any) -> str:
    if isinstance(text, list):
        return "".join(map(str, text))
    return text if isinstance(text, str) else json.dumps(text)


def publishable(notebook: Mapping[str, Any], scrubber: Scrubber) -> dict[str, Any]:
    """A notebook as it may be shown: without papermill's own cells, and without metadata such as times and widgets."""
    cells = []
    for cell in notebook["cells"]:
        metadata = cell.get("metadata", {})
        if "papermill-error-cell-tag" in metadata.get("tags", ()):
            continue
        kept = {key: value for key, value in cell.items() if key != "id"}
        kept["metadata"] = {"tags": metadata["tags"]} if metadata.get("tags") else {}
        cells.append(scrubber.value(kept))
    kernel = {key: notebook["metadata"][key] for key in ("kernelspec", "language_info") if key in notebook["metadata"]}
    return {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 4}


def stage(catalog: Catalog, runs: Path, now: datetime) -> list[Page]:
    """The pages of all recipes that have a notebook.

    Raises:
        InputError: A run's notebook was edited, holds a secret, or shows an error that its evidence does not.
    """
    scrubber = Scrubber.here()
    return [_page(catalog, recipe, runs, now, scrubber) for recipe in catalog.recipes]


def _page(catalog: Catalog, recipe: str, runs: Path, now: datetime, scrubber: Scrubber) -> Page:
    text = source(recipe)
    folder = evidence.latest(runs, recipe)
    found = evidence.read(folder / "evidence.json") if folder else None
    executed = None
    if folder and found and found.notebook:
        executed = _executed(folder / found.notebook.file, found)
    clean = Evidence.model_validate(scrubber.value(found.model_dump(mode="json"))) if found else None
    return Page(
        recipe=recipe,
        title=catalog.recipes[recipe].title,
        hardware=catalog.hardware[catalog.recipes[recipe].hardware].title,
        notebook=publishable(executed or _unexecuted(text), scrubber),
        source=text,
        evidence=clean,
        status=status(found, text, now),
    )


def _executed(path: Path, found: Evidence) -> dict[str, Any]:
    assert found.notebook
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.", "Run the recipe again.") from error
    if hashlib.sha256(content).hexdigest() != found.notebook.sha256:
        raise InputError(
            f"{path} is not the notebook that its evidence speaks of.", "It was changed: run the recipe again."
        )
    notebook: dict[str, Any] = json.loads(content)
    places = list(secrets_in(notebook, Redactor.from_environ(os.environ)))
    if places:
        raise InputError(
            f"{path} holds what looks like a secret: {'; '.join(places)}.",
            "Take it out of the recipe, and run it again.",
        )
    errors = any(output["output_type"] == "error" for cell in notebook["cells"] for output in cell.get("outputs", ()))
    if errors and found.status == "passed":
        raise InputError(f"{path} shows an error, but its evidence says that the run passed.", "Run the recipe again.")
    return notebook


def _unexecuted(text: Path) -> dict[str, Any]:
    import jupytext  # noqa: PLC0415  # a second of import, and only needed where nothing ran

    notebook: dict[str, Any] = json.loads(jupytext.writes(jupytext.read(text), fmt="ipynb"))
    return notebook


def build(root: Path, site: Path, runs: Path) -> Path:
    """Build the site, strictly, into `site`; a failed build leaves what stood there.

    Args:
        root: The checkout.
        site: Folder to build into.
        runs: Where the runs lie.

    Returns:
        `site`.

    Raises:
        InputError: This is no checkout, mkdocs is missing, a link is broken, or a run may not be published.
    """
    site = site.absolute()
    try:
        site.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=site.parent, prefix=f".{site.name}-") as temporary:
            made = Path(temporary) / "site"
            _mkdocs(root, made, runs)
            if site.exists():
                site.rename(Path(temporary) / "old")
            made.rename(site)
    except OSError as error:
        raise InputError(
            f"{site} cannot be written: {error.strerror or error}.", "Name another folder with --output."
        ) from error
    return site


class _Warnings(logging.Handler):
    """Collects what mkdocs warns of: in strict mode these are the errors."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def _mkdocs(root: Path, site: Path, runs: Path) -> None:
    config_file = _config_file(root)
    os.environ["NO_MKDOCS_2_WARNING"] = "1"  # a banner of mkdocs-material on every build
    os.environ[RUNS_VARIABLE] = str(runs.absolute())
    try:
        from mkdocs.commands.build import build as mkdocs_build  # noqa: PLC0415
        from mkdocs.config import load_config  # noqa: PLC0415
        from mkdocs.exceptions import MkDocsException  # noqa: PLC0415
    except ImportError as error:
        raise InputError(f"The site needs {error.name}.", "Install it: pip install 'cookbook[docs]'.") from error
    warnings = _Warnings()
    logger = logging.getLogger("mkdocs")
    logger.addHandler(warnings)
    try:
        mkdocs_build(load_config(str(config_file), site_dir=str(site), strict=True))
    except CookbookError:
        raise
    except (MkDocsException, SystemExit) as error:
        reasons = " ".join(warnings.texts) or str(error)
        raise InputError(f"The site cannot be built: {reasons}", "Mend the page that is named.") from error
    finally:
        logger.removeHandler(warnings)


def _config_file(root: Path) -> Path:
    path = root / "mkdocs.yml"
    if not path.exists():
        raise InputError(
            f"There is no mkdocs.yml in {root.absolute()}.", "The site is built from a checkout of the cookbook."
        )
    return path


def serve(root: Path, runs: Path) -> None:
    """Serve the site on this machine and rebuild it when a page changes, until interrupted."""
    config_file = _config_file(root)
    os.environ["NO_MKDOCS_2_WARNING"] = "1"
    os.environ[RUNS_VARIABLE] = str(runs.absolute())
    from mkdocs.commands.serve import serve as mkdocs_serve  # noqa: PLC0415

    mkdocs_serve(str(config_file), watch=[str(path) for path in (runs, root / "cookbook" / "recipes") if path.exists()])


def pages_for_mkdocs() -> list[Page]:
    """What the hooks of mkdocs publish, by the environment that `build` and `serve` set."""
    return stage(load(), Path(os.environ.get(RUNS_VARIABLE, "runs")), datetime.now(UTC))
