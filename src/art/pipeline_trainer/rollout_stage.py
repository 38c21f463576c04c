"""Workers that turn scenarios into groups."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from art.gather_context import find_fatal_error
from art.model.answers import noting_answers
from art.owned_tasks import cancel_and_wait
from art.pipeline_trainer.activity import innermost_wait
from art.pipeline_trainer.facts import FinishedGroup, note_adapter_names, note_scenario, note_versions
from art.pipeline_trainer.failures import FailedGroups, cause_of
from art.pipeline_trainer.run import PipelineRun
from art.pipeline_trainer.scenarios import Handout
from art.pipeline_trainer.types import RolloutFn
from art.trajectories import TrajectoryGroup

logger = logging.getLogger(__name__)

_EXCERPT_CHARS = 200
FAILURE_PAUSE_S = 1.0  # in which a backend notices that its server has died; also keeps a worker from failing in a loop


class RolloutStage:
    """Runs rollouts until the scenarios end.

    Args:
        run: The run.
        rollout_fn: Makes a group of a scenario.
    """

    def __init__(self, run: PipelineRun, rollout_fn: RolloutFn[Any, Any]) -> None:
        self.failures = FailedGroups(run.settings.max_failed_groups)
        self._run = run
        self._rollout_fn = rollout_fn
        self._rollouts: dict[str, asyncio.Task[TrajectoryGroup]] = {}

    async def run(self) -> None:
        """Run all workers.

        Raises:
            TooManyRolloutFailuresError: Too many groups failed, or all did.
            LocalServingUnavailableError: The server was given up.
        """
        names = [f"worker {number}" for number in range(self._run.settings.num_rollout_workers)]
        workers = [asyncio.create_task(self._work(name), name=f"pipeline-{name}") for name in names]
        try:
            for ended in asyncio.as_completed(workers):
                await ended
        finally:
            await cancel_and_wait(workers)
        self.failures.require_any_success()

    def where_rollouts_wait(self, at_most: int = 3) -> list[str]:
        """Say for some running rollouts in which line they wait."""
        running = list(self._rollouts.items())[:at_most]
        return [f"{name} waits in {innermost_wait(task.get_coro())}" for name, task in running]  # type: ignore[arg-type]  # made of coroutines

    async def _work(self, name: str) -> None:
        run, activity = self._run, self._run.activity
        try:
            while not run.state.done:
                activity.enter(name, "waiting for the next scenario")
                handout = await run.source.next()
                if handout is None:
                    return
                run.count_scenarios()
                waiting_since = time.monotonic()
                await self._wait_for_policy(name)
                idle_s = time.monotonic() - waiting_since
                finished = await self._finish(name, handout, idle_s)
                if finished is None:
                    continue
                activity.enter(name, f"waiting for room in the queue (scenario {handout.offset})")
                await run.queue.put(finished)
                run.status.note_group_enqueued(finished.group)
        finally:
            activity.leave(name)

    async def _wait_for_policy(self, name: str) -> None:
        state, limit = self._run.state, self._run.settings.max_steps_off_policy
        if state.policy_version >= state.next_training_step - limit:
            return
        self._run.activity.enter(name, "waiting for training to catch up")
        async with state.policy_updated:
            await state.policy_updated.wait_for(lambda: state.policy_version >= state.next_training_step - limit)

    async def _finish(self, name: str, handout: Handout[Any], idle_s: float) -> FinishedGroup | None:
        """Run one rollout; None when it failed."""
        run = self._run
        run.activity.enter(name, f"running the rollout of scenario {handout.offset}")
        run.status.note_rollout_started()
        started = time.monotonic()
        failure: BaseException | None
        try:
            group = await self._roll_out(name, handout)
            failure = cause_of(group)
        except asyncio.CancelledError:
            run.status.note_rollout_stopped()
            raise
        except Exception as err:  # noqa: BLE001 - a failed rollout is counted; what nobody recovers from is raised below
            failure = err
        if failure is None:
            run.status.note_rollout_finished(errored=False)
            self.failures.note_success()
            return FinishedGroup(handout.offset, group, time.monotonic() - started, idle_s)
        if await self._is_servers_fault(name, failure):
            run.status.note_rollout_stopped()
            run.source.give_back(handout)
            return None
        run.status.note_rollout_finished(errored=True)
        is_tried_again = run.source.try_again(handout)
        logger.warning(
            "rollout failed: scenario=%d attempt=%d tried_again=%s scenario_content=%s cause=%s",
            handout.offset,
            handout.attempt,
            is_tried_again,
            repr(handout.scenario)[:_EXCERPT_CHARS],
            failure,
            exc_info=failure if failure.__traceback__ is not None and not self.failures.total else None,
        )
        self.failures.note_failure(failure)
        return None

    async def _is_servers_fault(self, name: str, failure: BaseException) -> bool:
        """Tell whether a rollout failed while the server was being started again; the worker then waits for it.

        Raises:
            LocalServingUnavailableError: The server was given up.
        """
        support = self._run.support
        fatal = find_fatal_error(failure) or support.serving_error()
        if fatal is None and support.can_recover:
            await asyncio.sleep(FAILURE_PAUSE_S)
            fatal = support.serving_error()
        if fatal is not None:
            raise fatal
        if not support.is_recovering():
            return False
        self._run.activity.enter(name, "waiting for the server, which is being started again")
        while support.is_recovering():  # noqa: ASYNC110 - a backend can only be asked
            await asyncio.sleep(FAILURE_PAUSE_S)
        return True

    async def _roll_out(self, name: str, handout: Handout[Any]) -> TrajectoryGroup:
        run = self._run
        async with self._leased() as (version, adapter_name):
            with noting_answers(run.activity.touch) as answers:
                group = await self._call(name, handout)
            if not isinstance(group, TrajectoryGroup):
                raise TypeError(f"the rollout function returned a {type(group).__name__}, not a TrajectoryGroup")
            note_scenario(group, handout.scenario)
            note_versions(group.trajectories, version, run.state.policy_version)
            note_adapter_names(group.trajectories, answers.counts, default=adapter_name or "")
            return group

    @contextlib.asynccontextmanager
    async def _leased(self) -> AsyncIterator[tuple[int, str | None]]:
        """Pin the version of now."""
        run = self._run
        version = run.state.policy_version
        run.leased_steps[version] = run.leased_steps.get(version, 0) + 1
        try:
            async with run.support.lease(version) as name:
                yield version, name or run.support.current_name()
        finally:
            run.leased_steps[version] -= 1
            if not run.leased_steps[version]:
                del run.leased_steps[version]

    async def _call(self, name: str, handout: Handout[Any]) -> TrajectoryGroup:
        """Run the user's function in a task of its own: a cancellation inside it is not taken for one of ours."""
        run = self._run
        token = run.model.activate_metrics_context("train")
        try:
            rollout: asyncio.Task[TrajectoryGroup] = asyncio.ensure_future(
                self._rollout_fn(run.model, handout.scenario, run.config)
            )
        finally:
            token.var.reset(token)
        self._rollouts[name] = rollout
        limit_s = run.settings.rollout_timeout_s
        try:
            await asyncio.wait([rollout], timeout=limit_s)
            if not rollout.done():
                where = innermost_wait(rollout.get_coro())  # type: ignore[arg-type]  # made of a coroutine
                raise TimeoutError(f"the rollout took longer than rollout_timeout_s={limit_s:g} and waits in {where}")
            if rollout.cancelled():
                raise RuntimeError("the rollout was cancelled from within")
            return rollout.result()
        finally:
            try:
                await cancel_and_wait([rollout])
            finally:
                del self._rollouts[name]
