"""Why an engine has a slot for every live step and for one more: what vLLM does when it has fewer. Needs no engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("default")]

IN_BATCH = (1, 2)


class Slots:
    """vLLM's bookkeeping of adapters and slots, without a model: no weights are copied."""

    def __init__(self, number: int) -> None:
        from vllm.lora.model_manager import LoRALRUCache, LRUCacheLoRAModelManager

        manager: Any = object.__new__(LRUCacheLoRAModelManager)
        manager.lora_config = SimpleNamespace(max_loras=number, max_cpu_loras=10)
        manager.lora_index_to_id = [None] * number
        manager.modules = {}
        manager._last_mapping = None
        manager._registered_adapters = LoRALRUCache(10, manager.deactivate_adapter)
        manager._active_adapters = LoRALRUCache(number, manager._deactivate_adapter)
        manager._set_adapter_mapping = self._note_places
        self.manager = manager
        self.places_in_use: list[int | None] = []

    def load(self, number: int) -> None:
        """Do what `add_lora` does: register, and take a slot."""
        self.manager._registered_adapters[number] = SimpleNamespace(id=number)
        self.manager.activate_adapter(number)

    def run_step(self) -> list[int]:
        """Do what a step of the engine does; return the adapters that answer for those in the batch."""
        for number in IN_BATCH:
            self.manager.activate_adapter(number)
        self.manager.set_adapter_mapping(SimpleNamespace(batch=IN_BATCH))
        now = self.manager.lora_index_to_id
        return [now[self.places_in_use.index(number)] for number in IN_BATCH]

    def _note_places(self, mapping: Any) -> None:
        self.places_in_use = list(self.manager.lora_index_to_id)


def answering_after_a_load(slots: Slots) -> list[int]:
    for number in IN_BATCH:
        slots.load(number)
    assert slots.run_step() == [*IN_BATCH]
    slots.load(3)
    return slots.run_step()


def test_with_a_slot_to_spare_each_request_keeps_its_adapter() -> None:
    assert answering_after_a_load(Slots(len(IN_BATCH) + 1)) == [*IN_BATCH]


def test_without_one_requests_are_answered_with_each_others_weights() -> None:
    """Once this fails, vLLM notices that adapters changed places, and the slot to spare may go."""
    assert answering_after_a_load(Slots(len(IN_BATCH))) == [2, 1]
