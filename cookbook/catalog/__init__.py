"""The catalog: what exists and what is claimed, read from YAML into typed, immutable entries."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from cookbook.catalog.schema import Catalog
from cookbook.errors import CatalogError

__all__ = ["BUILTIN", "OVERLAY", "Catalog", "load", "overlay"]

OVERLAY = "COOKBOOK_CATALOG"
"""Environment variable with the folder that is laid over the built-in catalog, for child processes too."""

BUILTIN = Path(__file__).parent
GROWING = ("names", "problems")
"""Parts that hold lists of entries: an overlay adds to them."""


def overlay() -> Path | None:
    """The folder that the environment names to be laid over the built-in catalog, or None."""
    folder = os.environ.get(OVERLAY)
    return Path(folder) if folder else None


class _Loader(yaml.CSafeLoader):
    """YAML that refuses a key given twice: PyYAML would silently take the last."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f'key "{key}" stands twice', key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
# Dates stay text: they are shown as written.
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: str(node.value))


def load(folder: Path = BUILTIN, overlay: Path | None = None) -> Catalog:
    """Read and validate the catalog in `folder`.

    Args:
        folder: One YAML file for each field of `Catalog`.
        overlay: A folder with any of the same files. Its mappings are merged into the catalog's key by key, so that an
            entry can be added or one of its values changed; its lists of problems and names are appended, and any other
            list takes the place of the catalog's.

    Returns:
        The catalog.

    Raises:
        CatalogError: A file is missing or is not YAML, or an entry is wrong. It names the file and the key.
    """
    contents = {name: _read(folder / f"{name}.yaml") for name in Catalog.model_fields}
    files = {name: folder / f"{name}.yaml" for name in Catalog.model_fields}
    if overlay is not None:
        for name, path in _overlay_files(overlay).items():
            contents[name] = _merged(contents[name], _read(path), grow=name in GROWING)
            files[name] = path
    parts = {name: _part(files[name], contents[name], field.annotation) for name, field in Catalog.model_fields.items()}
    catalog = Catalog.model_construct(**parts)
    catalog._overlay = overlay.absolute() if overlay else None  # not a part that a file holds
    _check_references(files, catalog)
    return catalog


def _overlay_files(overlay: Path) -> dict[str, Path]:
    if not overlay.is_dir():
        raise CatalogError(str(overlay), "", "is not a folder.", "Name a folder with YAML files such as hardware.yaml.")
    found = {path.stem: path for path in sorted(overlay.glob("*.y*ml"))}
    unknown = [path.name for name, path in found.items() if name not in Catalog.model_fields or path.suffix != ".yaml"]
    if unknown or not found:
        what = f"the catalog has no part {unknown[0]}." if unknown else "holds no YAML file."
        raise CatalogError(
            str(overlay), "", what, f"There are: {', '.join(f'{n}.yaml' for n in Catalog.model_fields)}."
        )
    return found


def _merged(base: Any, over: Any, *, grow: bool) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        both = {key: _merged(base[key], value, grow=grow) for key, value in over.items() if key in base}
        return base | over | both
    if grow and isinstance(base, list) and isinstance(over, list):
        return base + over
    return over


def _read(path: Path) -> Any:
    try:
        return yaml.load(path.read_bytes(), Loader=_Loader)  # noqa: S506  # a subclass of the safe loader
    except OSError as error:
        raise CatalogError(str(path), "", f"cannot be read ({error.strerror}).") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark else ""
        raise CatalogError(
            str(path), where, f"is not valid YAML: {getattr(error, 'problem', None) or error}.", "Mend the file."
        ) from error


def _part(path: Path, content: Any, kind: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(step) for step in first["loc"] if step != "[key]")
        others = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise CatalogError(str(path), key, f"{first['msg']}{others}.", "Mend the entry.") from error


# Fields that name an entry elsewhere, and the part of the catalog that they name it in.
_REFERENCES = {
    "source": "sources",
    "vendor": "vendors",
    "vendors": "vendors",
    "families": "families",
    "hardware": "hardware",
    "strategy": "strategies",
    "strategies": "strategies",
    "features": "features",
    "without_features": "features",
}


def _check_references(files: Mapping[str, Path], catalog: Catalog) -> None:
    known = {name: set(getattr(catalog, name)) for name in _REFERENCES.values() if name != "families"}
    known["families"] = {hardware.family for hardware in catalog.hardware.values()}
    for name in Catalog.model_fields:
        for key, part, value in _references(getattr(catalog, name), ()):
            if value not in known[part]:
                where = "hardware.yaml as a family" if part == "families" else f"{part}.yaml"
                raise CatalogError(
                    str(files[name]),
                    ".".join(key),
                    f'there is no "{value}" in {where}.',
                    "Mend the name, or add the entry.",
                )


def _references(entry: Any, key: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, str]]:
    if isinstance(entry, BaseModel):
        for name in type(entry).model_fields:
            value = getattr(entry, name)
            if name in _REFERENCES and value is not None:
                names = (value,) if isinstance(value, str) else value
                yield from (((*key, name), _REFERENCES[name], each) for each in names)
            if not isinstance(value, str):
                yield from _references(value, (*key, name))
    elif isinstance(entry, dict):
        for name, child in entry.items():
            yield from _references(child, (*key, str(name)))
    elif isinstance(entry, tuple):
        for index, child in enumerate(entry):
            yield from _references(child, (*key, str(index)))
