"""Read recorded signatures, as in `data/*.json`: what a name is, its parameters, its default.

A record maps "module:qualified.name" to one of

- `def (…) -> T` and `async def (…) -> T`, with `@` marks such as `@property` or `@staticmethod` before them;
- `class(Bases)`, with `@dataclass` before it;
- `field: T = default`, a field of a class;
- `value: text`, a constant;
- `= module:name`, the same object as that one;
- a JSON list, for `__all__`.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DATA_DIR = Path(__file__).parent / "data"
# Calls whose first argument, or `default`, is the default that callers see; `...` there means that there is none.
_DESCRIBED_DEFAULTS = ("typer.Argument", "typer.Option", "pydantic.Field", "Field")
OVERLOAD = re.compile(r"@overload\d+$")
_FORM = re.compile(r"(?P<marks>(?:@.*? )*?)(?P<form>async def|def|class|field:|value:|=|\[)")


class Missing:
    """Stands for a default that there is not."""

    def __repr__(self) -> str:
        return "<none>"


MISSING = Missing()


class Unreadable:
    """Stands for a default whose text is no literal."""


UNREADABLE = Unreadable()


@dataclass(frozen=True)
class ParameterSpec:
    """One recorded parameter.

    Attributes:
        name: Its name.
        is_keyword_only: Whether it cannot be given by position.
        default: Its default; `MISSING` for none, `UNREADABLE` for one that is no literal.
    """

    name: str
    is_keyword_only: bool
    default: Any


@dataclass(frozen=True)
class Spec:
    """One recorded name.

    Attributes:
        key: "module:qualified.name".
        marks: Decorators, such as "@property".
        form: "def", "async def", "class", "field", "value", "same" or "all".
        text: The record without its marks.
        parameters: Of a function, in order.
        takes_any: "*" and "**" where the function takes any arguments.
        default: Of a field or constant.
    """

    key: str
    marks: str
    form: str
    text: str
    parameters: list[ParameterSpec] = field(default_factory=list)
    takes_any: str = ""
    default: Any = MISSING

    @property
    def module(self) -> str:
        return self.key.partition(":")[0]

    @property
    def name(self) -> str:
        return self.key.partition(":")[2]

    @property
    def returns(self) -> str:
        return self.text.rpartition("->")[2].strip(" '\"")


def load(name: str) -> Any:
    """Read one of the recorded files."""
    return json.loads((DATA_DIR / name).read_text())


def parse(key: str, text: str) -> Spec:
    """Read one record."""
    match = _FORM.match(text)
    assert match is not None, (key, text)
    marks, form = match["marks"].strip(), match["form"].rstrip(":")
    rest = text[len(match["marks"]) :]
    if form in ("def", "async def"):
        parameters, takes_any = _read_parameters(rest)
        return Spec(key, marks, form, rest, parameters, takes_any)
    if form == "[":
        return Spec(key, marks, "all", rest, default=json.loads(rest))
    if form == "=":
        return Spec(key, marks, "same", rest.removeprefix("= "))
    if form == "field":
        annotation, equals, default = rest.removeprefix("field: ").partition(" = ")
        return Spec(key, marks, form, annotation, default=read_default(default) if equals else MISSING)
    if form == "value" and key.endswith(":__all__"):
        return Spec(key, marks, "all", rest, default=read_default(rest.rpartition(" = ")[2]))
    if form == "value":
        return Spec(key, marks, form, rest, default=read_default(rest.removeprefix("value: ").rpartition(" = ")[2]))
    return Spec(key, marks, form, rest)


def read_default(text: str) -> Any:
    """Evaluate the text of a default where it is a literal or a field's empty container.

    `<long>` stands for a text that was left out: whether there is a default in it cannot be told.
    """
    if text == "<long>":
        return MISSING
    factory = re.search(r"default_factory=(list|dict|set|Counter)\b", text)
    if factory is not None:
        return {"list": [], "dict": {}, "set": set(), "Counter": {}}[factory[1]]
    try:
        tree = ast.parse(text, mode="eval").body
        if isinstance(tree, ast.Call) and ast.unparse(tree.func) in _DESCRIBED_DEFAULTS:
            tree = next((kw.value for kw in tree.keywords if kw.arg == "default"), None) or tree.args[0]
        value = ast.literal_eval(tree)
    except (ValueError, SyntaxError, IndexError):
        return UNREADABLE
    return MISSING if value is ... else value


def _read_parameters(text: str) -> tuple[list[ParameterSpec], str]:
    head = re.sub(r"^(async )?def ", "def f", text)
    tree = ast.parse(f"{head}: pass").body[0]
    assert isinstance(tree, ast.FunctionDef)
    arguments = tree.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [
        *[None] * (len(positional) - len(arguments.defaults)),
        *arguments.defaults,
    ]
    found = [
        ParameterSpec(argument.arg, False, MISSING if default is None else read_default(ast.unparse(default)))
        for argument, default in zip(positional, defaults, strict=True)
    ]
    found += [
        ParameterSpec(argument.arg, True, MISSING if default is None else read_default(ast.unparse(default)))
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    return found, "*" * (arguments.vararg is not None) + ("**" if arguments.kwarg is not None else "")
