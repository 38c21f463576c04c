from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NoReturn

import numpy as np
import pytest

import art.gather
from art.batches import trajectory_group_batches
from art.errors import InferenceError, LocalServingUnavailableError, ServerDiedError, TrainerDiedError
from art.gather import (
    gather_trajectories,
    gather_trajectory_groups,
    wrap_group_awaitable,
    wrap_trajectories_awaitable,
)
from art.gather_context import GatherContext, find_fatal_error, get_gather_context, set_gather_context
from art.trajectories import History, Trajectory, TrajectoryGroup
from tests.support.conversations import make_choice, make_trajectory

FATAL_ERRORS = [
    LocalServingUnavailableError("the server is gone"),
    ServerDiedError("exit code -9"),
    TrainerDiedError("exit code 1"),
]


async def succeed(reward: float = 0.0, **fields: Any) -> Trajectory:
    return make_trajectory(reward, **fields)


async def fail(error: BaseException) -> NoReturn:
    raise error


class Endless:
    """A rollout that never ends by itself, and notes how it was ended."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.was_cancelled = False

    async def run(self) -> Trajectory:
        self.started.set()
        try:
            return await asyncio.Future()
        except asyncio.CancelledError:
            try:
                await asyncio.sleep(0)  # cleaning up takes a moment, and must be waited for
            finally:
                self.was_cancelled = True
            raise


async def fail_after(rollout: Endless, error: BaseException) -> NoReturn:
    await rollout.started.wait()
    raise error


def last_bar(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.rstrip().rsplit("\r", 1)[-1]


# Groups -----------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_groups_keep_the_input_order_though_they_end_in_another() -> None:
    second_is_done = asyncio.Event()

    async def first() -> TrajectoryGroup:
        await second_is_done.wait()
        return TrajectoryGroup([make_trajectory(1.0)])

    async def second() -> TrajectoryGroup:
        second_is_done.set()
        return TrajectoryGroup([make_trajectory(2.0)])

    groups = await gather_trajectory_groups([first(), second()])
    assert [group.trajectories[0].reward for group in groups] == [1.0, 2.0]


@pytest.mark.asyncio
async def test_group_of_awaitables_is_pending_and_runs_all_at_once() -> None:
    both_run = asyncio.Barrier(2)

    async def rollout(reward: float) -> Trajectory:
        await both_run.wait()
        return make_trajectory(reward)

    pending: Any = TrajectoryGroup((rollout(r) for r in (1.0, 2.0)), metadata={"k": "v"}, exceptions=[OSError("x")])
    assert not isinstance(pending, TrajectoryGroup)
    assert pending._num_trajectories == 2
    group = await pending
    assert isinstance(group, TrajectoryGroup)
    assert sorted(t.reward for t in group) == [1.0, 2.0]
    assert (group.metadata, [error.message for error in group.exceptions]) == ({"k": "v"}, ["x"])


@pytest.mark.asyncio
async def test_finished_trajectories_and_errors_may_stand_among_awaitables() -> None:
    items: list[Any] = [make_trajectory(1.0), succeed(2.0), ValueError("known")]
    (group,) = await gather_trajectory_groups([TrajectoryGroup(items)])  # known errors need no allowance
    assert sorted(t.reward for t in group) == [1.0, 2.0]
    assert [error.message for error in group.exceptions] == ["known"]


@pytest.mark.asyncio
async def test_trajectories_of_a_group_are_in_order_of_completion() -> None:
    second_is_done = asyncio.Event()

    async def first() -> Trajectory:
        await second_is_done.wait()
        return make_trajectory(1.0)

    async def second() -> Trajectory:
        second_is_done.set()
        return make_trajectory(2.0)

    group = await TrajectoryGroup([first(), second()])
    assert [t.reward for t in group] == [2.0, 1.0]


@pytest.mark.asyncio
async def test_allowed_failures_stay_in_their_group() -> None:
    groups = await gather_trajectory_groups(
        [TrajectoryGroup([succeed(1.0), fail(ValueError("a"))]), TrajectoryGroup([fail(KeyError("b")), succeed(2.0)])],
        max_exceptions=2,
    )
    assert [[t.reward for t in group] for group in groups] == [[1.0], [2.0]]
    assert [group.exceptions[0].message for group in groups] == ["a", "'b'"]


@pytest.mark.asyncio
async def test_group_whose_rollouts_all_failed_is_kept() -> None:
    (group,) = await gather_trajectory_groups([TrajectoryGroup([fail(ValueError("a"))])], max_exceptions=1)
    assert len(group) == 0
    assert len(group.exceptions) == 1


@pytest.mark.asyncio
async def test_coroutine_that_fails_within_the_allowance_gives_no_group() -> None:
    async def group() -> TrajectoryGroup:
        return TrajectoryGroup([make_trajectory(1.0)])

    groups = await gather_trajectory_groups([fail(ValueError("a")), group()], max_exceptions=1)
    assert [g.trajectories[0].reward for g in groups] == [1.0]


@pytest.mark.asyncio
async def test_failure_beyond_the_allowance_is_raised_as_it_is() -> None:
    error = ValueError("second")
    first_failed = asyncio.Event()

    async def first() -> Trajectory:
        first_failed.set()
        raise KeyError

    async def second() -> Trajectory:
        await first_failed.wait()
        raise error

    with pytest.raises(ValueError, match="second") as caught:
        await gather_trajectory_groups([TrajectoryGroup([first(), second()])], max_exceptions=1)
    assert caught.value is error


@pytest.mark.parametrize(
    ("failures", "max_exceptions", "is_allowed"),
    [(0, 0, True), (1, 0, False), (1, 1, True), (2, 1, False), (2, 1.0, False), (29, 0.29, True), (30, 0.29, False)],
)
@pytest.mark.asyncio
async def test_allowance_is_a_number_or_below_one_a_share(
    failures: int, max_exceptions: float, is_allowed: bool
) -> None:
    rollouts = [fail(ValueError()) for _ in range(failures)] + [succeed() for _ in range(100 - failures)]
    gathering = gather_trajectories(rollouts, max_exceptions=max_exceptions, pbar_desc=None)
    if is_allowed:
        assert sum(isinstance(result, ValueError) for result in await gathering) == failures
    else:
        with pytest.raises(ValueError):  # noqa: PT011  # its identity is tested elsewhere
            await gathering


@pytest.mark.asyncio
async def test_after_each_may_keep_replace_drop_and_split_groups() -> None:
    async def after_each(group: TrajectoryGroup) -> TrajectoryGroup | list[TrajectoryGroup] | None:
        kind = group.metadata["kind"]
        if kind == "drop":
            return None
        return [group, TrajectoryGroup([], metadata={"kind": "extra"})] if kind == "split" else group

    groups = await gather_trajectory_groups(
        [TrajectoryGroup([succeed()], metadata={"kind": kind}) for kind in ("split", "drop", "keep")],
        after_each=after_each,
    )
    assert [group.metadata["kind"] for group in groups] == ["split", "extra", "keep"]


@pytest.mark.asyncio
async def test_error_of_after_each_is_not_covered_by_the_allowance() -> None:
    async def after_each(group: TrajectoryGroup) -> None:
        raise OSError("judge")

    with pytest.raises(OSError, match="judge"):
        await gather_trajectory_groups([TrajectoryGroup([succeed()])], max_exceptions=10, after_each=after_each)


@pytest.mark.asyncio
async def test_rollouts_run_by_after_each_are_not_part_of_the_gather(capsys: pytest.CaptureFixture[str]) -> None:
    async def again(group: TrajectoryGroup) -> TrajectoryGroup:
        return await TrajectoryGroup([succeed(1.0), succeed(1.0)])

    async def fail_again(group: TrajectoryGroup) -> TrajectoryGroup:
        return await TrajectoryGroup([fail(ValueError("again"))])

    (group,) = await gather_trajectory_groups([TrajectoryGroup([succeed(0.0)])], after_each=again)
    assert len(group) == 2
    bar = last_bar(capsys)
    assert "1/1" in bar
    assert bar.endswith("reward=0]")
    with pytest.raises(ValueError, match="again"):
        await gather_trajectory_groups([TrajectoryGroup([succeed()])], max_exceptions=5, after_each=fail_again)


# Trajectories -----------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_trajectories_come_one_by_one_or_several_at_once() -> None:
    async def several() -> Iterable[Trajectory]:
        return (make_trajectory(r) for r in (1.0, 2.0))

    assert [t.reward for t in await gather_trajectories([succeed(1.0), succeed(2.0)])] == [1.0, 2.0]
    assert [[t.reward for t in ts] for ts in await gather_trajectories([several()])] == [[1.0, 2.0]]


@pytest.mark.asyncio
async def test_allowed_failure_takes_the_place_of_its_result() -> None:
    error = ValueError("x")
    first, second = await gather_trajectories([fail(error), succeed(1.0)], max_exceptions=0.5)
    assert first is error
    assert isinstance(second, Trajectory)


@pytest.mark.parametrize("result", [None, "text", [None], 3])
@pytest.mark.asyncio
async def test_rollout_that_returns_something_else_has_failed(result: object) -> None:
    async def rollout() -> Any:
        return result

    with pytest.raises(TypeError, match="not a Trajectory"):
        await gather_trajectories([rollout()])
    with pytest.raises(TypeError, match="not a Trajectory"):
        await TrajectoryGroup([rollout()])


async def unscored(*, reward: Any = 0.0, **metrics: Any) -> Trajectory:
    trajectory = make_trajectory()
    trajectory.reward, trajectory.metrics = reward, metrics
    return trajectory


@pytest.mark.asyncio
async def test_rollout_with_what_is_no_number_has_failed() -> None:
    async def group() -> TrajectoryGroup:
        return TrajectoryGroup([await unscored(turns="two")])

    one, *others = await gather_trajectory_groups(
        [TrajectoryGroup([unscored(reward=None), succeed(), await unscored(turns=None)]), group()],
        pbar_desc=None,
        max_exceptions=3,
    )
    several = await gather_trajectories([unscored(turns=[1]), succeed()], pbar_desc=None, max_exceptions=1)

    assert [len(one), others] == [1, []]
    assert sorted(failure.message for failure in one.exceptions) == [
        "the metric 'turns' of a trajectory must be a number, got None",
        "the reward of a trajectory must be a number, got None",
    ]
    assert str(several[0]) == "the metric 'turns' of a trajectory must be a number, got [1]"
    with pytest.raises(TypeError, match="the reward of a trajectory must be a number, got None"):
        await gather_trajectories([unscored(reward=None)], pbar_desc=None)


@pytest.mark.asyncio
async def test_numbers_of_other_libraries_are_averaged() -> None:
    context = GatherContext()
    with set_gather_context(context):
        await wrap_trajectories_awaitable(unscored(reward=np.float32(0.5), flag=np.bool_(True), n=np.int64(2)))
    assert context.metric_sums == {"reward": 0.5, "flag": 1.0, "n": 2.0}


@pytest.mark.asyncio
async def test_plain_functions_may_follow_each_group() -> None:
    groups = await gather_trajectory_groups(
        (TrajectoryGroup([make_trajectory(reward)]) for reward in (0.0, 1.0)),
        pbar_desc=None,
        after_each=lambda group: group if group.trajectories[0].reward else None,  # type: ignore[arg-type,return-value]
    )
    assert [group.trajectories[0].reward for group in groups] == [1.0]


@pytest.mark.asyncio
async def test_coroutine_that_gives_no_group_has_failed() -> None:
    wrong: Any = succeed()
    with pytest.raises(TypeError, match="expected a TrajectoryGroup, got Trajectory"):
        await gather_trajectory_groups([wrong])


# Fatal errors and cancellation --------------------------------------------------------------------------------


@pytest.mark.parametrize("error", FATAL_ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.asyncio
async def test_dead_server_or_trainer_ends_the_gather_whatever_the_allowance(error: Exception) -> None:
    for gathering in (
        gather_trajectories([fail(error), succeed()], max_exceptions=100, pbar_desc=None),
        gather_trajectory_groups([TrajectoryGroup([succeed(), fail(error)])], max_exceptions=100, pbar_desc=None),
        gather_trajectory_groups([fail(error)], max_exceptions=0.99, pbar_desc=None),
    ):
        with pytest.raises(type(error)) as caught:
            await gathering
        assert caught.value is error


@pytest.mark.asyncio
async def test_fatal_error_is_found_behind_what_a_client_made_of_it() -> None:
    death = ServerDiedError("exit code -9")

    async def rollout() -> Trajectory:
        try:
            raise death
        except ServerDiedError as error:
            raise ConnectionError("Connection error.") from error

    with pytest.raises(ServerDiedError) as caught:
        await gather_trajectories([rollout()], max_exceptions=100)
    assert caught.value is death


def test_fatal_error_is_found_in_groups_and_contexts_and_not_elsewhere() -> None:
    death = TrainerDiedError("exit code 1")
    with_context = ValueError()
    with_context.__context__ = ExceptionGroup("several", [KeyError(), death])
    assert find_fatal_error(with_context) is death
    assert find_fatal_error(InferenceError("overloaded")) is None
    loop = ValueError()
    loop.__context__ = KeyError()
    loop.__context__.__context__ = loop
    assert find_fatal_error(loop) is None


@pytest.mark.parametrize("kind", ["trajectories", "pending groups", "coroutines of groups"])
@pytest.mark.asyncio
async def test_others_are_cancelled_and_have_ended_when_a_failure_is_raised(kind: str) -> None:
    rollout = Endless()
    error = ValueError("x")

    async def group_of(items: list[Awaitable[Trajectory]]) -> TrajectoryGroup:
        return await TrajectoryGroup(items)

    gatherings: dict[str, Callable[[], Awaitable[object]]] = {
        "trajectories": lambda: gather_trajectories([rollout.run(), fail_after(rollout, error)]),
        "pending groups": lambda: gather_trajectory_groups(
            [TrajectoryGroup([rollout.run()]), TrajectoryGroup([fail_after(rollout, error)])]
        ),
        "coroutines of groups": lambda: gather_trajectory_groups(
            [group_of([rollout.run()]), group_of([fail_after(rollout, error)])]
        ),
    }
    with pytest.raises(ValueError, match="x"):
        await gatherings[kind]()
    assert rollout.was_cancelled
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.asyncio
async def test_cancelling_a_gather_cancels_its_rollouts_whatever_the_allowance() -> None:
    rollout = Endless()
    task = asyncio.create_task(gather_trajectory_groups([TrajectoryGroup([rollout.run()])], max_exceptions=100))
    await rollout.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rollout.was_cancelled


@pytest.mark.asyncio
async def test_rollouts_clean_up_undisturbed_when_a_gather_is_cancelled() -> None:
    is_clean: list[bool] = []
    all_run = asyncio.Barrier(4)

    async def rollout(moments: int) -> Trajectory:
        try:
            await all_run.wait()
            return await asyncio.Future()
        finally:
            for _ in range(moments):
                await asyncio.sleep(0)
            is_clean.append(True)

    gathering = gather_trajectories([rollout(moments) for moments in (0, 3, 6)])
    task = asyncio.create_task(gathering)
    await all_run.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert is_clean == [True] * 3


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["groups", "trajectories", "batches"])
async def test_gather_that_is_cancelled_twice_leaves_no_rollout_running(kind: str) -> None:
    ends: list[str] = []
    runs, cleans_up = asyncio.Event(), asyncio.Event()

    async def rollout() -> Trajectory:
        try:
            runs.set()
            return await asyncio.Future()
        except asyncio.CancelledError:
            cleans_up.set()
            try:
                await asyncio.Future()  # a clean-up that hangs
            finally:
                ends.append("rollout")
            raise

    async def gather() -> object:
        if kind == "trajectories":
            return await gather_trajectories([rollout()], pbar_desc=None, max_exceptions=5)
        groups = [TrajectoryGroup([rollout()])]
        if kind == "groups":
            return await gather_trajectory_groups(groups, pbar_desc=None, max_exceptions=5)
        return [batch async for batch in trajectory_group_batches(groups, batch_size=1, pbar_desc=None)]

    task = asyncio.create_task(gather())
    task.add_done_callback(lambda _: ends.append("gather"))
    await runs.wait()
    task.cancel()
    await cleans_up.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ends == ["rollout", "gather"]


@pytest.mark.asyncio
async def test_cancelled_rollout_stays_cancelled() -> None:
    with pytest.raises(asyncio.CancelledError):
        await gather_trajectories([fail(asyncio.CancelledError()), succeed()], max_exceptions=100)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=["KeyboardInterrupt", "SystemExit"])
def test_interrupt_in_a_rollout_passes_through_and_ends_the_others(error: BaseException) -> None:
    rollouts: list[Endless] = []

    async def main() -> None:
        rollouts.append(Endless())
        await gather_trajectory_groups(
            [TrajectoryGroup([rollouts[0].run(), fail_after(rollouts[0], error)])], max_exceptions=100
        )

    with pytest.raises(type(error)):
        asyncio.run(main())
    assert rollouts[0].was_cancelled


def test_rollouts_that_an_interrupt_kept_from_starting_are_closed() -> None:
    # Otherwise Python warns of coroutines that nobody awaited.
    waiting: list[Any] = [succeed(), succeed(), succeed()]

    async def main() -> None:
        interrupt: Any = fail(KeyboardInterrupt())
        groups: list[Any] = [interrupt, waiting[0], TrajectoryGroup(waiting[1:])]
        await gather_trajectory_groups(groups)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert [inspect.getcoroutinestate(rollout) for rollout in waiting] == [inspect.CORO_CLOSED] * 3


# Progress and metrics -----------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_bar_counts_trajectories_and_shows_means_and_failures(capsys: pytest.CaptureFixture[str]) -> None:
    async def group() -> TrajectoryGroup:
        return TrajectoryGroup([make_trajectory(1.0, tokens=4, metrics={"turns": 2})])

    await gather_trajectory_groups(
        [
            TrajectoryGroup([succeed(0.0, tokens=2, metrics={"turns": 5}), succeed(0.5, tokens=3), fail(ValueError())]),
            group(),
        ],
        max_exceptions=1,
    )
    bar = last_bar(capsys)
    assert bar.startswith("gather: 100%")
    assert "4/4" in bar
    assert bar.endswith("reward=0.5, turns=3.5, exceptions=1, completion_tokens=3]")


@pytest.mark.asyncio
async def test_bar_shows_the_first_metrics_only_when_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    rollout = succeed(1.0, tokens=2, metrics={"a": 1, "b": 2})
    await gather_trajectory_groups([TrajectoryGroup([rollout])], max_metrics=1)
    assert last_bar(capsys).endswith("reward=1, a=1, completion_tokens=2]")


@pytest.mark.asyncio
async def test_no_description_means_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    await gather_trajectories([succeed()], pbar_desc=None)
    assert capsys.readouterr().err == ""


@pytest.mark.asyncio
async def test_bar_is_closed_when_a_failure_is_raised(capsys: pytest.CaptureFixture[str]) -> None:
    bars: list[Any] = []

    async def rollout() -> Trajectory:
        bars.append(get_gather_context().pbar)
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011  # its identity is tested elsewhere
        await gather_trajectories([rollout()])
    assert bars[0].disable  # what tqdm sets on closing


@pytest.mark.asyncio
async def test_bar_starts_no_thread() -> None:
    bars: list[Any] = []

    async def rollout() -> Trajectory:
        bars.append(get_gather_context().pbar)
        return make_trajectory()

    await gather_trajectories([rollout()])
    assert "monitor" not in vars(type(bars[0]))  # where tqdm keeps the thread of a class's bars


@pytest.mark.asyncio
async def test_completion_tokens_is_the_mean_over_all_choices_with_logprobs() -> None:
    trajectory = Trajectory(
        messages_and_choices=[make_choice(tokens=4), make_choice()],
        additional_histories=[History(messages_and_choices=[make_choice(tokens=1)])],
    )

    async def rollout() -> Trajectory:
        return trajectory

    (result,) = await gather_trajectories([rollout()])
    assert result.metrics == {"completion_tokens": 2.5}
    (plain,) = await gather_trajectories([succeed()])
    assert plain.metrics == {}


@pytest.mark.asyncio
async def test_group_inside_a_coroutine_counts_once_and_shares_the_allowance(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def nested() -> TrajectoryGroup:
        return await TrajectoryGroup([succeed(0.0, tokens=2), succeed(0.0, tokens=2), fail(ValueError("inner"))])

    async def plain() -> TrajectoryGroup:
        return TrajectoryGroup([make_trajectory(1.0, tokens=5), make_trajectory(1.0, tokens=3)])

    groups = await gather_trajectory_groups([nested(), nested(), plain()], max_exceptions=2)
    bar = last_bar(capsys)
    assert "3/3" in bar
    assert bar.endswith("reward=0.333, exceptions=2, completion_tokens=2.67]")  # each trajectory counts once
    assert [len(g.exceptions) for g in groups] == [1, 1, 0]
    with pytest.raises(ValueError, match="inner"):
        await gather_trajectory_groups([nested(), nested()], max_exceptions=1)


@pytest.mark.asyncio
async def test_group_inside_a_rollout_does_not_move_the_bar(capsys: pytest.CaptureFixture[str]) -> None:
    async def rollout() -> Trajectory:
        best = max(await TrajectoryGroup([succeed(1.0, tokens=2), succeed(0.0)]), key=lambda t: t.reward)
        assert best.metrics["completion_tokens"] == 2
        return best

    await gather_trajectory_groups([TrajectoryGroup([rollout()])])
    await gather_trajectories([rollout()])
    bars = capsys.readouterr().err
    assert bars.count("1/1") >= 2
    assert "3/1" not in bars
    assert bars.rstrip().endswith("reward=1, completion_tokens=2]")


@pytest.mark.asyncio
async def test_metric_named_like_the_failure_counter_uses_up_no_allowance() -> None:
    results = await gather_trajectories([succeed(metrics={"exceptions": 5}), fail(ValueError())], max_exceptions=1)
    assert isinstance(results[1], ValueError)


# Context ------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_group_awaited_outside_a_gather_allows_no_failure_and_leaves_no_trace() -> None:
    for _ in range(2):
        assert len(await TrajectoryGroup([succeed()])) == 1
        with pytest.raises(ValueError, match="x"):
            await TrajectoryGroup([fail(ValueError("x")), succeed()])
    assert get_gather_context() == GatherContext()
    assert get_gather_context() is not get_gather_context()


@pytest.mark.asyncio
async def test_own_context_carries_its_allowance_to_wrapped_groups() -> None:
    context = GatherContext(max_exceptions=1)
    with set_gather_context(context):
        group = await wrap_group_awaitable(TrajectoryGroup([succeed(2.0), fail(ValueError())]))
        assert group is not None
        assert len(group.exceptions) == 1
        with pytest.raises(ValueError, match="one too many"):
            await wrap_group_awaitable(fail(ValueError("one too many")))
    assert context.metric_sums["reward"] == 2.0
    assert context.too_many_exceptions()
    context.reset()
    assert not context.too_many_exceptions()
    assert (context.max_exceptions, dict(context.metric_sums)) == (1, {})


def test_share_without_a_bar_allows_nothing() -> None:
    context = GatherContext(max_exceptions=0.5)
    assert not context.too_many_exceptions()
    with pytest.raises(ValueError, match="x"):
        context.count_failure(ValueError("x"))


@pytest.mark.asyncio
async def test_old_parameter_is_called_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="pbar_total_completion_tokens"):
        await gather_trajectories([succeed()], pbar_total_completion_tokens=True)
    with pytest.warns(DeprecationWarning, match="pbar_total_completion_tokens"):
        await gather_trajectory_groups([], pbar_total_completion_tokens=True)


def test_names_that_scripts_import_are_here() -> None:
    assert {"GatherContext", "set_gather_context", "wrap_group_awaitable", "record_metrics"} <= set(art.gather.__all__)
