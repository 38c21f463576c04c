"""A name is registered only after the engine has taken its adapter, under a number of the server's own."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from art.vllm.serving_registry import AdapterRefusedError, load_adapter, unload_adapter


class Counter:
    def __init__(self) -> None:
        self.number = 0

    def inc(self, by: int) -> int:
        self.number += by
        return self.number


class Engine:
    """Answers `add_lora` as it is told, and notes what the HTTP layer knew meanwhile."""

    def __init__(self, serving_models: Any, answer: bool | Exception) -> None:
        self.serving_models = serving_models
        self.answer = answer
        self.known_meanwhile: list[str] = []

    async def add_lora(self, request: Any) -> bool:
        self.known_meanwhile = list(self.serving_models.lora_requests)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def load(serving_models: Any, answer: bool | Exception, name: str = "m@2") -> tuple[int, Engine]:
    engine = Engine(serving_models, answer)
    loading = load_adapter(engine, serving_models, SimpleNamespace, name=name, path=f"/{name}")
    return asyncio.run(loading), engine


@pytest.fixture
def serving_models() -> Any:
    models = SimpleNamespace(lora_requests={}, lora_id_counter=Counter())
    load(models, True, "m@1")
    return models


def test_name_is_registered_after_the_engine_took_it(serving_models: Any) -> None:
    number, engine = load(serving_models, True)
    assert engine.known_meanwhile == ["m@1"]
    request = serving_models.lora_requests["m@2"]
    assert (request.lora_name, request.lora_path, request.lora_int_id, number) == ("m@2", "/m@2", 2, 2)


@pytest.mark.parametrize("answer", [False, ValueError("no room")])
def test_refused_adapter_is_not_registered(serving_models: Any, answer: bool | Exception) -> None:
    with pytest.raises(AdapterRefusedError, match="answered False" if answer is False else "ValueError: no room"):
        load(serving_models, answer)
    assert list(serving_models.lora_requests) == ["m@1"]


def test_name_that_is_taken_is_refused_without_asking_the_engine(serving_models: Any) -> None:
    with pytest.raises(AdapterRefusedError, match="m@1 is registered already"):
        load(serving_models, True, "m@1")
    assert serving_models.lora_id_counter.number == 1


def test_unloading_forgets_the_name(serving_models: Any) -> None:
    assert unload_adapter(serving_models, name="m@1")
    assert not unload_adapter(serving_models, name="m@1")
    assert serving_models.lora_requests == {}
