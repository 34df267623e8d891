"""The texts of tests/golden/: every recipe in every format that makes sense for it. `scripts/golden` writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cookbook.catalog import Catalog, load
from cookbook.errors import InputError
from cookbook.formats import FORMATS, render
from cookbook.resolve import resolve
from cookbook.selection import named

__all__ = ["FOLDER", "IMAGE", "SUFFIX", "texts"]

FOLDER = Path(__file__).parent / "golden"
SUFFIX = {"bash": "sh", "docker": "docker.sh", "compose": "compose.yaml", "slurm": "sbatch", "kubernetes": "k8s.yaml"}
IMAGE = "registry.example/vllm:your-build"
"""In place of an image that no source names."""


def texts(catalog: Catalog) -> Iterator[tuple[str, str, str, str | InputError]]:
    """Recipe, format, name of the file, and its text or why there is none."""
    for recipe in catalog.recipes:
        image = None if catalog.hardware[catalog.recipes[recipe].hardware].image.tag else IMAGE
        for name in FORMATS:
            given = image if name not in {"bash", "slurm"} else None
            deployment = resolve(catalog, named(catalog, recipe, image=given))
            try:
                text: str | InputError = render(catalog, deployment, name)
            except InputError as error:
                text = error
            yield recipe, name, f"{recipe}.{SUFFIX[name]}", text


def main() -> None:
    """Write what there is, and take away what is not any more."""
    FOLDER.mkdir(exist_ok=True)
    written = set()
    for _, _, file, text in texts(load()):
        if isinstance(text, str):
            (FOLDER / file).write_text(text)
            written.add(file)
    for path in FOLDER.iterdir():
        if path.name not in written:
            path.unlink()
    print(f"{len(written)} files in {FOLDER}. Read the diff.")


if __name__ == "__main__":
    main()
