"""Every recorded signature fits what is installed, but for the differences that are intended.

Recorded are release 0.5.17, and what 0.5.18 added or changed; either spelling has to work.
"""

from __future__ import annotations

import fnmatch
import functools
import itertools
import warnings

import pytest

from tests.contract.intended_differences import INTENDED, KEPT_PRIVATE_NAMES
from tests.contract.signature_checks import differences
from tests.contract.signature_specs import Spec, load, parse

Found = dict[str, list[str]]


@functools.cache
def recorded() -> list[tuple[Spec, bool]]:
    """Give every record that scripts may rely on, and whether the order of its parameters counts."""
    delta = load("signatures-0.5.18-delta.json")
    changed = {key: change["to"] for key, change in delta["changed"].items()}
    in_order = {**load("signatures.json"), **delta["added"]}
    records = [(parse(key, text), True) for key, text in in_order.items()]
    records += [(parse(key, text), False) for key, text in changed.items()]
    return [(spec, in_order) for spec, in_order in records if not is_private(spec)]


def is_private(spec: Spec) -> bool:
    parts = spec.name.split(".")
    has_underscore = any(part.startswith("_") and not part.endswith("__") for part in parts)
    return has_underscore and not any(fnmatch.fnmatchcase(spec.key, kept) for kept in KEPT_PRIVATE_NAMES)


@functools.cache
def found() -> Found:
    """Compare every record, and give the differences by name."""
    by_name: Found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages that the modules import
        for spec, in_order in recorded():
            by_name.setdefault(spec.key, []).extend(differences(spec, in_order=in_order))
    return {key: said for key, said in by_name.items() if said}


def modules() -> list[str]:
    return sorted({spec.module for spec, _ in recorded()})


@pytest.mark.parametrize("module", modules())
def test_module_keeps_the_recorded_signatures(module: str) -> None:
    unintended = {
        key: said
        for key, said in found().items()
        if key.partition(":")[0] == module and not any(fnmatch.fnmatchcase(key, pattern) for pattern in INTENDED)
    }

    assert unintended == {}


@pytest.mark.parametrize("pattern", sorted(INTENDED))
def test_intended_difference_is_still_one(pattern: str) -> None:
    assert fnmatch.filter(found(), pattern), "nothing differs there any more: take the entry out"


@pytest.mark.parametrize("pattern", KEPT_PRIVATE_NAMES)
def test_kept_private_name_is_a_recorded_one(pattern: str) -> None:
    assert fnmatch.filter([spec.key for spec, _ in recorded()], pattern)


BROKEN = """
import asyncio, dataclasses

async def f(b, a, *, c=2): ...
def g(a): ...
async def h(a, extra): ...
@dataclasses.dataclass
class D:
    n: int = 2
class E: ...
one = 2
"""
FAULTS = {
    "m:f": ("async def (a, b, *, c: int=2)", 2),
    "m:g": ("async def (a) -> None", 1),
    "m:h": ("async def (a) -> None", 1),
    "m:D": ("@dataclass(frozen=True) class()", 1),
    "m:D.n": ("field: int = 3", 1),
    "m:D.k": ("field: int", 1),
    "m:E": ("class(RuntimeError)", 1),
    "m:one": ("value: 1", 1),
    "m:two": ("def () -> None", 1),
    "m:E.run": ("@property def (self) -> int", 1),
    "nowhere:x": ("= m:f", 1),
}


@pytest.mark.parametrize("key", FAULTS)
def test_comparison_sees_each_kind_of_fault(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import ModuleType

    module = ModuleType("m")
    monkeypatch.setitem(sys.modules, "m", module)
    exec(BROKEN, module.__dict__)
    text, faults = FAULTS[key]

    assert len(differences(parse(key, text))) == faults


def test_comparison_accepts_what_is_more_than_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import ModuleType

    module = ModuleType("m")
    monkeypatch.setitem(sys.modules, "m", module)
    exec(BROKEN, module.__dict__)
    records = {"m:f": "async def (b, a)", "m:g": "def (a, /) -> None", "m:D": "@dataclass class()", "m:one": "value: 2"}

    said = [differences(parse(key, text)) for key, text in records.items()]

    assert list(itertools.chain(*said)) == []
