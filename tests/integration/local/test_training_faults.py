"""Whatever fails in a step: the step before is served on, the trainer is rolled back, and the next step works."""

from __future__ import annotations

import asyncio
import re

import pytest
import torch

from art.checkpoints import checkpoints_dir, newest_step
from art.errors import AdapterLoadError, CheckpointError, NonFiniteLossError
from tests.integration.local.conftest import SharedRun
from tests.support.local_run import LEARNING_RATE, fixed_logprobs, listed_names, sample, train_step

pytestmark = pytest.mark.integration

FAULTS = [
    pytest.param("loss", "RuntimeError", RuntimeError, "RuntimeError ordered by a test", id="exception"),
    pytest.param("loss", "nan", NonFiniteLossError, r"none of the \d+ optimizer steps", id="non-finite-loss"),
    pytest.param("loss", "torch.OutOfMemoryError", torch.OutOfMemoryError, "CUDA out of memory", id="gpu-memory"),
    pytest.param("loss", "MemoryError", MemoryError, "MemoryError ordered by a test", id="host-memory"),
    pytest.param(
        "saving", "disk_full:10000", CheckpointError, "adapter_model.safetensors cannot be written", id="full"
    ),
    pytest.param("saving", "disk_full:150000", CheckpointError, "trainer_state.pt cannot be written", id="nearly-full"),
    pytest.param("saving", "ENOSPC", CheckpointError, "not written to .*No space left on device", id="no-space"),
]


@pytest.mark.parametrize(("place", "order", "kind", "message"), FAULTS)
def test_failed_step_changes_nothing(
    shared: SharedRun, place: str, order: str, kind: type[BaseException], message: str
) -> None:
    model, loop = shared.model, shared.loop
    served, newest = model.get_inference_name(), newest_step(shared.model_dir)
    before = loop.run(fixed_logprobs(model))
    groups = loop.run(sample(model))
    shared.faults.order(place, order, after=1 if place == "loss" and order != "nan" else 0)

    with pytest.raises(kind, match=re.compile(message, re.DOTALL)) as caught:
        loop.run(train_step(shared.backend, model, groups))

    assert type(caught.value) is kind
    shared.faults.wait_reached(0)
    shared.faults.clear()
    assert model.get_inference_name() == model.inference_model_name == served
    assert newest_step(shared.model_dir) == newest
    assert list(checkpoints_dir(shared.model_dir).glob(".*")) == []
    assert loop.run(fixed_logprobs(model)) == pytest.approx(before, abs=1e-4)


def test_training_after_a_failed_step_does_what_it_would_have_done_without_it(shared: SharedRun) -> None:
    groups = shared.loop.run(sample(shared.model))
    shared.faults.order("saving", "RuntimeError")  # the optimizer step of this batch has been taken by then
    with pytest.raises(RuntimeError, match="ordered by a test"):
        shared.loop.run(shared.backend.train(shared.model, groups, learning_rate=LEARNING_RATE))
    after_failure = shared.loop.run(shared.backend.train(shared.model, groups, learning_rate=LEARNING_RATE))
    # A trainer that was not rolled back would begin with other weights than those that sampled.
    assert after_failure.metrics["data/step_num_gradient_steps"] == 1
    assert after_failure.metrics["loss/probs_corr"] == pytest.approx(1.0, abs=1e-4)
    assert after_failure.metrics["sync/logprob_gap"] < 1e-4
    name = shared.model.get_inference_name()
    assert name == f"tiny@{after_failure.step}"
    assert name in shared.loop.run(listed_names(shared.model))


def test_step_that_the_engine_refuses_is_kept_and_the_next_one_is_served(shared: SharedRun) -> None:
    served, newest = shared.model.get_inference_name(), newest_step(shared.model_dir)
    assert newest is not None
    before = shared.loop.run(fixed_logprobs(shared.model))
    shared.faults.order("loading", "AdapterRefusedError")

    with pytest.raises(AdapterLoadError, match=r"the engine refused \(ordered by a test\)") as caught:
        shared.loop.run(train_step(shared.backend, shared.model))

    assert caught.value.step == newest + 1
    assert newest_step(shared.model_dir) == newest + 1, "the step itself is saved"
    assert shared.model.get_inference_name() == shared.model.inference_model_name == served
    assert f"tiny@{newest + 1}" not in shared.loop.run(listed_names(shared.model))
    assert shared.loop.run(fixed_logprobs(shared.model)) == pytest.approx(before, abs=1e-4)
    result = shared.loop.run(train_step(shared.backend, shared.model))
    assert result.step == newest + 2
    assert shared.model.get_inference_name() == f"tiny@{newest + 2}"
    assert result.metrics["sync/logprob_gap"] < 1e-4


def test_cancelled_step_changes_nothing_and_the_next_one_works(shared: SharedRun) -> None:
    served = shared.model.get_inference_name()
    newest = newest_step(shared.model_dir)
    assert newest is not None

    async def scenario() -> None:
        groups = await sample(shared.model)
        shared.faults.order("loss", "wait", after=1)
        training = asyncio.create_task(train_step(shared.backend, shared.model, groups))
        await asyncio.to_thread(shared.faults.wait_reached)
        training.cancel()
        hosted = shared.backend._hosted(shared.model)
        for _ in range(10):  # by then the child has heard of the cancellation, which was sent before
            await hosted.actor.served_step()
        assert not training.done()  # the row is still being trained
        shared.faults.go_on()
        with pytest.raises(asyncio.CancelledError):
            await training

    shared.loop.run(scenario())
    assert shared.loop.run(fixed_logprobs(shared.model))  # waits until generation goes on
    assert shared.model.get_inference_name() == served
    assert newest_step(shared.model_dir) == newest
    shared.faults.clear()
    assert shared.loop.run(train_step(shared.backend, shared.model)).step == newest + 1
