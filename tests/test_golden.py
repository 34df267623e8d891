"""Every recipe in every format, as text that was read. After a change on purpose: scripts/golden, and read the diff."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cookbook.catalog import Catalog, load
from cookbook.errors import InputError
from tests.golden_files import FOLDER, texts

ALL = list(texts(load()))


@pytest.mark.parametrize(("recipe", "name", "file", "text"), ALL, ids=[file for _, _, file, _ in ALL])
def test_the_text_is_the_one_that_was_read(recipe: str, name: str, file: str, text: str | InputError) -> None:
    if isinstance(text, InputError):
        assert not (FOLDER / file).exists()
        assert text.todo
    else:
        assert text == (FOLDER / file).read_text(), "changed on purpose? Run scripts/golden and read the diff"


def test_what_makes_no_sense_is_refused_and_nothing_else(catalog: Catalog) -> None:
    """Compose is for one node; no source names a PPU's resource in Kubernetes."""
    refused = {(recipe, name) for recipe, name, _, text in ALL if isinstance(text, InputError)}
    several = {r for r, _, _, _ in ALL if catalog.recipes[r].strategy.startswith(("multi", "pd"))}
    assert refused == {(r, "compose") for r in several} | {(r, "kubernetes") for r in several if r.startswith("ppu")}


def test_no_file_is_left_over() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {file for _, _, file, text in ALL if isinstance(text, str)}


def test_the_texts_are_the_same_each_time(catalog: Catalog) -> None:
    again = [text for *_, text in texts(catalog) if isinstance(text, str)]
    assert again == [text for *_, text in ALL if isinstance(text, str)]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.s[hb]*")), ids=lambda path: path.name)
def test_every_script_is_legal_bash(path: Path) -> None:
    assert shutil.which("bash")
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("recipe", "name", "file", "text"), ALL, ids=[file for _, _, file, _ in ALL])
def test_every_output_says_what_is_not_verified(
    recipe: str, name: str, file: str, text: str | InputError, catalog: Catalog
) -> None:
    if isinstance(text, str):
        assert "# unverified: " in text or "# preview: " in text
    if recipe.startswith("vr200") and isinstance(text, str):
        assert "# preview: VR200 is a preview. The flags are those of Blackwell, and were neither tuned" in text
