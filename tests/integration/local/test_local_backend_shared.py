"""`LocalBackend` with its defaults: every step is trained, saved, served under its own name, and logged."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
import pytest

import art
from art.checkpoints import checkpoint_dir, list_steps
from art.types import LocalTrainResult
from tests.integration.local.conftest import SharedRun
from tests.support.heartbeat import as_light_as_a_script, beat
from tests.support.local_run import (
    ROW_TOKENS,
    Tiny,
    ask_names,
    fixed_logprobs,
    listed_names,
    plain_client,
    rollout,
    sample,
    train_step,
)

pytestmark = pytest.mark.integration

LONGEST_PAUSE_S = 0.1  # of the caller's event loop, at any time
TRAIN_STEP_KEYS = {
    "data/gradient_step_tokens",
    "data/gradient_step_trainable_tokens",
    "data/step_num_gradient_steps",
    "data/step_num_groups_submitted",
    "data/step_num_groups_trainable",
    "data/step_num_packed_rows",
    "data/step_num_packed_sequences",
    "data/step_num_skipped_nonfinite",
    "data/step_num_trajectories_dropped_nonfinite_reward",
    "data/step_num_trajectories_dropped_overlong",
    "data/step_num_trajectories_dropped_untrainable",
    "data/packing_ratio",
    "data/packing_utilization",
    "data/step_trainer_tokens",
    "loss/entropy",
    "loss/grad_norm",
    "loss/learning_rate",
    "loss/probs_corr",
    "loss/train",
    "sync/logprob_gap",
    "sync/served_step",
    "time/gradient_step_s",
    "time/step_publish_s",
    "time/step_save_s",
    "time/step_trainer_s",
    "time/step_turnaround_s",
}


@dataclass
class Observed:
    """What was seen while steps were trained.

    Attributes:
        first: The step that was served before; three more were made.
        results: Of `backend.train`, in order.
        logprobs: Of a fixed prompt under each step's name, right after the step.
        unlisted: Names that were given out while the server did not list them.
        names: All names that were given out, in order of appearance.
        pauses_s: How long the caller's event loop did not turn.
        answers: How the rollouts ended that went on all the while.
    """

    first: int
    results: list[LocalTrainResult] = field(default_factory=list)
    logprobs: dict[str, list[float]] = field(default_factory=dict)
    unlisted: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    pauses_s: list[float] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def trained(shared: SharedRun) -> Observed:
    """Train two steps, one through the deprecated call, and one without anything to learn, under observation."""
    observed = Observed(shared.step)

    async def scenario() -> None:
        async with asyncio.TaskGroup() as watchers:
            tasks = [
                watchers.create_task(watch_names(shared.model, observed)),
                watchers.create_task(beat(observed.pauses_s)),
                watchers.create_task(sample_on_and_on(shared.model, observed)),
            ]
            await train(shared, observed)
            for task in tasks:
                task.cancel()

    with as_light_as_a_script(), sampling_thread(shared.model, observed):
        shared.loop.run(scenario(), 280)
    return observed


async def train(shared: SharedRun, observed: Observed) -> None:
    model = shared.model
    observed.logprobs[model.get_inference_name()] = await fixed_logprobs(model)
    observed.results.append(await train_step(shared.backend, model))
    observed.logprobs[model.get_inference_name()] = await fixed_logprobs(model)
    groups = await sample(model)
    with pytest.warns(DeprecationWarning, match=r"use `result = await backend\.train"):
        await model.train(groups, art.TrainConfig(learning_rate=1e-2), _config={"packed_sequence_length": ROW_TOKENS})
    observed.logprobs[model.get_inference_name()] = await fixed_logprobs(model)
    observed.results.append(await train_step(shared.backend, model, await sample(model, equal_rewards=True)))
    observed.logprobs[model.get_inference_name()] = await fixed_logprobs(model)


async def watch_names(model: Tiny, observed: Observed) -> None:
    client = plain_client()
    try:
        while True:
            await look(client, model, observed)
            await asyncio.sleep(0.005)
    finally:
        await client.aclose()


async def look(client: httpx.AsyncClient, model: Tiny, observed: Observed) -> None:
    for name in {model.get_inference_name(), model.inference_model_name or ""}:
        if name not in observed.names:
            observed.names.append(name)
        if name not in await ask_names(client, model):
            observed.unlisted.append(name)


@contextlib.contextmanager
def sampling_thread(model: Tiny, observed: Observed) -> Iterator[None]:
    """Watch the names from another thread too, with a loop of its own: rollouts may run there."""
    stop = threading.Event()

    async def watch() -> None:
        task = asyncio.create_task(watch_names(model, observed))
        await asyncio.to_thread(stop.wait)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    thread = threading.Thread(target=asyncio.run, args=(watch(),))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


async def sample_on_and_on(model: Tiny, observed: Observed) -> None:
    while True:
        answers = await asyncio.gather(*(rollout(model, f"say it again {index}", 0.0) for index in range(4)))
        observed.answers += [str(answer.messages_and_choices[-1].finish_reason) for answer in answers]  # type: ignore[union-attr]


def names_of(trained: Observed) -> list[str]:
    """Return the names of the step before and of the three that were made."""
    return [f"tiny@{trained.first + number}" for number in range(4)]


def test_registering_serves_step_0(shared: SharedRun) -> None:
    assert shared.served_at_first == {"tiny@0", shared.model.base_model}
    stored = json.loads((shared.model_dir / "model.json").read_text())
    assert (stored["name"], stored["project"]) == ("tiny", "project")
    assert "inference_api_key" not in stored


def test_registering_again_gives_the_same_server(shared: SharedRun) -> None:
    again = Tiny(name="tiny", project="project", base_model=shared.model.base_model)
    copied, deep = copy.copy(shared.model), copy.deepcopy(shared.model)

    async def register() -> None:
        await asyncio.gather(*(model.register(shared.backend) for model in (shared.model, again, copied)))

    shared.loop.run(register())
    for model in (again, copied, deep):
        assert model.inference_base_url == shared.model.inference_base_url
        assert model.get_inference_name() == shared.model.get_inference_name()
        assert shared.loop.run(fixed_logprobs(model, tokens=1))
        shared.loop.run(model.openai_client().close())


def test_each_step_is_served_under_its_own_name_with_its_own_weights(shared: SharedRun, trained: Observed) -> None:
    assert [result.step for result in trained.results] == [trained.first + 1, trained.first + 3]
    assert list(trained.logprobs) == names_of(trained)
    assert set(trained.logprobs) <= shared.loop.run(listed_names(shared.model))
    values = list(trained.logprobs.values())
    assert values[1] != pytest.approx(values[0], abs=1e-3)
    assert values[2] != pytest.approx(values[1], abs=1e-3)
    assert values[3] == pytest.approx(values[2], abs=1e-4)  # nothing was learnt in this one
    for name, logprobs in trained.logprobs.items():
        assert shared.loop.run(fixed_logprobs(shared.model, name)) == pytest.approx(logprobs, abs=1e-4)
    assert all(result.metrics["sync/logprob_gap"] < 1e-4 for result in trained.results[:1])


def test_no_name_is_given_out_before_the_server_lists_it(trained: Observed) -> None:
    assert trained.unlisted == []
    assert trained.names == names_of(trained)


def test_rollouts_go_on_around_every_step(trained: Observed) -> None:
    assert len(trained.answers) > 20
    assert set(trained.answers) == {"length"}


def test_callers_event_loop_is_never_held_up(trained: Observed) -> None:
    assert len(trained.pauses_s) > 100
    assert max(trained.pauses_s) < LONGEST_PAUSE_S


def test_metrics_of_a_step(trained: Observed) -> None:
    metrics = trained.results[0].metrics
    assert set(metrics) == TRAIN_STEP_KEYS
    assert metrics["data/step_num_gradient_steps"] == metrics["data/step_num_packed_rows"] > 2
    assert metrics["sync/served_step"] == trained.first + 1


def test_metrics_of_a_step_without_anything_to_learn(trained: Observed) -> None:
    metrics = trained.results[1].metrics
    assert metrics["data/step_num_groups_submitted"] == 2
    for key in ("num_groups_trainable", "trainer_tokens", "num_gradient_steps"):
        assert metrics[f"data/step_{key}"] == 0
    assert metrics["sync/served_step"] == trained.first + 3


def test_files_of_a_run(shared: SharedRun, trained: Observed) -> None:
    steps = [trained.first + number for number in range(4)]
    assert trained.results[0].checkpoint_path == str(checkpoint_dir(shared.model_dir, steps[1]))
    for step in steps:
        files = {path.name for path in checkpoint_dir(shared.model_dir, step).iterdir()}
        assert {"adapter_config.json", "adapter_model.safetensors", "probe.json", "tokenizer.json"} <= files
        assert "trainer_state.pt" not in files or step in steps[2:], "it is large: the last trained step only"
    rows = [json.loads(line) for line in (shared.model_dir / "history.jsonl").read_text().splitlines()]
    assert [row["training_step"] for row in rows if "loss/train" in row][-2:] == steps[1:3]
    written = {path.name for path in (shared.model_dir / "trajectories" / "train").iterdir()}
    assert {f"{step:04d}.parquet" for step in steps[1:]} <= written


def test_copies_of_a_model_follow_its_steps(shared: SharedRun, trained: Observed) -> None:
    copied = copy.deepcopy(shared.model)
    newest = f"tiny@{max(list_steps(shared.model_dir))}"
    assert copied.get_inference_name() == shared.model.get_inference_name() == newest
    assert copied.get_inference_name(step=1) == "tiny@1"


def test_leased_step_stays_after_its_checkpoint_is_deleted(shared: SharedRun, trained: Observed) -> None:
    async def scenario() -> tuple[str, list[float], set[str]]:
        async with shared.backend.adapter_lease(shared.model, trained.first + 1) as name:
            assert shared.model.get_inference_name() == name
            await shared.model.delete_checkpoints()
            return name, await fixed_logprobs(shared.model), await listed_names(shared.model)

    newest = max(list_steps(shared.model_dir))
    name, logprobs, listed = shared.loop.run(scenario())
    assert name == f"tiny@{trained.first + 1}"
    assert logprobs == pytest.approx(trained.logprobs[name], abs=1e-4)
    assert listed == {name, f"tiny@{newest}", shared.model.base_model}
    assert list_steps(shared.model_dir) == [trained.first + 1, newest]
    assert shared.model.get_inference_name() == f"tiny@{newest}"


def test_state_is_kept_beside_the_run(shared: SharedRun) -> None:
    shared.model.merge_state({"seen": 3})
    assert json.loads((shared.model_dir / "state.json").read_text())["seen"] == 3
