"""The generated parts of the documentation: tables made from the code, by name.

A page asks for a part with a line `<!-- generated: NAME -->`; `PARTS` lists the names. Only the light package is
imported: neither torch nor vllm has to be installed. `LocalBackend` is read from its source for that reason.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import griffe
import pydantic

import art
from art import dev, env, errors
from art.dev import settings
from art.pipeline_trainer import PipelineTrainer
from dev.docs import meanings

SOURCES = Path(__file__).resolve().parents[2] / "src"
MARKER = re.compile(r"^<!-- generated: (?P<name>[^>]+?) -->$", re.MULTILINE)
_ABSENT = object()
_LONG = 60


@dataclasses.dataclass(frozen=True)
class Entry:
    """One row of a table: a setting, its type and default as text, and what it means."""

    name: str
    type: str
    default: str
    meaning: str


def fill_in(markdown: str) -> str:
    """Replace each marker of a page by its part.

    Raises:
        KeyError: There is no part of that name.
    """
    return MARKER.sub(lambda match: PARTS[match["name"]]().rstrip(), markdown)


def public_errors() -> list[type[errors.ARTError]]:
    """Return every exception of `art.errors`, in the order in which it defines them."""
    found = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.ARTError)]
    return [error for error in found if error.__module__ == errors.__name__]


# Entries: what a section can be told ------------------------------------------------------------------------------


def dictionary_entries(section: Any, defaults: Mapping[str, Any], texts: Mapping[str, str]) -> list[Entry]:
    """Return the keys of a typed dictionary that have a text, in the order of the texts."""
    hints = get_type_hints(section, include_extras=False)
    return [
        Entry(key, type_text(hints[key]), value_text(defaults.get(key, _ABSENT)), text) for key, text in texts.items()
    ]


def other_keys(section: Any, texts: Mapping[str, str]) -> list[str]:
    """Return the keys of a typed dictionary that have no text."""
    return sorted(key for key in section.__annotations__ if key not in texts)


def settings_entries(section: Any, settings_type: Any) -> list[Entry]:
    """Return the keys of a typed dictionary, with defaults and meanings of the dataclass that it becomes."""
    hints = get_type_hints(section)
    described = described_names(inspect.getdoc(settings_type) or "")
    defaults = {field.name: _default_of(field) for field in dataclasses.fields(settings_type)}
    return [Entry(key, type_text(hints[key]), value_text(defaults[key]), described[key]) for key in sorted(hints)]


def model_entries(model: type[pydantic.BaseModel]) -> list[Entry]:
    """Return the fields of a pydantic model whose docstring describes them."""
    described = described_names(inspect.getdoc(model) or "")
    return [
        Entry(name, type_text(field.annotation), value_text(field.default), described[name])
        for name, field in model.model_fields.items()
    ]


def parameter_entries(function: Callable[..., Any]) -> list[Entry]:
    """Return the parameters of a function, without `self`, with their meanings from its docstring."""
    described = described_names(inspect.getdoc(function) or "", "parameters")
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    return [Entry(p.name, str(p.annotation), value_text(p.default), described[p.name]) for p in parameters]


def source_entries(path: str, *, documented_by: str | None = None) -> list[Entry]:
    """Return the parameters of a function of `art.local.backend`, such as "LocalBackend.train", from its source."""
    package = griffe.load("art.local.backend", search_paths=[str(SOURCES)], allow_inspection=False)
    function = package[path]
    docstring = package[documented_by or path].docstring
    described = described_names(docstring.value if docstring else "", "parameters")
    return [
        Entry(p.name, str(p.annotation), _source_default(p.default), described[p.name])
        for p in function.parameters
        if p.name != "self"
    ]


def environment_entries() -> list[Entry]:
    """Return every environment variable."""
    kinds = {float: "number", bool: "1 or 0", str: "text", NoneType: "text"}
    return [
        Entry(
            variable.name,
            f"{kinds[type(variable.default)]}{f', {variable.unit}' if variable.unit else ''}",
            "unset" if variable.default is None else f"{variable.default:g}",
            variable.meaning,
        )
        for variable in env.VARIABLES
    ]


def described_names(docstring: str, kind: str = "attributes") -> dict[str, str]:
    """Return what a Google-style docstring says of each name under "Attributes:" or "Args:"."""
    sections = griffe.Docstring(docstring).parse("google", warnings=False)
    return {
        item.name: " ".join(item.description.split())
        for section in sections
        if section.kind.value == kind
        for item in section.value
    }


def _default_of(field: dataclasses.Field[Any]) -> object:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else _ABSENT


def _source_default(default: object) -> str:
    return "" if default is None else f"`{default}`"


# Texts ------------------------------------------------------------------------------------------------------------


def type_text(hint: Any) -> str:
    """Write a type as a reader would: literals as their values, enumerations as text."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return type_text(args[0])
    if origin in (Union, UnionType):
        return " | ".join(dict.fromkeys(type_text(arg) for arg in args))
    if origin is Literal:
        return " | ".join(f'"{arg}"' if isinstance(arg, str) else str(arg) for arg in args)
    if origin is not None:
        inner = ", ".join("…" if arg is Ellipsis else type_text(arg) for arg in args)
        return f"{origin.__name__}[{inner}]"
    if hint is NoneType:
        return "None"
    if hint is Any:
        return "any"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "str"
    return getattr(hint, "__name__", str(hint))


def value_text(value: object) -> str:
    """Write a default; nothing for none."""
    if value is _ABSENT or value is inspect.Parameter.empty:
        return ""
    if type(value).__name__ == "PydanticUndefinedType":
        return ""
    if isinstance(value, tuple):
        value = list(value)
    text = repr(value).replace("'", '"')
    return f"`{text}`"


def table(entries: Iterable[Entry], *, prefix: str = "") -> str:
    """Lay entries out as a table; with a prefix each name can be linked to, as `#prefix-name`."""
    rows = ["| name | type | default | meaning |", "| --- | --- | --- | --- |"]
    for entry in entries:
        anchor = f'<a id="{prefix}-{entry.name}"></a>' if prefix else ""
        default = entry.default
        if len(default) > _LONG:
            default = default.replace(", ", ",<br>") if "`" not in default else _wrapped_code(default)
        rows.append(f"| {anchor}`{entry.name}` | {_code(entry.type)} | {default} | {_cell(entry.meaning)} |")
    return "\n".join(rows) + "\n"


def key_list(keys: Iterable[str]) -> str:
    """Write keys one after another."""
    return ", ".join(f"`{key}`" for key in keys) + "\n"


def error_text(error: type[errors.ARTError]) -> str:
    """Say what an exception is: its meaning, what else catches it, and what it carries."""
    docstring = inspect.getdoc(error) or ""
    bases = [base for base in error.__mro__[1:] if base not in (object, Exception, BaseException)]
    lines = [
        docstring.split("\n\nAttributes:")[0].replace("\n", " ").replace("  ", "\n\n"),
        "",
        "Caught by: " + ", ".join(f"`{base.__name__}`" for base in bases) + "." if bases else "",
    ]
    described = described_names(docstring)
    if described:
        lines += ["", "It carries:", "", *(f"- `{name}`: {_cell(text)}" for name, text in described.items())]
    return "\n".join(lines) + "\n"


def _wrapped_code(default: str) -> str:
    return "<br>".join(f"`{part}`" for part in default.strip("`").replace(", ", ",\n").split("\n"))


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# What pages may ask for -------------------------------------------------------------------------------------------

_INIT_DEFAULTS = settings.INIT_DEFAULTS
_ENGINE_DEFAULTS = {**settings.ENGINE_DEFAULTS, "max_loras": settings.ServingSettings().max_live_adapters + 1}


def _dictionary(section: Any, defaults: Mapping[str, Any], texts: Mapping[str, str], prefix: str) -> str:
    return table(dictionary_entries(section, defaults, texts), prefix=prefix)


def _cpu_defaults() -> str:
    values = {
        **{f"engine_args.{key}": value for key, value in settings.CPU_ENGINE_DEFAULTS.items()},
        "engine_args.dtype, init_args.dtype": settings.CPU_DTYPE,
        "trainer_args.optim": settings.CPU_OPTIMIZER,
        "init_args.load_in_4bit": False,
    }
    rows = [f"| `{name}` | {value_text(value)} |" for name, value in values.items()]
    return "\n".join(["| setting | on a machine without CUDA |", "| --- | --- |", *rows]) + "\n"


PARTS: dict[str, Callable[[], str]] = {
    "LocalBackend": lambda: table(source_entries("LocalBackend.__init__", documented_by="LocalBackend")),
    "LocalBackend.train": lambda: table(source_entries("LocalBackend.train")),
    "TrainConfig": lambda: table(model_entries(art.TrainConfig)),
    "TrainSFTConfig": lambda: table(model_entries(art.TrainSFTConfig)),
    "dev.TrainConfig": lambda: table(settings_entries(dev.TrainConfig, settings.TrainSettings), prefix="train"),
    "serving": lambda: table(settings_entries(dev.ServingArgs, settings.ServingSettings), prefix="serving"),
    "InternalModelConfig": lambda: _dictionary(dev.InternalModelConfig, {}, meanings.MODEL, "model"),
    "init_args": lambda: _dictionary(dev.InitArgs, _INIT_DEFAULTS, meanings.INIT, "init"),
    "init_args: others": lambda: key_list(other_keys(dev.InitArgs, meanings.INIT)),
    "peft_args": lambda: _dictionary(dev.PeftArgs, settings.PEFT_DEFAULTS, meanings.PEFT, "peft"),
    "peft_args: others": lambda: key_list(other_keys(dev.PeftArgs, meanings.PEFT)),
    "trainer_args": lambda: _dictionary(dev.TrainerArgs, settings.TRAINER_DEFAULTS, meanings.TRAINER, "trainer"),
    "trainer_args: others": lambda: key_list(other_keys(dev.TrainerArgs, meanings.TRAINER)),
    "engine_args": lambda: _dictionary(dev.EngineArgs, _ENGINE_DEFAULTS, meanings.ENGINE, "engine"),
    "engine_args: others": lambda: key_list(other_keys(dev.EngineArgs, meanings.ENGINE)),
    "OpenAIServerConfig": lambda: _dictionary(dev.OpenAIServerConfig, {}, meanings.SERVER_CONFIG, "config"),
    "server_args": lambda: _dictionary(dev.ServerArgs, settings.SERVER_DEFAULTS, meanings.SERVER, "server"),
    "server_args: others": lambda: key_list(other_keys(dev.ServerArgs, meanings.SERVER)),
    "CPU defaults": _cpu_defaults,
    "PipelineTrainer": lambda: table(parameter_entries(PipelineTrainer.__init__)),
    "environment": lambda: table(environment_entries()),
    **{f"error {error.__name__}": lambda error=error: error_text(error) for error in public_errors()},  # type: ignore[misc]
}
