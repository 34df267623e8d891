"""The catalog: what exists and what is claimed, read from YAML into typed, immutable entries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from cookbook.catalog.schema import Catalog
from cookbook.errors import CatalogError

__all__ = ["BUILTIN", "Catalog", "load"]

BUILTIN = Path(__file__).parent


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


def load(folder: Path = BUILTIN) -> Catalog:
    """Read and validate the catalog in `folder`.

    Returns:
        The catalog.

    Raises:
        CatalogError: A file is missing or is not YAML, or an entry is wrong. It names the file and the key.
    """
    parts = {name: _part(folder / f"{name}.yaml", field.annotation) for name, field in Catalog.model_fields.items()}
    catalog = Catalog.model_construct(**parts)
    _check_references(folder, catalog)
    return catalog


def _part(path: Path, kind: Any) -> Any:
    try:
        content = yaml.load(path.read_bytes(), Loader=_Loader)  # noqa: S506  # a subclass of the safe loader
    except OSError as error:
        raise CatalogError(str(path), "", f"cannot be read ({error.strerror}).") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark else ""
        raise CatalogError(
            str(path), where, f"is not valid YAML: {getattr(error, 'problem', None) or error}.", "Mend the file."
        ) from error
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
    "hardware": "hardware",
    "strategy": "strategies",
    "strategies": "strategies",
    "features": "features",
    "without_features": "features",
}


def _check_references(folder: Path, catalog: Catalog) -> None:
    for name in Catalog.model_fields:
        for key, part, value in _references(getattr(catalog, name), ()):
            if value not in getattr(catalog, part):
                raise CatalogError(
                    str(folder / f"{name}.yaml"),
                    ".".join(key),
                    f'there is no "{value}" in {part}.yaml.',
                    "Mend the name, or add the entry.",
                )


def _references(entry: Any, key: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, str]]:
    if isinstance(entry, BaseModel):
        for name in type(entry).model_fields:
            value = getattr(entry, name)
            if name in _REFERENCES and value is not None:
                names = (value,) if isinstance(value, str) else value
                yield from (((*key, name), _REFERENCES[name], each) for each in names)
            else:
                yield from _references(value, (*key, name))
    elif isinstance(entry, dict):
        for name, child in entry.items():
            yield from _references(child, (*key, str(name)))
    elif isinstance(entry, tuple):
        for index, child in enumerate(entry):
            yield from _references(child, (*key, str(index)))
