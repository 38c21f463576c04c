"""Hands scenarios out, one at a time, and knows which of them are unfinished."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Generic

from art.pipeline_trainer.types import ScenarioT

logger = logging.getLogger(__name__)

SKIPS_IN_ONE_TURN = 1000  # of the event loop


@dataclass(frozen=True)
class Handout(Generic[ScenarioT]):
    """A scenario that a worker has.

    Attributes:
        offset: Its place in the iteration, from 0.
        scenario: The scenario.
        attempt: 1 for the first time that it is tried in this process.
    """

    offset: int
    scenario: ScenarioT
    attempt: int = 1


class ScenarioSource(Generic[ScenarioT]):
    """The scenarios of a run, in their order, those left over from an earlier run first.

    Attributes:
        handed_out: How many were handed out, counted from the iterator's beginning.
    """

    def __init__(self, scenarios: AsyncIterator[ScenarioT] | Iterable[ScenarioT], *, max_attempts: int) -> None:
        """Begin at the iterator's beginning.

        Args:
            scenarios: Must give the same scenarios in the same order in each run that is to be resumed.
            max_attempts: How often one scenario is tried.
        """
        self.handed_out = 0
        self._iterator = aiter(scenarios) if isinstance(scenarios, AsyncIterable) else _as_async(scenarios)
        self._max_attempts = max_attempts
        self._drawn = 0
        self._is_exhausted = False
        self._was_cut_off = False  # a generator that is cancelled, or fails, has ended
        self._unfinished: set[int] = set()
        self._handed: dict[int, Handout[ScenarioT]] = {}
        self._again: deque[Handout[ScenarioT]] = deque()
        self._turn = asyncio.Lock()

    def resume(self, handed_out: int, unfinished: Iterable[int]) -> None:
        """Go on where an earlier process was: hand out what it left unfinished, then what comes after its last one."""
        self.handed_out = handed_out
        self._unfinished = {offset for offset in unfinished if offset < handed_out}

    def restart(self) -> None:
        """Prepare another run in this process: what is unfinished is handed out again."""
        self._turn = asyncio.Lock()
        self._again = deque(Handout(offset, handout.scenario) for offset, handout in sorted(self._handed.items()))

    async def next(self) -> Handout[ScenarioT] | None:
        """Hand a scenario out; None when there is none left."""
        async with self._turn:
            if self._drawn < self.handed_out and not self._is_exhausted:
                await self._skip()
            if self._again:
                return self._again.popleft()
            drawn = await self._draw()
            if drawn is None:
                return None
            handout = Handout(drawn[0], drawn[1])
            self.handed_out = self._drawn
            self._unfinished.add(handout.offset)
            self._handed[handout.offset] = handout
            return handout

    def try_again(self, handout: Handout[ScenarioT]) -> bool:
        """Hand a failed scenario out once more; False, and it counts as finished, when it was tried often enough."""
        if handout.attempt >= self._max_attempts:
            self.finish([handout.offset])
            return False
        self._again.append(Handout(handout.offset, handout.scenario, handout.attempt + 1))
        return True

    def give_back(self, handout: Handout[ScenarioT]) -> None:
        """Hand a scenario out once more, as if this time had not been."""
        self._again.append(handout)

    def finish(self, offsets: Iterable[int]) -> None:
        """Note that scenarios were trained or discarded."""
        for offset in offsets:
            self._unfinished.discard(offset)
            self._handed.pop(offset, None)

    def unfinished(self) -> tuple[int, ...]:
        """List the offsets that were handed out and neither trained nor discarded, ascending."""
        return tuple(sorted(self._unfinished))

    async def _skip(self) -> None:
        while self._drawn < self.handed_out:
            drawn = await self._draw()
            if drawn is None:
                break
            offset, scenario = drawn
            if offset in self._unfinished:
                self._handed[offset] = Handout(offset, scenario)
                self._again.append(self._handed[offset])
            if self._drawn % SKIPS_IN_ONE_TURN == 0:
                await asyncio.sleep(0)
        if self._drawn < self.handed_out:
            logger.warning(
                "the scenarios end after %d, but the run that is resumed had handed out %d",
                self._drawn,
                self.handed_out,
            )
            self.handed_out = self._drawn
            self._unfinished = set(self._handed)

    async def _draw(self) -> tuple[int, ScenarioT] | None:
        if self._is_exhausted:
            return None
        try:
            scenario = await anext(self._iterator)
        except StopAsyncIteration:
            if self._was_cut_off:
                raise RuntimeError(
                    "the iterator of scenarios has ended because it failed, or the run before was stopped while it "
                    "waited for a scenario; make a new trainer with a new iterator, which goes on from there"
                ) from None
            self._is_exhausted = True
            return None
        except BaseException:
            self._was_cut_off = True
            raise
        self._was_cut_off = False
        self._drawn += 1
        return self._drawn - 1, scenario


async def _as_async(scenarios: Iterable[ScenarioT]) -> AsyncIterator[ScenarioT]:
    for scenario in scenarios:
        yield scenario
