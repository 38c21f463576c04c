"""Compare a recorded signature with what is installed: `differences(spec)` says in words what does not fit.

More is always allowed: further parameters with defaults, further fields with defaults, a keyword that may also be given
by position. Types are not compared; what a type means to a caller is for behaviour tests.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import functools
import importlib
import inspect
import typing
from collections.abc import Iterator
from typing import Any, cast

import pydantic
from pydantic_core import PydanticUndefined

from tests.contract.signature_specs import MISSING, OVERLOAD, UNREADABLE, ParameterSpec, Spec

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BASES = {
    "BaseModel": pydantic.BaseModel,
    "pydantic.BaseModel": pydantic.BaseModel,
    "RuntimeError": RuntimeError,
    "Exception": Exception,
    "str": str,
    "Enum": enum.Enum,
    "NamedTuple": tuple,
}
_STREAMS = ("AsyncIterator", "AsyncGenerator")


class Absent(Exception):
    """The name, or a part of the path to it, does not exist."""


def differences(spec: Spec, *, in_order: bool = True) -> list[str]:
    """Say in what the installed package differs from a record; nothing when it fits.

    Args:
        spec: The record.
        in_order: Whether the parameters must stand where the record has them, or only be there by name.
    """
    name = OVERLOAD.sub("", spec.name)
    if name != spec.name:
        return []  # overloads are for type checkers; the function itself has a record of its own
    try:
        if spec.form == "field":
            return list(_check_field(_owner(spec, name), name.rpartition(".")[2], spec.default))
        value = _find(spec.module, name, is_static=spec.marks.startswith(("@property", "@cached_property")))
    except Absent as absent:
        return [str(absent)]
    if spec.form in ("def", "async def"):
        return list(_check_function(spec, value, in_order))
    checks = {
        "class": _check_class,
        "value": _check_value,
        "same": _check_same,
        "all": _check_all,
    }
    return list(checks[spec.form](spec, value))


def _find(module_name: str, name: str, *, is_static: bool = False) -> Any:
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise Absent(f"module {module_name} cannot be imported: {error}") from error
    *path, last = name.split(".")
    for part in path:
        found = _attribute(found, part, name)
    if is_static and inspect.isclass(found):
        try:
            return inspect.getattr_static(found, last)
        except AttributeError as error:
            raise Absent(f"{last} is missing in {found.__name__}") from error
    return _attribute(found, last, name)


def _attribute(owner: Any, part: str, name: str) -> Any:
    if inspect.isclass(owner) and part.startswith("__") and not part.endswith("__"):
        part = f"_{owner.__name__}{part}"
    try:
        return getattr(owner, part)
    except AttributeError as error:
        raise Absent(f"{part} is missing (on the way to {name})") from error


def _owner(spec: Spec, name: str) -> Any:
    return _find(spec.module, name.rpartition(".")[0])


# Functions --------------------------------------------------------------------------------------------------


def _check_function(spec: Spec, value: Any, in_order: bool) -> Iterator[str]:
    for mark, kind in (("@property", property), ("@cached_property", functools.cached_property)):
        if spec.marks == mark:
            if not isinstance(value, property | functools.cached_property):
                yield f"expected a {kind.__name__}, found {type(value).__name__}"
            return
    if not callable(value):
        yield f"expected a function, found {type(value).__name__}"
        return
    yield from _check_kind(spec, value)
    try:
        actual = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError) as error:
        yield f"its signature cannot be read: {error}"
        return
    specs = spec.parameters
    if specs and specs[0].name in ("self", "cls") and not (actual and actual[0].name == specs[0].name):
        specs = specs[1:]  # bound
    yield from _check_parameters(specs, actual, spec.takes_any, in_order)


def _check_kind(spec: Spec, value: Any) -> Iterator[str]:
    if "contextmanager" in spec.marks or spec.name.rpartition(".")[2] in ("__init__", "__new__"):
        return
    is_coroutine = asyncio.iscoroutinefunction(value)
    is_stream = spec.returns.startswith(_STREAMS)
    if spec.form == "async def" and not is_stream and not is_coroutine:
        yield "expected a coroutine function"
    if spec.form == "def" and is_coroutine:
        yield "expected no coroutine function"
    if is_stream and is_coroutine:
        yield "expected an async iterator, found a coroutine function"


def _check_parameters(
    specs: list[ParameterSpec], actual: list[inspect.Parameter], takes_any: str, in_order: bool
) -> Iterator[str]:
    by_name = {parameter.name: parameter for parameter in actual}
    kinds = {parameter.kind for parameter in actual}
    takes_keywords = inspect.Parameter.VAR_KEYWORD in kinds
    if takes_any.endswith("**") and not takes_keywords:
        yield "expected to take any keyword"
    if takes_any in ("*", "***") and inspect.Parameter.VAR_POSITIONAL not in kinds:
        yield "expected to take any number of arguments"
    positional = [parameter.name for parameter in actual if parameter.kind in _POSITIONAL]
    for position, wanted in enumerate(specs):
        found = by_name.get(wanted.name)
        if found is None:
            yield f"parameter {wanted.name} is missing"
            continue
        if in_order and not wanted.is_keyword_only and positional[position : position + 1] != [wanted.name]:
            yield f"parameter {wanted.name} is expected at position {position}, found {positional}"
        if wanted.is_keyword_only and found.kind not in _BY_NAME:
            yield f"parameter {wanted.name} cannot be given by name"
        yield from _check_default(f"parameter {wanted.name}", wanted.default, found.default, inspect.Parameter.empty)
    known = {wanted.name for wanted in specs}
    for parameter in actual:
        is_optional = parameter.default is not inspect.Parameter.empty or parameter.kind not in (
            *_POSITIONAL,
            inspect.Parameter.KEYWORD_ONLY,
        )
        if parameter.name not in known and not is_optional:
            yield f"parameter {parameter.name} is new and has no default"


def _check_default(what: str, wanted: Any, found: Any, empty: Any) -> Iterator[str]:
    if wanted is MISSING:
        return  # it had to be given, so a default changes nothing for callers
    if found is empty:
        yield f"{what} must have a default"
    elif wanted is not UNREADABLE and not _is_same_default(wanted, found):
        yield f"{what} has the default {found!r}, expected {wanted!r}"


def _is_same_default(wanted: Any, found: Any) -> bool:
    if isinstance(found, enum.Enum):
        found = found.value
    if type(found).__module__ == "typer.models":
        found = found.default
    if isinstance(wanted, list | tuple) and isinstance(found, list | tuple):
        return list(wanted) == list(found)
    return bool(found == wanted) and isinstance(found, bool) == isinstance(wanted, bool)


# Classes, fields, constants ----------------------------------------------------------------------------------


def _check_class(spec: Spec, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield f"expected a class, found {type(value).__name__}"
        return
    if spec.marks.startswith("@dataclass"):
        if not dataclasses.is_dataclass(value):
            yield "expected a dataclass"
        elif "frozen=True" in spec.marks and not cast(Any, value).__dataclass_params__.frozen:
            yield "expected a frozen dataclass"
    for base in spec.text.removeprefix("class(").rstrip(")").split(", "):
        if base == "TypedDict" and not typing.is_typeddict(value):
            yield "expected a TypedDict"
        if base == "Protocol" and not getattr(value, "_is_protocol", False):
            yield "expected a protocol"
        if base in _BASES and not issubclass(value, _BASES[base]):
            yield f"expected a subclass of {base}"


def _check_field(owner: Any, name: str, wanted: Any) -> Iterator[str]:
    if inspect.isclass(owner) and issubclass(owner, pydantic.BaseModel):
        found = owner.model_fields.get(name)
        if found is None:
            if name not in owner.__private_attributes__:
                yield f"field {name} is missing"
            return
        yield from _check_default("field", wanted, found.get_default(call_default_factory=True), PydanticUndefined)
    elif dataclasses.is_dataclass(owner):
        fields = {entry.name: entry for entry in dataclasses.fields(owner)}
        if name not in fields:
            yield f"field {name} is missing"
            return
        entry = fields[name]
        has_factory = entry.default_factory is not dataclasses.MISSING
        default = cast(Any, entry.default_factory)() if has_factory else entry.default
        yield from _check_default("field", wanted, default, dataclasses.MISSING)
    elif name not in inspect.get_annotations(owner) and not any(
        name in getattr(base, "__annotations__", {}) for base in getattr(owner, "__mro__", ())
    ):
        yield f"field {name} is missing"


def _check_value(spec: Spec, value: Any) -> Iterator[str]:
    if isinstance(value, enum.Enum):
        value = value.value
    if spec.default is UNREADABLE or spec.default is MISSING:
        return
    if not _is_same_default(spec.default, value):
        yield f"is {value!r}, expected {spec.default!r}"


def _check_same(spec: Spec, value: Any) -> Iterator[str]:
    module, _, name = spec.text.partition(":")
    if (module, name) == (spec.module, spec.name):
        return  # a submodule
    try:
        other = _find(module, name)
    except Absent:
        return  # reported where it lives
    if value is not other:
        yield f"is not the same object as {spec.text}"


def _check_all(spec: Spec, value: Any) -> Iterator[str]:
    missing = sorted(set(spec.default) - set(value))
    if missing:
        yield f"lacks {', '.join(missing)}"
