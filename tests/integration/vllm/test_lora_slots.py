"""Why adapters are loaded in a way of our own: what vLLM does where a batch uses every slot. Needs no engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from art.vllm.lora_slots import SlotKeeper

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
        self.model_runner = SimpleNamespace(lora_manager=SimpleNamespace(_adapter_manager=manager))
        self.places_in_use: list[int | None] = []

    def add_lora(self, request: Any) -> bool:
        """Do what vLLM's worker does: register, and take a slot."""
        self.manager._registered_adapters[request.lora_int_id] = SimpleNamespace(id=request.lora_int_id)
        self.manager.activate_adapter(request.lora_int_id)
        return True

    def run_step(self) -> list[int]:
        """Do what a step of the engine does; return the adapters that answer for those in the batch."""
        for number in IN_BATCH:
            self.manager.activate_adapter(number)
        self.manager.set_adapter_mapping(SimpleNamespace(batch=IN_BATCH))
        now = self.manager.lora_index_to_id
        return [now[self.places_in_use.index(number)] for number in IN_BATCH]

    def _note_places(self, mapping: Any) -> None:
        self.places_in_use = list(self.manager.lora_index_to_id)


class KeptSlots(Slots, SlotKeeper):
    """The same in a worker that has the extension."""


def request(number: int) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(lora_name=f"m@{number}", lora_int_id=number, lora_path="/adapter")


def answering_after_a_load(slots: Slots) -> list[int]:
    for number in IN_BATCH:
        slots.add_lora(request(number))
    assert slots.run_step() == [*IN_BATCH]
    if isinstance(slots, KeptSlots):
        assert slots.art_keeps_slot_notes()
        assert slots.art_add_lora(msgspec.to_builtins(request(3)))
    else:
        slots.add_lora(request(3))
    return slots.run_step()


def test_without_a_slot_to_spare_requests_are_answered_with_each_others_weights() -> None:
    """Once this fails, vLLM notices that adapters changed places, and `art.vllm.lora_slots` may go."""
    assert answering_after_a_load(Slots(len(IN_BATCH))) == [2, 1]


def test_the_extension_has_the_places_written_down_anew() -> None:
    assert answering_after_a_load(KeptSlots(len(IN_BATCH))) == [*IN_BATCH]


def test_with_a_slot_to_spare_each_request_keeps_its_adapter_anyway() -> None:
    assert answering_after_a_load(Slots(len(IN_BATCH) + 1)) == [*IN_BATCH]
