"""What upstream says, written into the catalog's YAML: whole or not at all, comments kept."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError

from cookbook.catalog import load
from cookbook.drift.compare import Difference
from cookbook.drift.read import Upstream
from cookbook.errors import InputError

__all__ = ["SOURCE", "apply"]

SOURCE = "k31_recipe"
REASON = "Added by cookbook drift; say here what a rehearsal does with it."


def apply(folder: Path, differences: Iterable[Difference], upstream: Upstream) -> tuple[str, ...]:
    """Write what differs, is missing here or is confirmed into the catalog in `folder`, with the basis "stated".

    Nothing is taken out: upstream's file is not all that upstream's site puts into a command.

    Returns:
        What was changed, a line each.

    Raises:
        InputError: An entry is shared by several places, or the catalog could not be loaded or written afterwards; then
            no file has changed.
    """
    wanted = [one for one in differences if one.state in {"differs", "missing_here", "confirmed"}]
    if not wanted:
        return ()
    editor = _Editor(folder)
    said = [editor.change(one) for one in wanted]
    editor.add_source(upstream)
    editor.write()
    return tuple(said)


class _Editor:
    """The catalog's files as ruamel.yaml reads them; each is read when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, Any] = {}
        self._yaml = YAML()
        self._yaml.preserve_quotes = True
        self._yaml.width = 120
        self._yaml.indent(mapping=2, sequence=4, offset=2)

    def change(self, one: Difference) -> str:
        """Change or add one entry."""
        path: tuple[str, ...]
        if one.kind == "image":
            file, path = "hardware", (one.hardware,)
            entry = self._at(file, path)
            entry["image"] = self._entry(entry.get("image"), {"tag": one.value})
        else:
            section = "args" if one.kind == "flag" else "env"
            value = str(one.value) if one.kind == "environment" else one.value
            file, path = self._place(one)
            layer = self._holder(self._at(file, path), section, one)
            if layer.get(section) is None:
                layer[section] = CommentedMap()
            holder = layer[section]
            if holder.anchor is not None and holder.anchor.value:
                raise InputError(
                    f"{self._folder / file}.yaml: {'.'.join(path)}.{section} is shared by several places, so "
                    f"{one.subject} cannot be changed in one of them.",
                    "Change it by hand.",
                )
            holder[one.subject] = self._entry(holder.get(one.subject), {} if value is None else {"value": value})
            self._rehearsal(section, one.subject)
        return f"{file}.yaml: {'.'.join(path)}: {one.subject} = {one.theirs}"

    def _entry(self, before: Any, change: dict[str, Any]) -> CommentedMap:
        """A new entry in the place of `before`, which may stand elsewhere too by an alias."""
        entry = CommentedMap(change)
        entry["why"] = before["why"] if before else "As upstream's recipe has it."
        entry["basis"] = "stated"
        entry["source"] = SOURCE
        return entry

    def _place(self, one: Difference) -> tuple[str, tuple[str, ...]]:
        """File and path of the layer: where the catalog has it, else where upstream states it."""
        layer = one.ours_from.partition(":")[0] or one.their_layer
        kind, _, name = layer.partition(" ")
        match kind:
            case "model" | "base":
                return "model", ()
            case "vendor":
                return "vendors", (name,)
            case "hardware":
                if name in self._file("hardware"):
                    return "hardware", (name,)
                return ("vendors", (name,)) if name in self._file("vendors") else ("hardware", (one.hardware,))
            case "strategy":
                return "strategies", (name,)
            case "feature":
                return "features", (name,)
            case "role":
                return "strategies", (one.strategy, "roles", name)
            case _:
                return "recipes", (name,)

    def _holder(self, layer: Any, section: str, one: Difference) -> Any:
        """The layer, or the one of its `where` that has the entry now."""
        if one.ours is None or one.subject in (layer.get(section) or {}):
            return layer
        inner = [place for place in layer.get("where") or () if one.subject in (place.get(section) or {})]
        if len(inner) > 1:
            raise InputError(f"{one.subject} stands in several places of {one.ours_from}.", "Change it by hand.")
        return inner[0] if inner else layer

    def _rehearsal(self, section: str, name: str) -> None:
        rules = self._file("rehearsal")[section]
        if name not in rules:
            rules[name] = CommentedMap({"drop": True, "reason": REASON})

    def add_source(self, upstream: Upstream) -> None:
        """The source that the new entries refer to."""
        web = upstream.where.startswith("http")
        updated = f", updated {upstream.updated}" if upstream.updated else ""
        self._file("sources")[SOURCE] = CommentedMap(
            {"title": f"vLLM recipe of {upstream.title}{updated}", "url": upstream.where if web else None}
        )

    def _at(self, file: str, path: tuple[str, ...]) -> Any:
        entry = self._file(file)
        for step in path:
            entry = entry[step]
        return entry

    def _file(self, name: str) -> Any:
        if name not in self._files:
            path = self._folder / f"{name}.yaml"
            try:
                self._files[name] = self._yaml.load(path)
            except (OSError, YAMLError) as error:
                raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}.", "Mend the file.") from error
        return self._files[name]

    def write(self) -> None:
        """Load the changed catalog from a copy first; then put each file in its place."""
        texts = {}
        for name, content in self._files.items():
            stream = io.BytesIO()
            self._yaml.dump(content, stream)
            texts[name] = stream.getvalue()
        with tempfile.TemporaryDirectory(prefix="cookbook-drift-") as temporary:
            copy = Path(temporary, "catalog")
            copy.mkdir()
            for path in self._folder.glob("*.yaml"):
                shutil.copy(path, copy)
            for name, text in texts.items():
                (copy / f"{name}.yaml").write_bytes(text)
            load(copy)
        made: list[tuple[Path, Path]] = []
        try:
            for name, text in texts.items():
                target = self._folder / f"{name}.yaml"
                new = target.with_suffix(".yaml.new")
                new.write_bytes(text)
                made.append((new, target))
            for new, target in made:
                os.replace(new, target)  # noqa: PTH105  # on one file system, at once
        except OSError as error:
            raise InputError(f"The catalog cannot be written: {error.strerror}.", f"See {self._folder}.") from error
        finally:
            for new, _ in made:
                new.unlink(missing_ok=True)
