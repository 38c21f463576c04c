"""Functions, iterators, files and configurations that are not as they should be."""

from __future__ import annotations

import asyncio
import errno
import itertools
import random
import time
from pathlib import Path
from typing import Any

import pytest

from art.errors import DataError, LocalServingUnavailableError, PipelineStalledError
from art.model.state import StateFile
from art.pipeline_trainer import PipelineTrainer, loop_watch
from art.trajectories import TrajectoryGroup
from tests.support.scripted_pipeline import (
    Model,
    ScriptedBackend,
    make_group,
    make_scenarios,
    read_history,
    read_progress,
    roll_out,
)
from tests.unit.pipeline_trainer.conftest import MakeTrainer

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(20)]


def all_trained(backend: ScriptedBackend) -> list[int]:
    return sorted(offset for offsets in backend.trained().values() for offset in offsets)


async def test_code_that_holds_up_the_event_loop_is_named(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop_watch, "BEAT_INTERVAL_S", 0.01)
    monkeypatch.setattr(loop_watch, "NOTICE_AFTER_S", 0.1)

    async def block_the_loop(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        until = time.monotonic() + 10
        while scenario["offset"] == 1 and "in block_the_loop" not in caplog.text and time.monotonic() < until:
            time.sleep(0.01)  # noqa: ASYNC251 - on purpose
        return make_group(0.0, 1.0)

    await make_trainer(4, rollout_fn=block_the_loop, num_rollout_workers=1).train()
    notices = [record.getMessage() for record in caplog.records if "in block_the_loop" in record.getMessage()]
    assert "the event loop has been held up for" in notices[0]
    assert "worker 0: running the rollout of scenario 1" in notices[0]


async def test_an_evaluation_that_does_not_end_is_not_waited_for(make_trainer: MakeTrainer) -> None:
    release = asyncio.Event()

    async def evaluate(model: Model, step: int, config: Any) -> list[Any]:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return []

    with pytest.raises(PipelineStalledError, match="evaluation of step 0: running"):
        await make_trainer(4, eval_fn=evaluate, stall_timeout_s=0.3).train()
    release.set()
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0)


async def test_rollouts_that_outlive_their_time_limit_are_named(make_trainer: MakeTrainer) -> None:
    release = asyncio.Event()

    async def swallow(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return make_group(0.0, 1.0)

    trainer = make_trainer(4, rollout_fn=swallow, rollout_timeout_s=0.05, stall_timeout_s=0.5)
    with pytest.raises(PipelineStalledError, match=r"worker 0 waits in Event\.wait") as caught:
        await trainer.train()
    assert "worker 0: running the rollout of scenario 0" in caught.value.report
    release.set()
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0)


async def test_a_backend_that_hangs_at_the_start_is_not_waited_for(
    backend: ScriptedBackend, make_trainer: MakeTrainer
) -> None:
    async def hang(model: Model) -> None:
        await asyncio.Event().wait()

    backend.serve_newest = hang  # type: ignore[attr-defined]
    with pytest.raises(PipelineStalledError, match=r"did not serve its newest step within 0\.05 s"):
        await make_trainer(4, stall_timeout_s=0.05).train()


@pytest.mark.parametrize("fails", [False, True])
async def test_an_iterator_that_was_cut_off_is_not_taken_for_one_that_has_ended(
    backend: ScriptedBackend, make_trainer: MakeTrainer, fails: bool
) -> None:
    is_waiting = asyncio.Event()

    async def generate() -> Any:
        for scenario in make_scenarios(2):
            yield scenario
        if fails:
            raise OSError("the source is gone")
        is_waiting.set()
        await asyncio.Event().wait()

    trainer = make_trainer(generate())
    run = asyncio.create_task(trainer.train())
    if fails:
        with pytest.raises(OSError, match="the source is gone"):
            await run
    else:
        await is_waiting.wait()
        trainer.request_stop()
        await run
    with pytest.raises(RuntimeError, match="make a new trainer with a new iterator"):
        await trainer.train()
    await make_trainer(4).train()
    assert all_trained(backend) == [0, 1, 2, 3]


def refuse_to_save(monkeypatch: pytest.MonkeyPatch) -> None:
    def merge(file: StateFile, updates: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(StateFile, "merge", merge)


@pytest.mark.parametrize("at_step", [1, 2])
async def test_progress_that_cannot_be_saved_ends_the_run_and_the_next_one_loses_nothing(
    backend: ScriptedBackend, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, at_step: int
) -> None:
    async def before_step(step: int) -> None:
        if step == at_step:
            refuse_to_save(monkeypatch)

    backend.before_step = before_step
    with pytest.raises(OSError, match="No space left"):
        await make_trainer(8).train()
    assert backend.newest() == at_step
    monkeypatch.undo()
    backend.before_step = None
    await make_trainer(8).train()
    assert all_trained(backend) == list(range(8))


async def test_a_full_disk_does_not_hide_what_ended_the_run(
    backend: ScriptedBackend,
    make_trainer: MakeTrainer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        if scenario["offset"] == 3:
            refuse_to_save(monkeypatch)
            backend.failure = LocalServingUnavailableError("killed by SIGKILL")
            raise ConnectionError("refused")
        return make_group(0.0, 1.0)

    with pytest.raises(LocalServingUnavailableError, match="SIGKILL"):
        await make_trainer(8, rollout_fn=rollout, num_rollout_workers=1, min_batch_size=8, max_batch_size=8).train()
    assert "the progress was not saved at the end" in caplog.text


async def test_a_run_that_ends_well_but_is_not_saved_says_so(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_to_save(monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        await make_trainer(0).train()


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"_pipeline_trainer": 3}',
        b'{"_pipeline_trainer": {"unfinished_offsets": "all"}}',
        b'{"_pipeline_trainer": {"training_step": "first"}}',
        b'{"_pipeline_trainer": {"batch": [1]}}',
        b'{"_pipeline_trainer": {"batch": {"step": "x", "offsets": []}}}',
    ],
)
async def test_a_broken_state_is_named_before_anything_runs(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer, content: bytes
) -> None:
    path = Path(model._get_output_dir()) / "state.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"state\.json"):
        await make_trainer(4).train()
    assert backend.trained() == {}
    assert path.read_bytes() == content
    if b"_pipeline_trainer" in content:
        await make_trainer(4, resume=False).train()
        assert all_trained(backend) == [0, 1, 2, 3]


async def test_two_pipelines_of_one_model_are_refused(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer
) -> None:
    async def before_step(step: int) -> None:
        if step == 1:
            twin = model.model_copy()
            with pytest.raises(RuntimeError, match="another pipeline of this process trains the model"):
                await PipelineTrainer(twin, backend, roll_out, make_scenarios(4), None).train()

    backend.before_step = before_step
    await make_trainer(4).train()
    await make_trainer(4, resume=False).train()
    assert backend.trained() == {1: [0, 1], 2: [2, 3], 3: [0, 1], 4: [2, 3]}


async def test_a_resumed_run_may_have_other_settings_and_fewer_scenarios(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    await make_trainer(40, num_rollout_workers=8, min_batch_size=6, max_batch_size=6, max_steps=2).train()
    assert len(read_progress(model)["unfinished_offsets"]) > 0
    await make_trainer(
        30,
        num_rollout_workers=1,
        min_batch_size=1,
        max_batch_size=1,
        queue_maxsize=1,
        max_steps_off_policy=0,
        max_steps=1,
    ).train()
    assert len(backend.trained()[3]) == 1
    await make_trainer(
        30, num_rollout_workers=3, min_batch_size=4, max_batch_size=9, max_steps_off_policy=50, queue_maxsize=2
    ).train()
    trained = all_trained(backend)
    assert len(trained) == len(set(trained))
    lost = set(range(30)) - set(trained)
    assert len(lost) <= 2  # which were too old where none may be
    caplog.clear()
    await make_trainer(10).train()
    assert "the scenarios end after 10" in caplog.text
    assert all_trained(backend) == trained


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_older_than_allowed_is_ever_trained(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer, seed: int
) -> None:
    dice = random.Random(seed)
    limit = seed % 3

    async def pause() -> None:
        for _ in range(dice.randrange(60)):
            await asyncio.sleep(0)

    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        await pause()
        return make_group(0.0, 1.0)

    async def before_step(step: int) -> None:
        await pause()

    backend.before_step = before_step
    trainer = make_trainer(
        itertools.cycle(make_scenarios(50)),
        rollout_fn=rollout,
        num_rollout_workers=6,
        max_batch_size=4,
        max_steps_off_policy=limit,
        queue_maxsize=12,
        max_steps=15,
    )
    await trainer.train()
    rows = [row for row in read_history(model) if "pipeline/max_steps_off_policy" in row]
    assert len(rows) == 15
    assert max(row["pipeline/max_steps_off_policy"] for row in rows) <= limit + 1
    assert rows[-1]["train/discarded_stale_groups"] <= trainer.state.discarded_stale_groups
    assert trainer.state.discarded_stale_groups > 0 or limit > 1
