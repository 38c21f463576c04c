"""What people get wrong, and that the error names the call that they meant."""

from __future__ import annotations

import asyncio
import gc
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat.chat_completion import ChatCompletion

import art
from art import dev
from art.dev.train import resolve_train_settings
from art.dev.validate import validate_internal_config
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import TrainConfig
from art.utils import limit_concurrency
from tests.support.conversations import make_choice, make_trajectory
from tests.support.fake_backend import FakeLocalBackend

COMPLETION = ChatCompletion(id="c", choices=[make_choice("hi")], created=0, model="m", object="chat.completion")


async def rollout() -> Trajectory:
    return make_trajectory()


async def groups() -> list[TrajectoryGroup]:
    return [TrajectoryGroup([make_trajectory()])]


def trainable() -> art.TrainableModel[Any, Any]:
    return art.TrainableModel(name="agent", project="mail", base_model="tiny")


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "messages of a trajectory": (
        lambda: Trajectory(messages=[]),  # type: ignore[call-arg]
        "use `messages_and_choices=`",
    ),
    "epochs in the train config": (
        lambda: TrainConfig(num_epochs=3),  # type: ignore[call-arg]
        "art.utils.iterate_dataset(data, groups_per_step=…, num_epochs=…)",
    ),
    "misspelt train config": (
        lambda: TrainConfig(learning_rat=1),  # type: ignore[call-arg]
        "did you mean learning_rate?",
    ),
    "misspelt internal config": (
        lambda: validate_internal_config({"engine_arg": {}}),  # type: ignore[typeddict-unknown-key]
        "'engine_arg' (did you mean 'engine_args'?)",
    ),
    "internal config that is no dictionary": (
        lambda: validate_internal_config("engine_args"),  # type: ignore[arg-type]
        "_internal_config must be a dictionary",
    ),
    "misspelt training option": (
        lambda: resolve_train_settings(TrainConfig(), {"ppoo": True}),  # type: ignore[typeddict-unknown-key]
        "'ppoo' (did you mean 'ppo'?)",
    ),
    "internal config without its underscore": (
        lambda: art.TrainableModel(name="a", project="p", base_model="b", internal_config={}),  # type: ignore[call-overload]
        "internal_config; it knows",
    ),
    "one rollout in place of several": (lambda: TrajectoryGroup(rollout()), "rollout(…) for _ in range(…)"),  # type: ignore[call-overload]
    "rollout that was not called": (
        lambda: TrajectoryGroup([rollout]),  # type: ignore[list-item]
        "rollout is a function: call it",
    ),
    "function in place of rollouts": (
        lambda: TrajectoryGroup(rollout),  # type: ignore[call-overload]
        "rollout is a function: call it",
    ),
    "whole completion as a message": (
        lambda: Trajectory(messages_and_choices=[COMPLETION]),  # type: ignore[list-item]
        "ChatCompletion; put in its `choices[0]`",
    ),
    "client before registering": (lambda: trainable().openai_client(), "call `await model.register(backend)` first"),
    "misspelt field of a trajectory": (
        lambda: Trajectory(rewards=1.0),  # type: ignore[call-arg]
        "did you mean reward?",
    ),
    "one trajectory in place of several": (
        lambda: TrajectoryGroup(make_trajectory()),  # type: ignore[arg-type]
        "art.TrajectoryGroup([trajectory])",
    ),
    "retry without its parentheses": (lambda: art.retry(rollout), "write `@art.retry()`"),  # type: ignore[arg-type]
    "limit without its number": (lambda: limit_concurrency(rollout), "write `@limit_concurrency(10)`"),  # type: ignore[arg-type]
    "slash in a name": (lambda: art.Model(name="a/b", project="p"), "a/b"),
}


@pytest.mark.parametrize("backend", [FakeLocalBackend, None, "local"])
def test_registering_with_what_is_no_backend(backend: Any) -> None:
    with pytest.raises(TypeError, match=r"await model\.register\(LocalBackend\(\)\)"):
        asyncio.run(trainable().register(backend))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_error_names_what_was_meant(mistake: str) -> None:
    make, meant = MISTAKES[mistake]

    with pytest.raises((TypeError, ValueError), match=re.escape(meant)):
        make()


GATHERED: dict[str, tuple[Callable[[], Any], str]] = {
    "groups that are one": (
        lambda: art.gather_trajectory_groups(TrajectoryGroup(rollout() for _ in range(2)), pbar_desc=None),  # type: ignore[arg-type]
        "write art.gather_trajectory_groups(art.TrajectoryGroup(…) for … in …)",
    ),
    "rollouts that are one": (
        lambda: art.gather_trajectories(rollout(), pbar_desc=None),  # type: ignore[call-overload]
        "write art.gather_trajectories(rollout(…) for … in …)",
    ),
    "rollout that was not called": (
        lambda: art.gather_trajectories([rollout(), rollout], pbar_desc=None),  # type: ignore[list-item]
        "call it, as in rollout(…)",
    ),
    "lists in place of groups": (
        lambda: art.gather_trajectory_groups([[make_trajectory()]], pbar_desc=None),  # type: ignore[list-item]
        "write art.gather_trajectory_groups(art.TrajectoryGroup(…) for … in …)",
    ),
    "trajectories that are there": (
        lambda: art.gather_trajectories([make_trajectory()], pbar_desc=None),  # type: ignore[list-item]
        "got a Trajectory among them",
    ),
    "allowance that is text": (
        lambda: art.gather_trajectories([], pbar_desc=None, max_exceptions="1"),  # type: ignore[call-overload]
        "max_exceptions must be a number",
    ),
    "after_each that gives trajectories": (
        lambda: art.gather_trajectory_groups(
            [TrajectoryGroup([make_trajectory()])],
            pbar_desc=None,
            after_each=lambda group: group.trajectories,  # type: ignore[arg-type,return-value]
        ),
        "after_each must give a TrajectoryGroup, a list of them, or None, got Trajectory",
    ),
}


@pytest.mark.parametrize("mistake", GATHERED)
def test_gathering_names_what_was_meant_and_leaves_no_coroutine_behind(mistake: str) -> None:
    make, meant = GATHERED[mistake]

    async def run() -> None:
        await make()

    with pytest.raises(TypeError, match=re.escape(meant)):
        asyncio.run(run())
    gc.collect()  # which would warn of a coroutine that nobody awaited or closed


def test_other_unknown_fields_of_a_trajectory_are_ignored() -> None:
    assert Trajectory(step=1, reward=2.0).reward == 2.0  # type: ignore[call-arg]


def test_fields_that_a_subclass_adds_are_no_mistakes() -> None:
    class Scored(Trajectory):
        rewards: tuple[float, ...] = ()

    assert Scored(rewards=(1.0,)).rewards == (1.0,)


def test_completion_that_was_appended_later_is_named_with_its_place() -> None:
    trajectory = Trajectory(messages_and_choices=[{"role": "user", "content": "hi"}])
    trajectory.messages_and_choices.append(COMPLETION)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match=r"entry 1 .*put in its `choices\[0\]`"):
        trajectory.messages()


@pytest.mark.parametrize("call", ["train", "train_sft"])
@pytest.mark.parametrize("how", ["for", "async for", "list"])
def test_iterating_over_training_says_to_await_it(call: str, how: str) -> None:
    model = trainable()

    async def run() -> None:
        training = getattr(model, call)([])
        if how == "for":
            for _ in training:
                pass
        elif how == "async for":
            async for _ in training:
                pass
        else:
            list(training)

    with pytest.raises(TypeError, match=rf"write `await model\.{call}\(…\)`"):
        asyncio.run(run())


def test_training_is_a_coroutine_for_everybody_else(tmp_path: Path) -> None:
    model = trainable()

    async def run() -> None:
        await model.register(FakeLocalBackend(samples=[{"loss/train": 1.0}], art_path=str(tmp_path)))
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(model.train(await groups()))
        assert task.result() is None
        assert await asyncio.wait_for(model.train(await groups()), 10) is None
        assert await asyncio.gather(model.train(await groups())) == [None]

    assert asyncio.iscoroutinefunction(model.train)
    training = model.train([])
    assert inspect.isawaitable(training)
    training.close()
    with pytest.warns(DeprecationWarning, match=r"backend\.train"):
        asyncio.run(run())
    with pytest.warns(DeprecationWarning, match=r"backend\.train"):
        asyncio.run(model.train([]))


def test_deprecation_points_at_the_caller() -> None:
    model = trainable()

    async def run() -> None:
        await model.train([])

    with (
        pytest.warns(DeprecationWarning, match="deprecated") as caught,
        pytest.raises(ValueError, match="not registered"),
    ):
        asyncio.run(run())

    assert caught[0].filename == __file__


def test_cancelled_training_is_cancelled() -> None:
    class Slow(FakeLocalBackend):
        async def _train_model(self, *_: Any, **__: Any) -> Any:
            await asyncio.Future()
            yield {}

    async def run() -> None:
        model = trainable()
        await model.register(Slow())
        task = asyncio.create_task(model.train([]))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.warns(DeprecationWarning, match=r"backend\.train"), pytest.raises(asyncio.CancelledError):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (lambda: groups(), "await art.gather_trajectory_groups(…)"),
        (lambda: [TrajectoryGroup([rollout()])], "await art.gather_trajectory_groups(…)"),
        (lambda: [make_trajectory()], "[art.TrajectoryGroup(trajectories)]"),
        (lambda: TrajectoryGroup([make_trajectory()]), "give [group]"),
        (lambda: None, "training takes a list of TrajectoryGroups, got None"),
    ],
)
def test_training_on_what_is_no_list_of_finished_groups(given: Callable[[], Any], meant: str) -> None:
    with pytest.warns(DeprecationWarning, match=r"backend\.train"), pytest.raises(TypeError, match=re.escape(meant)):
        asyncio.run(trainable().train(given()))


@pytest.mark.parametrize("reward", [None, "high"])
def test_training_on_a_reward_that_is_no_number(reward: Any) -> None:
    unscored = make_trajectory()
    unscored.reward = reward
    with (
        pytest.warns(DeprecationWarning, match=r"backend\.train"),
        pytest.raises(TypeError, match=r"reward of trajectory 1 in group 0 must be a number, got (None|'high')"),
    ):
        asyncio.run(trainable().train([TrajectoryGroup([make_trajectory(), unscored])]))


def test_settings_of_a_step_in_a_dict(tmp_path: Path) -> None:
    model = trainable()

    async def run() -> None:
        await model.register(FakeLocalBackend(art_path=str(tmp_path)))
        with pytest.raises(TypeError, match=r"art\.TrainSFTConfig\(learning_rate=1e-5\), got a dict; .*`_config=`"):
            await model.train_sft([], {"learning_rate": 1e-5})  # type: ignore[arg-type]
        await model.train(await groups(), {"learning_rate": 1e-5})  # type: ignore[arg-type]

    with (
        pytest.warns(DeprecationWarning, match=r"backend\.train"),
        pytest.raises(TypeError, match=r"art\.TrainConfig\(learning_rate=1e-5\), got a dict"),
    ):
        asyncio.run(run())


LOGGED: dict[str, tuple[dict[str, Any], str]] = {
    "metrics in the place of trajectories": ({"trajectories": {"loss": 1.0}}, "metrics go to `metrics=`"),
    "one trajectory": ({"trajectories": make_trajectory()}, "give a list of trajectories"),
    "metrics that are a list": ({"metrics": [("loss", 1.0)]}, "metrics must be a dict"),
    "metric without a name": ({"metrics": {1: 1.0}}, "the name of a metric must be text, got 1"),
    "metric beyond any number": ({"metrics": {"n": 10**400}}, "metric 'n' must be a number"),
    "step that is text": ({"metrics": {"loss": 1.0}, "step": "3"}, "'str' object cannot be interpreted as an integer"),
    "no split": ({"metrics": {"loss": 1.0}, "split": None}, "split must be a string such as 'val', got None"),
}


@pytest.mark.parametrize("mistake", LOGGED)
def test_logging_names_what_was_meant_and_writes_nothing(mistake: str, tmp_path: Path) -> None:
    given, meant = LOGGED[mistake]
    model = art.Model(name="m", project="p", base_path=str(tmp_path))

    with pytest.raises((TypeError, ValueError), match=re.escape(meant)):
        asyncio.run(model.log(**given))

    assert list(tmp_path.rglob("*")) == []


def test_logging_what_was_not_awaited() -> None:
    with pytest.raises(TypeError, match=r"write `await`"):
        asyncio.run(art.Model(name="m", project="p").log(groups()))  # type: ignore[arg-type]


def test_awaiting_the_client_says_that_it_is_there_at_once() -> None:
    model = art.Model(name="m", project="p", inference_base_url="http://127.0.0.1:1/v1", inference_api_key="key")

    async def run() -> None:
        await model.openai_client()  # type: ignore[misc]

    with pytest.raises(TypeError, match=r"client = model\.openai_client\(\)"):
        asyncio.run(run())


def test_coroutines_of_trajectories_in_place_of_groups() -> None:
    with pytest.raises(TypeError, match=r"use art\.gather_trajectories"):
        asyncio.run(art.gather_trajectory_groups([rollout()], pbar_desc=None))  # type: ignore[list-item]


def test_internal_config_of_newer_and_older_scripts_is_no_mistake() -> None:
    older: Any = {"_decouple_vllm_and_unsloth": True}
    validate_internal_config({**dev.InternalModelConfig(init_args={"gpu_memory_utilization": 0.7}), **older})
