"""Load an adapter so that the batch that is being answered keeps its weights. Half of it runs in vLLM's workers.

vLLM (0.20.2) puts the adapters of a batch into slots and writes down which request uses which slot, again only when the
batch changes. Loading an adapter takes a slot, though, and where every slot is used by the batch the others move: the
same batch then goes on with the slots of before, so that requests are answered with each other's weights.
"""

from __future__ import annotations

import logging
import types
from typing import Any

logger = logging.getLogger(__name__)

EXTENSION = f"{__name__}.SlotKeeper"
_NOTES = "_last_mapping"  # of vLLM's `LoRAModelManager`: the batch that was last written down


class SlotKeeper:
    """Extends vLLM's worker (`worker_extension_cls`); its methods are called by name in every worker."""

    def art_keeps_slot_notes(self) -> bool:
        """Whether this release of vLLM keeps its notes where we know how to have them made anew."""
        return hasattr(_manager_of(self), _NOTES)

    def art_add_lora(self, encoded: Any) -> bool:
        """Load an adapter and have the next batch written down, whatever it is.

        Args:
            encoded: A `LoRARequest`, as msgspec writes it.
        """
        import msgspec
        from vllm.lora.request import LoRARequest

        worker: Any = self
        try:
            return bool(worker.add_lora(msgspec.convert(encoded, LoRARequest)))
        finally:
            setattr(_manager_of(self), _NOTES, None)


async def keep_slots(engine: Any, version: str) -> None:
    """Have an engine load adapters in our way from now on, whoever asks it to.

    Args:
        engine: vLLM's `AsyncLLM`, whose workers have the extension; one without it is left alone.
        version: Of vLLM.
    """
    if engine.vllm_config.parallel_config.worker_extension_cls != EXTENSION:
        return
    if not all(await engine.collective_rpc("art_keeps_slot_notes")):
        logger.warning(
            "vLLM %s keeps no `%s` of its adapters' slots: while an adapter is loaded, a batch that mixes as many "
            "adapters as there are slots (engine_args['max_loras']) may be answered with each other's weights",
            version,
            _NOTES,
        )
        return

    async def add_lora(engine: Any, lora_request: Any) -> bool:
        import msgspec

        return all(await engine.collective_rpc("art_add_lora", args=(msgspec.to_builtins(lora_request),)))

    engine.add_lora = types.MethodType(add_lora, engine)


def _manager_of(worker: Any) -> Any:
    return getattr(getattr(worker.model_runner, "lora_manager", None), "_adapter_manager", None)
