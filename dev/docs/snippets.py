"""Find what is wrong with the Python examples of the documentation, without running them.

An example must compile; what it takes from `art` must exist; calls of our classes and functions must fit their
signatures; configuration written as a literal must pass our own checks. Variables are followed as far as that is
plain: through imports, assignments of our classes, `with`, annotated parameters, and the names in `_USUAL_NAMES`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import art
from art import dev
from art.dev.validate import validate_server_config
from art.local import LocalBackend
from art.pipeline_trainer import PipelineTrainer

_FENCE = re.compile(r"^(?P<indent> *)```python\n(?P<code>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """An example: where it is, and its code."""

    path: Path
    line: int
    code: str


@dataclass(frozen=True)
class _Instance:
    """Stands for an object of a class."""

    of: type


_USUAL_NAMES = {
    "model": _Instance(art.TrainableModel),
    "backend": _Instance(LocalBackend),
    "trainer": _Instance(PipelineTrainer),
}


def snippets(paths: Iterable[Path]) -> Iterator[Snippet]:
    """Give every Python example of Markdown files."""
    for path in paths:
        text = path.read_text(encoding="utf-8")
        for match in _FENCE.finditer(text):
            yield Snippet(path, text.count("\n", 0, match.start("code")) + 1, textwrap.dedent(match["code"]))


def faults(code: str) -> list[str]:
    """Say what is wrong with an example; each fault begins with its line."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
    try:
        tree = compile(code, "<example>", "exec", flags=flags)
    except SyntaxError as err:
        return [f"line {err.lineno}: {err.msg}"]
    checker = _Checker()
    checker.visit(tree)
    return checker.faults


class _Checker(ast.NodeVisitor):
    def __init__(self) -> None:
        self.faults: list[str] = []
        self._known: dict[str, Any] = {"art": art, **_USUAL_NAMES}

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if _is_ours(alias.name):
                self._import(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module is None or not _is_ours(node.module):
            return
        module = self._import(node, node.module)
        for alias in node.names if module is not None else ():
            self._known[alias.asname or alias.name] = self._member(node, module, alias.name)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._learn_parameters(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._learn_parameters(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self._learn(target, self._value_of(node.value))

    def visit_withitem(self, node: ast.withitem) -> None:
        self.visit(node.context_expr)
        if node.optional_vars is not None:
            self._learn(node.optional_vars, self._value_of(node.context_expr))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            self._resolve(node, report=True)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        called = self._resolve(node.func)
        if called is not None:
            self._check_arguments(node, called)

    def _learn_parameters(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for parameter in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            annotated = self._resolve(parameter.annotation) if parameter.annotation is not None else None
            if inspect.isclass(annotated):
                self._known[parameter.arg] = _Instance(annotated)
            elif parameter.annotation is not None:
                self._known.pop(parameter.arg, None)
        self.generic_visit(node)

    def _learn(self, target: ast.expr, value: Any) -> None:
        if not isinstance(target, ast.Name):
            return
        if value is None and target.id not in _USUAL_NAMES:
            self._known.pop(target.id, None)
        elif value is not None:
            self._known[target.id] = value

    def _value_of(self, node: ast.expr) -> Any:
        """Tell what an expression gives: an object of one of our classes, or something of ours itself."""
        if isinstance(node, ast.Call):
            called = self._resolve(node.func)
            return _Instance(called) if inspect.isclass(called) else None
        return self._resolve(node)

    def _resolve(self, node: ast.expr | None, *, report: bool = False) -> Any:
        """Find what of ours a name or a dotted name stands for; None where that is not known."""
        if isinstance(node, ast.Name):
            return self._known.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._resolve(node.value)
            return None if owner is None else self._member(node, owner, node.attr, report=report)
        return None

    def _member(self, node: ast.AST, owner: Any, name: str, *, report: bool = True) -> Any:
        holder = owner.of if isinstance(owner, _Instance) else owner
        found = inspect.getattr_static(holder, name, None) if inspect.isclass(holder) else getattr(holder, name, None)
        if found is None and isinstance(holder, ModuleType):
            found = _submodule(holder, name)
        if found is None and report and not _has_field(holder, name):
            what = getattr(holder, "__qualname__", getattr(holder, "__name__", str(holder)))
            self._report(node, f"{what} has no {name!r}")
        return found if inspect.isclass(found) or inspect.isroutine(found) or isinstance(found, ModuleType) else None

    def _import(self, node: ast.AST, name: str) -> ModuleType | None:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            self._report(node, f"there is no module {name}")
            return None

    def _check_arguments(self, node: ast.Call, called: Any) -> None:
        names = [keyword.arg for keyword in node.keywords]
        for keyword in node.keywords:
            self._check_configuration(keyword)
        if any(isinstance(argument, ast.Starred) for argument in node.args) or None in names:
            return
        try:
            signature = inspect.signature(called)
        except (TypeError, ValueError):
            return  # a typed dictionary, or something built in
        is_method = isinstance(node.func, ast.Attribute) and isinstance(self._resolve(node.func.value), _Instance)
        is_bound = is_method and inspect.isfunction(called)
        values = [None] * (len(node.args) + is_bound)
        try:
            signature.bind(*values, **dict.fromkeys(str(name) for name in names))
        except TypeError as err:
            self._report(node, f"{called.__qualname__}: {err}")

    def _check_configuration(self, keyword: ast.keyword) -> None:
        if keyword.arg not in ("_internal_config", "_openai_client_config"):
            return
        try:
            value = ast.literal_eval(keyword.value)
        except ValueError:
            return  # built from variables
        try:
            if keyword.arg == "_internal_config":
                dev.validate_internal_config(value)
                dev.validate_dedicated_config(value)
            else:
                validate_server_config(value)
        except (ValueError, NotImplementedError) as err:
            self._report(keyword, str(err))

    def _report(self, node: Any, fault: str) -> None:
        self.faults.append(f"line {node.lineno}: {fault}")


def _is_ours(module: str) -> bool:
    return module.split(".")[0] == "art"


def _submodule(package: ModuleType, name: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"{package.__name__}.{name}")
    except ModuleNotFoundError:
        return None


def _has_field(holder: Any, name: str) -> bool:
    annotated = {key for base in getattr(holder, "__mro__", ()) for key in getattr(base, "__annotations__", {})}
    return name in annotated or name in getattr(holder, "model_fields", {}) or _sets_itself(holder, name)


def _sets_itself(holder: Any, name: str) -> bool:
    """Whether a class without annotations sets an attribute when it is made."""
    if not inspect.isclass(holder) or not inspect.isfunction(holder.__init__):
        return False
    return re.search(rf"\bself\.{re.escape(name)}\b\s*[:=]", inspect.getsource(holder.__init__)) is not None
