"""From the runs' evidence to the site: which notebook becomes the page of a recipe, and what may be said of it.

    recipe (.py), newest run  ->  stage  ->  cleaned notebook and status  ->  mkdocs with docs/hooks.py  ->  site

Before a run is published its notebook is held against its evidence and against the recipe (nobody edited it), read cell
by cell for secrets, and cleaned of what is nobody's business: host names, private addresses, users' folders. A page is
made of the notebook that it offers for download.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cookbook import evidence
from cookbook.catalog import Catalog
from cookbook.errors import InputError
from cookbook.evidence import Evidence
from cookbook.execute import look_at
from cookbook.gate import Gate
from cookbook.notebook import find
from cookbook.redact import Redactor
from cookbook.status import Status, status

__all__ = ["Page", "build", "publishable", "serve", "stage"]

INJECTED = "injected-parameters"
ERROR_BANNER = "papermill-error-cell-tag"
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
# A folder is replaced only when mkdocs made it: --output may name any folder by mistake.
MADE_BY_MKDOCS = Path("search/search_index.json")
PORT = 8765


@dataclass(frozen=True)
class Page:
    """One recipe's page before it is rendered.

    Attributes:
        recipe: Its name.
        title: Its title in the catalog.
        hardware: Title of the hardware that it is for.
        status: What may be said of it.
        evidence: Of the newest run, clean; None where nothing ran.
        executed: Whether the notebook shows what a run printed.
        notebook: nbformat 4, clean; without outputs where nothing ran.
        source: The recipe's notebook as text.
    """

    recipe: str
    title: str
    hardware: str
    status: Status
    evidence: Evidence | None
    executed: bool
    notebook: dict[str, Any]
    source: Path


def stage(catalog: Catalog, runs: Path, now: datetime) -> list[Page]:
    """The pages of all recipes that have a notebook, in the catalog's order.

    Args:
        catalog: Names the recipes and their hardware.
        runs: Where `cookbook run` left its folders; it need not exist.
        now: The time, with its zone: old evidence is stale.

    Raises:
        InputError: A run's notebook was edited, contradicts its evidence, or holds a secret.
    """
    gate = Gate(socket.gethostname(), Redactor.from_environ(os.environ))
    sources = {name: find(catalog, name) for name in catalog.recipes}
    return [_page(catalog, name, path, runs, now, gate) for name, path in sources.items() if path]


def _page(catalog: Catalog, recipe: str, source: Path, runs: Path, now: datetime, gate: Gate) -> Page:
    folder = evidence.latest(runs, recipe)
    found = evidence.read(folder / "evidence.json") if folder else None
    said = status(found, source, now)
    notebook = _executed(folder, found, source) if folder and found else None
    if found:
        record = found.model_dump(mode="json")
        gate.check(record, f"{recipe}: evidence.json")
        found = Evidence.model_validate(gate.clean(record))
    return Page(
        recipe=recipe,
        title=catalog.recipes[recipe].title,
        hardware=catalog.hardware[catalog.recipes[recipe].hardware].title,
        status=said,
        evidence=found,
        executed=notebook is not None,
        notebook=publishable(_read(source) if notebook is None else notebook, recipe, gate),
        source=source,
    )


def _read(path: Path) -> Any:
    # About 0.5 s of imports that `cookbook list` and `cookbook show` do without.
    import jupytext  # noqa: PLC0415

    return jupytext.read(path)


def _executed(folder: Path, found: Evidence, source: Path) -> Any:
    """The executed notebook of a run, once it agrees with evidence and recipe; None where there is none."""
    record = found.notebook
    if record is None:
        return None
    path = folder / Path(record.file).name
    seen = look_at(path, source)
    again = f"Run the recipe again, or delete {folder}."
    if seen is None:
        raise InputError(f"{path} is missing, but its evidence names it.", again)
    if seen.sha256 != record.sha256:
        raise InputError(f"{path} is not the notebook that its evidence speaks of: it was changed.", again)
    if found.status == "passed" and seen.error:
        raise InputError(f"{path} shows an error, but its evidence says that the run passed.", again)
    if found.status == "passed" and seen.executed_cells < seen.code_cells:
        ran = f"{seen.executed_cells} of {seen.code_cells} code cells"
        raise InputError(f"{path}: only {ran} were executed, but its evidence says that the run passed.", again)
    notebook = _read(path)
    if seen.source_sha256 == record.source_sha256 and _code(notebook) != _code(_read(source)):
        raise InputError(f"{path} has other code than {source.name}, but its evidence says that it is the same.", again)
    return notebook


def _code(notebook: Any) -> list[str]:
    """The code cells as a run leaves them: without secrets, and without the cell that papermill adds."""
    cells = (cell for cell in notebook.cells if cell.cell_type == "code" and INJECTED not in _tags(cell))
    return [Redactor(()).text(cell.source).strip() for cell in cells if cell.source.strip()]


def _tags(cell: Any) -> list[str]:
    return list(cell.metadata.get("tags", ()))


def publishable(notebook: Any, name: str, gate: Gate) -> dict[str, Any]:
    """A notebook as it may be shown: no secret, no trace of the machine, and nothing that differs from run to run.

    Args:
        notebook: The notebook as nbformat reads it; it is not changed.
        name: What errors call it.
        gate: Reads and cleans it.

    Raises:
        InputError: A cell holds a secret. The text names the cell's number, counted from 1, the part and the kind.
    """
    cells: list[dict[str, Any]] = []
    for number, cell in enumerate(notebook.cells, start=1):
        if ERROR_BANNER in _tags(cell) or (cell.cell_type == "code" and not cell.source.strip()):
            continue
        place = f"{name}: cell {number}"
        kept: dict[str, Any] = {"cell_type": cell.cell_type, "id": f"cell-{len(cells):03d}", "source": cell.source}
        gate.check(cell.source, f"{place}, source")
        if cell.get("attachments"):
            kept["attachments"] = cell.attachments
            gate.check(cell.attachments, f"{place}, attachments")
        if cell.cell_type == "code":
            outputs = [_without_widgets(output) for output in cell.outputs]
            kept["outputs"] = [output for output in outputs if output.get("data", True)]
            kept["execution_count"] = cell.execution_count
            for output in kept["outputs"]:
                _check_output(output, place, gate)
        cells.append({**gate.clean(kept), "metadata": {"tags": _tags(cell)} if _tags(cell) else {}})
    kernel = {**KERNEL, **notebook.metadata.get("kernelspec", {})}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _without_widgets(output: Any) -> dict[str, Any]:
    """An output without the state of widgets, which would load a script from another host."""
    kept = dict(output)
    if "data" in kept:
        kept["data"] = {kind: value for kind, value in output.data.items() if "jupyter.widget" not in kind}
        kept["metadata"] = {}
    return kept


def _check_output(output: dict[str, Any], place: str, gate: Gate) -> None:
    if output["output_type"] == "stream":
        gate.check(output["text"], f"{place}, {output['name']}")
    elif output["output_type"] == "error":
        gate.check("\n".join((output["ename"], output["evalue"], *output["traceback"])), f"{place}, error")
    else:
        for kind, value in output["data"].items():
            gate.check({kind: value}, f"{place}, {kind}")


def build(root: Path, site: Path, runs: Path) -> Path:
    """Build the site, strictly, into `site`; a failed build leaves what stood there.

    Args:
        root: The checkout.
        site: Folder to build into. A site that stands there is replaced at the end.
        runs: Where the runs lie.

    Returns:
        `site`, absolute.

    Raises:
        InputError: This is no checkout, mkdocs is missing, `site` is something else than a site, a link is broken, or a
            run may not be published.
    """
    config_file = _config_file(root)
    site = site.absolute()
    if site.exists() and not _replaceable(site):
        raise InputError(f"{site} exists and is not a site that was built here.", "Name another folder with --output.")
    try:
        site.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=site.parent, prefix=f".{site.name}-") as temporary:
            made, old = Path(temporary) / "site", Path(temporary) / "old"
            _mkdocs(config_file, made, _extra(runs, Path(temporary)))
            if site.exists():
                site.rename(old)
            try:
                made.rename(site)
            except OSError:
                old.rename(site)  # before the temporary folder goes, and the old site with it
                raise
    except OSError as error:
        raise InputError(
            f"{site} cannot be written: {error.strerror or error}.", "Name another folder with --output."
        ) from error
    return site


def _replaceable(site: Path) -> bool:
    return site.is_dir() and ((site / MADE_BY_MKDOCS).exists() or not any(site.iterdir()))


def _config_file(root: Path) -> Path:
    path = root.absolute() / "mkdocs.yml"
    if not path.exists():
        raise InputError(
            f"There is no mkdocs.yml in {path.parent}.", "The site is built from a checkout: change to one."
        )
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("mkdocs_jupyter") is None:
        raise InputError("The site needs mkdocs and its plugins.", "Install them: pip install 'cookbook[docs]'.")
    os.environ["NO_MKDOCS_2_WARNING"] = "1"  # a banner of mkdocs-material on every build
    return path


def _mkdocs(config_file: Path, site: Path, extra: dict[str, str]) -> None:
    from mkdocs.commands.build import build as mkdocs_build  # noqa: PLC0415  # an optional extra
    from mkdocs.config import load_config  # noqa: PLC0415
    from mkdocs.exceptions import MkDocsException  # noqa: PLC0415

    with _warnings() as warnings:
        try:
            config = load_config(str(config_file), site_dir=str(site), strict=True, extra=extra)
            config.plugins.on_startup(command="build", dirty=False)
            try:
                mkdocs_build(config)
            finally:
                config.plugins.on_shutdown()
        except MkDocsException as error:
            reasons = " ".join(warnings) or error.message
            raise InputError(f"The site cannot be built. {reasons}", "Mend what is named and build again.") from error


def _extra(runs: Path, temporary: Path) -> dict[str, str]:
    """What the hooks find in mkdocs' configuration."""
    return {"runs": str(runs.absolute()), "staging": str(temporary / "pages")}


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect what mkdocs warns of, a sentence each: in strict mode these are the errors."""
    sentences: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = " ".join(record.getMessage().split())
            sentence = text if text.endswith((".", "!", "?")) else f"{text}."
            if sentence not in sentences:
                sentences.append(sentence)

    handler = Collect(logging.WARNING)
    logger = logging.getLogger("mkdocs")
    logger.addHandler(handler)
    try:
        yield sentences
    finally:
        logger.removeHandler(handler)


def serve(root: Path, runs: Path, port: int = PORT) -> None:
    """Serve the site on loopback, and build it again when a page, a recipe or a run changes, until interrupted.

    Raises:
        InputError: This is no checkout, mkdocs is missing, the port is in use, or a run may not be published.
    """
    config_file = _config_file(root)
    from mkdocs.commands.serve import serve as mkdocs_serve  # noqa: PLC0415  # an optional extra
    from mkdocs.exceptions import MkDocsException  # noqa: PLC0415

    logging.basicConfig(format="%(message)s")
    logging.getLogger("mkdocs").setLevel(logging.INFO)
    watched = [str(path) for path in (runs.absolute(), root.absolute() / "cookbook") if path.exists()]
    address = f"127.0.0.1:{port}"
    try:
        with tempfile.TemporaryDirectory(prefix="cookbook-site-") as temporary:
            extra = _extra(runs, Path(temporary))
            # Not strict: whoever writes wants to see the page beside the warning.
            mkdocs_serve(str(config_file), watch=watched, dev_addr=address, strict=False, extra=extra)
    except MkDocsException as error:
        raise InputError(f"The site cannot be built. {error.message}", "Mend what is named.") from error
    except OSError as error:
        raise InputError(f"The site cannot be served at {address}: {error.strerror}.", "Free the port.") from error
