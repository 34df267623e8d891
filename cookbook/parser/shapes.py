"""What a JSON value may look like, as data that a file can hold: a small part of pydantic's core schemas.

A shape is a core schema (`pydantic_core.core_schema`) that holds neither Python objects nor validators written in
Python. What such a validator takes cannot be told, so it becomes "any"; only where it translates the spelling of a
fixed list of choices is it tried out, and its choices are kept under the one type of ours, "choices".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import SchemaError, SchemaValidator

__all__ = ["Shape", "choice", "core_schema", "keys", "shape", "spelling"]

Shape = Mapping[str, Any]

ANY: Shape = {"type": "any"}
PLAIN = {"int", "float", "bool", "str", "none", "any"}
BOUNDS = ("gt", "ge", "lt", "le")
NONSENSE = "no such name"


def shape(schema: Any, definitions: Mapping[str, Any] | None = None) -> Shape:
    """What is left of a core schema once everything that only Python knows is taken out.

    Args:
        schema: Of pydantic, for example `TypeAdapter(int).core_schema`.
        definitions: Schemas that it refers to, by name.
    """
    named = definitions or {}
    kind, inner = schema["type"], schema.get("schema")
    match kind:
        case "definitions":
            return shape(inner, {definition["ref"]: definition for definition in schema["definitions"]})
        case "definition-ref":
            # Without the name itself: a type that holds itself ends there.
            rest = {name: definition for name, definition in named.items() if name != schema["schema_ref"]}
            return shape(named[schema["schema_ref"]], rest) if schema["schema_ref"] in named else ANY
        case "default" | "function-after":
            return shape(inner, named)
        case "nullable":
            return {"type": "nullable", "schema": shape(inner, named)}
        case "literal" | "enum":
            return _literal(schema)
        case "union":
            choices = [choice[0] if isinstance(choice, tuple) else choice for choice in schema["choices"]]
            return {"type": "union", "choices": [shape(choice, named) for choice in choices]}
        case "list" | "set" | "frozenset":
            return {"type": "list", "items_schema": shape(schema.get("items_schema", ANY), named)}
        case "dict":
            return {"type": "dict", "values_schema": shape(schema.get("values_schema", ANY), named)}
        case "dataclass":
            return _object(schema, named)
        case "function-before" | "function-wrap":
            return _translated(schema, named)
    if kind not in PLAIN:
        return ANY
    return {"type": kind} | {bound: schema[bound] for bound in BOUNDS if isinstance(schema.get(bound), int | float)}


def core_schema(given: Any) -> Any:
    """A shape as pydantic takes it, to make a validator of."""
    if isinstance(given, Mapping):
        if given.get("type") == "choices":
            return {"type": "function-plain", "function": {"type": "no-info", "function": _chooser(given)}}
        return {key: core_schema(value) for key, value in given.items()}
    return [core_schema(value) for value in given] if isinstance(given, list) else given


def keys(given: Shape | None, path: Sequence[str] = ()) -> tuple[str, ...]:
    """The keys of the object at `path` inside a shape; none where that cannot be told."""
    current = _object_in(given)
    for step in path:
        current = _object_in(current.get("fields", {}).get(step, {}).get("schema"))
    return tuple(current.get("fields", ()))


def spelling(take: Callable[[str], bool], choices: Iterable[str]) -> dict[str, bool]:
    """In which other spellings `take` takes every one of its `choices`.

    Returns:
        Whether "case" does not matter, and whether "dash" may stand for an underscore.
    """
    names = list(choices)
    dashed = [name.replace("_", "-") for name in names if "_" in name]
    return {
        "case": all(take(name.upper()) and take(name.lower()) for name in names),
        "dash": bool(dashed) and all(map(take, dashed)),
    }


def choice(value: str, choices: Iterable[Any], *, case: bool, dash: bool) -> str | None:
    """The one of `choices` that `value` is a spelling of; None where it is none of them.

    Args:
        value: As it was written.
        choices: Those that are no text stand for themselves and are passed over.
        case: Whether upper and lower case are the same.
        dash: Whether a dash and an underscore are the same.
    """

    def same(text: str) -> str:
        text = text.lower() if case else text
        return text.replace("-", "_") if dash else text

    return next((one for one in choices if isinstance(one, str) and same(one) == same(value)), None)


def _literal(schema: Mapping[str, Any]) -> Shape:
    if schema["type"] == "enum":
        # One that is looked up in a way of its own takes more than its values.
        expected = [] if schema.get("missing") else [member.value for member in schema["members"]]
        expected = expected if all(type(value) is str for value in expected) else []
    else:
        expected = list(schema["expected"])
    if not expected or not all(type(value) in {str, int, bool, type(None)} for value in expected):
        return ANY
    return {"type": "literal", "expected": expected}


def _object(schema: Mapping[str, Any], named: Mapping[str, Any]) -> Shape:
    inner = schema["schema"]
    config = schema.get("config") or {}
    if inner["type"] in {"function-before", "function-wrap"}:  # it sees the keys first
        if not _refuses(schema, {NONSENSE: 1}):
            return ANY
        inner = inner["schema"]
    if inner["type"] != "dataclass-args":
        return ANY
    fields = {
        field["name"]: {
            "type": "typed-dict-field",
            "schema": shape(field["schema"], named),
            **({} if field["schema"]["type"] == "default" else {"required": True}),
        }
        for field in inner["fields"]
        if field.get("init", True)
    }
    forbids = config.get("extra_fields_behavior") == "forbid"
    return {
        "type": "typed-dict",
        "total": False,
        "fields": fields,
        "extra_behavior": "forbid" if forbids else "ignore",
    }


def _translated(schema: Mapping[str, Any], named: Mapping[str, Any]) -> Shape:
    """Of a schema that a function of Python's stands before."""
    inner = schema
    while inner["type"] in {"function-before", "function-wrap", "function-after", "default", "nullable"}:
        inner = inner["schema"]
    if inner["type"] == "dataclass" and _refuses(schema, {NONSENSE: 1}):
        return shape(inner, named)
    if inner["type"] == "enum":
        names = {text for member in inner["members"] for text in (member.name, member.value) if isinstance(text, str)}
    elif inner["type"] == "literal":
        names = {text for text in inner["expected"] if isinstance(text, str)}
    else:
        return ANY
    validator = _validator(schema)
    if validator is None or not _refuses(schema, NONSENSE):
        return ANY

    def take(text: str) -> bool:
        return not _fails(validator, text)

    candidates = {spelt for name in names for spelt in (name, name.lower(), name.upper())} | {"auto", "none"}
    expected = sorted(filter(take, candidates))
    how = spelling(take, expected)
    if how["case"]:
        expected = sorted({text.lower(): text for text in reversed(expected)}.values())
    return {"type": "choices", "expected": expected, **how} if expected else ANY


def _object_in(given: Shape | None) -> Shape:
    """The object that a shape is, or may be."""
    if given is None:
        return {}
    inside: Collection[Any] = [given.get("schema"), *given.get("choices", ())]
    return given if "fields" in given else next(filter(None, (_object_in(one) for one in inside if one)), {})


def _chooser(given: Shape) -> Callable[[Any], Any]:
    expected, case, dash = [str(one) for one in given["expected"]], bool(given["case"]), bool(given["dash"])

    def choose(value: Any) -> Any:
        if isinstance(value, str) and choice(value, expected, case=case, dash=dash) is None:
            raise ValueError(f"Invalid value {value!r}. Valid options: {', '.join(expected)}")
        return value

    return choose


def _validator(schema: Any) -> SchemaValidator | None:
    try:
        return SchemaValidator(schema)
    except SchemaError:  # it refers to definitions that stand elsewhere
        return None


def _refuses(schema: Any, value: Any) -> bool:
    validator = _validator(schema)
    return validator is not None and _fails(validator, value)


def _fails(validator: SchemaValidator, value: Any) -> bool:
    try:
        validator.validate_python(value)
    except Exception:  # noqa: BLE001  # vLLM's validators raise what they like
        return True
    return False
