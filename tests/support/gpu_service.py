"""A service on a GPU that loses its engine's weights when a test asks for it."""

from __future__ import annotations

import dataclasses

from art.errors import StaleAdapterError
from tests.support.faulty_service import FaultyService


@dataclasses.dataclass
class GpuService(FaultyService):
    """An `UnslothService` that follows orders; see `FaultyService`."""

    async def lose_weights(self) -> str:
        """Let the engine forget its weights, as a wake from sleep level 2 does, and return what the probe says."""
        engine = self._started.runtime._engine  # type: ignore[attr-defined]
        await engine.sleep(level=2, mode="keep")
        await engine.wake_up()
        try:
            await self._started.publisher.confirm_served()
        except StaleAdapterError as err:
            return str(err)
        return ""
