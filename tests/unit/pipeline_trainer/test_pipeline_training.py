"""Training of a pipeline: batches, options, metrics, collapse, checkpoints."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from art.errors import TrainingError
from art.model import history
from art.pipeline_trainer import CheckpointRetentionContext, PipelineTrainer
from art.trajectories import TrajectoryGroup
from art.types import TrainResult
from tests.support.scripted_pipeline import (
    Model,
    ScriptedBackend,
    make_group,
    make_scenarios,
    read_history,
    read_progress,
    register,
    roll_out,
)
from tests.unit.pipeline_trainer.conftest import MakeTrainer

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(20)]


async def test_batches_keep_between_both_sizes(backend: ScriptedBackend, make_trainer: MakeTrainer) -> None:
    async def before_step(step: int) -> None:
        while trainer.state.scenario_offset < 14:
            await asyncio.sleep(0)

    backend.before_step = before_step
    trainer = make_trainer(14, min_batch_size=2, max_batch_size=5, num_rollout_workers=4, queue_maxsize=20)
    await trainer.train()
    sizes = [len(offsets) for offsets in backend.trained().values()]
    assert sum(sizes) == 14
    assert max(sizes) == 5
    assert all(size >= 2 for size in sizes[:-1])


async def test_training_ends_after_so_many_more_steps(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer
) -> None:
    trainer = make_trainer(itertools.cycle(make_scenarios(5)), max_steps=3)
    await trainer.train()
    assert backend.newest() == 3
    await trainer.train()
    assert backend.newest() == 6
    assert trainer.state.policy_version == trainer.state.next_training_step == 6
    assert read_progress(model)["training_step"] == 6


async def test_the_last_batch_may_be_small(backend: ScriptedBackend, make_trainer: MakeTrainer) -> None:
    await make_trainer(5, num_rollout_workers=1).train()
    assert backend.trained() == {1: [0, 1], 2: [2, 3], 3: [4]}


async def test_the_backend_is_told_the_options(backend: ScriptedBackend, make_trainer: MakeTrainer) -> None:
    async def evaluate(model: Model, step: int, config: Any) -> list[Any]:
        return []

    await make_trainer(
        8, eval_fn=evaluate, eval_every_n_steps=2, learning_rate=0.25, loss_fn="ppo", packed_sequence_length=64
    ).train()
    expected = {
        "learning_rate": 0.25,
        "loss_fn": "ppo",
        "loss_fn_config": None,
        "normalize_advantages": True,
        "adam_params": None,
        "packed_sequence_length": 64,
    }
    saves = [False, True, False, True]
    assert backend.options == [{**expected, "save_checkpoint": is_saved} for is_saved in saves]


class SmallBackend(ScriptedBackend):
    async def train(  # type: ignore[override]
        self, model: Any, trajectory_groups: Iterable[TrajectoryGroup], *, learning_rate: float = 0.5
    ) -> TrainResult:
        return await super().train(model, trajectory_groups, learning_rate=learning_rate)


async def test_a_backend_with_few_options_is_told_what_it_takes(tmp_path: Path) -> None:
    backend = SmallBackend(tmp_path)
    model = await register(backend)

    def make(**settings: Any) -> PipelineTrainer[Any, Any]:
        return PipelineTrainer(model, backend, roll_out, make_scenarios(4), None, **settings)

    await make(learning_rate=0.125).train()
    assert backend.options == [{"learning_rate": 0.125}]
    for name, value in {"loss_fn": "ppo", "normalize_advantages": False, "packed_sequence_length": 8}.items():
        with pytest.raises(ValueError, match=rf"{name}={value!r} cannot be honoured: SmallBackend.train"):
            await make(**{name: value}).train()


async def test_the_backend_may_refuse_options_before_anything_runs(
    backend: ScriptedBackend, make_trainer: MakeTrainer
) -> None:
    def check(model: Model, options: dict[str, Any]) -> None:
        raise ValueError(f"not {options['loss_fn']}")

    backend.check_pipeline_options = check  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="not sum"):
        await make_trainer(loss_fn="sum").train()
    assert backend.trained() == {}


async def test_metrics_of_a_step(backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer) -> None:
    await make_trainer(4, num_rollout_workers=1).train()
    rows = [row for row in read_history(model) if "train/reward" in row]
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["train/reward"] == 0.5
        assert row["loss/train"] == 0.5
        assert row["data/step_num_groups_submitted"] == 2
        assert row["train/discarded_stale_groups"] == 0
        assert 1 <= row["train/steps_off_policy"] <= 2
        for key in ("time/step_wall_s", "time/step_trainer_s", "time/step_actor_s", "throughput/step_trainer_idle_s"):
            assert row[key] > 0
        assert row["throughput/step_actor_idle_s"] >= 0
        assert {"pipeline/rollouts_per_s", "pipeline/queued_groups", "pipeline/rollouts_running"} <= set(row)
    saved = sorted((Path(model._get_output_dir()) / "trajectories" / "train").glob("*.parquet"))
    assert [path.name for path in saved] == ["0001.parquet", "0002.parquet"]


async def test_a_collapse_ends_training_and_keeps_the_batch(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        return make_group(0.0, 1.0) if scenario["offset"] in (0, 1, 2) else make_group(1.0, 1.0)

    trainer = make_trainer(
        itertools.cycle(make_scenarios(1000)), rollout_fn=rollout, discard_queue_multiplier=3, num_rollout_workers=1
    )
    await trainer.train()
    assert trainer.collapsed
    assert backend.trained() == {1: [0, 1], 2: [2]}
    assert "collapse: the rewards within each of 6 groups were equal since step 1" in caplog.text
    discarded = [row for row in read_history(model) if "discarded/reward" in row]
    assert [(row["step"], row["discarded/reward"]) for row in discarded] == [(2, 1.0)]
    assert read_progress(model)["unfinished_offsets"] == list(range(9, read_progress(model)["scenario_offset"]))


async def test_groups_without_variance_are_logged_apart(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer
) -> None:
    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        return make_group(0.25, 0.25) if scenario["offset"] % 2 else make_group(0.0, 1.0)

    trainer = make_trainer(8, rollout_fn=rollout, num_rollout_workers=1)
    await trainer.train()
    assert backend.trained() == {1: [0, 2], 2: [4, 6]}
    assert not trainer.collapsed
    rows = read_history(model)
    assert [row["discarded/reward"] for row in rows if "discarded/reward" in row] == [0.25, 0.25, 0.25]
    assert [row for row in rows if "train/reward" in row][-1]["pipeline/discarded_zero_variance_groups"] == 3


async def test_a_step_that_fails_ends_the_run_and_its_batch_comes_again(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer
) -> None:
    async def before_step(step: int) -> None:
        if step == 2:
            raise MemoryError("no room")

    backend.before_step = before_step
    trainer = make_trainer(6, num_rollout_workers=1)
    with pytest.raises(MemoryError, match="no room"):
        await trainer.train()
    progress = read_progress(model)
    assert (progress["training_step"], progress["batch"]) == (1, None)
    assert {2, 3} <= set(progress["unfinished_offsets"])
    backend.before_step = None
    await trainer.train()
    assert sorted(offset for offsets in backend.trained().values() for offset in offsets) == [0, 1, 2, 3, 4, 5]
    assert read_progress(model)["unfinished_offsets"] == []


async def test_a_step_that_was_saved_but_not_served_counts_as_trained(
    backend: ScriptedBackend, make_trainer: MakeTrainer
) -> None:
    async def after_step(step: int) -> None:
        if step == 2:
            raise RuntimeError("not served")

    backend.after_step = after_step
    trainer = make_trainer(6, num_rollout_workers=1)
    with pytest.raises(RuntimeError, match="not served"):
        await trainer.train()
    backend.after_step = None
    await trainer.train()
    assert sorted(offset for offsets in backend.trained().values() for offset in offsets) == [0, 1, 2, 3, 4, 5]


async def test_a_backend_that_does_not_advance_is_an_error(
    backend: ScriptedBackend, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def train(model: Model, groups: Any, **options: Any) -> TrainResult:
        return TrainResult(step=0)

    monkeypatch.setattr(backend, "train", train)
    with pytest.raises(TrainingError, match="after training on step 0 the backend says it is at step 0"):
        await make_trainer().train()


@pytest.mark.parametrize("is_on", [False, True])
async def test_train_calls_are_reported_on_request(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_on: bool
) -> None:
    if is_on:
        monkeypatch.setenv("ART_TRAIN_STEP_LOG", "1")
    with caplog.at_level("INFO"):
        await make_trainer(2).train()
    assert ("train call starts: step=1 groups=2" in caplog.text) is is_on
    assert ("train call ended: step=1" in caplog.text) is is_on


async def test_nothing_is_trained_where_no_steps_are_wanted(
    backend: ScriptedBackend, make_trainer: MakeTrainer
) -> None:
    await make_trainer(max_steps=0).train()
    assert backend.trained() == {}


def make_checkpoints(model: Model, *steps: int) -> None:
    """Make folders that count as complete checkpoints."""
    for step in steps:
        folder = Path(model._get_output_dir()) / "checkpoints" / f"{step:04d}"
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text("{}")
        header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
        (folder / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)


async def test_only_what_nobody_needs_may_be_deleted(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer
) -> None:
    contexts: list[CheckpointRetentionContext] = []
    pruned: list[set[int]] = []
    hold = asyncio.Event()

    def keep_nothing(context: CheckpointRetentionContext) -> list[int]:
        contexts.append(context)
        return []

    async def evaluate(model: Model, step: int, config: Any) -> list[Any]:
        if step == 2:
            await hold.wait()
        return [*make_group(0.5)]

    async def after_step(step: int) -> None:
        make_checkpoints(model, step)
        if step == 6:
            hold.set()

    async def prune(model: Model, *, retain_steps: set[int]) -> None:
        pruned.append(retain_steps)

    make_checkpoints(model, 0)
    backend.after_step = after_step
    backend.prune_model_adapters = prune  # type: ignore[attr-defined]
    await make_trainer(
        12, eval_fn=evaluate, eval_every_n_steps=2, checkpoint_retention_strategy=keep_nothing, num_rollout_workers=1
    ).train()
    kept = {max(keep): set(keep) for name, keep in backend.calls if name == "delete"}
    for context in contexts:
        assert context.current_step not in {checkpoint.step for checkpoint in context.checkpoints}
    assert {3, 4, 5} <= set(kept)  # at step 1, a rollout or an evaluation may still hold step 0
    assert 2 in kept[3]  # its evaluation is running
    assert {2, 4} <= kept[4] & kept[5]  # and that of step 4 waits for it
    assert all(max(keep) in retained for keep, retained in zip(kept.values(), pruned, strict=True))
    infos = {checkpoint.step: checkpoint for checkpoint in contexts[-1].checkpoints}
    rows = read_history(model)
    assert [row["step"] for row in rows if "checkpoint/saved" in row] == [1, 2, 3, 4, 5, 6]
    assert sorted(row["step"] for row in rows if "checkpoint/eval_completed" in row) == [0, 2, 4, 6]
    assert infos[0].is_eval_step
    assert infos[0].metrics["val/reward"] == 0.5
    created_s = infos[1].metrics["checkpoint/created_at_unix"]
    assert infos[1].created_at.timestamp() == pytest.approx(created_s, abs=1e-5)


async def test_a_strategy_that_fails_deletes_nothing(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(context: CheckpointRetentionContext) -> list[int]:
        raise KeyError("wrong")

    make_checkpoints(model, 0)
    await make_trainer(4, checkpoint_retention_strategy=fail, checkpoint_retention_interval=2).train()
    assert backend.newest() == 2
    assert not [call for call in backend.calls if call[0] == "delete"]
    assert caplog.text.count("the checkpoint retention strategy failed") == 1


async def test_the_history_is_read_once_however_often_checkpoints_are_chosen(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[int, dict[str, float]]] = []
    parsed: list[bytes] = []

    def choose(context: CheckpointRetentionContext) -> list[int]:
        seen.append({checkpoint.step: checkpoint.metrics for checkpoint in context.checkpoints})
        return [1, 2]

    async def delete(model: Model, keep: list[int]) -> None:
        for folder in (Path(model._get_output_dir()) / "checkpoints").iterdir():
            if int(folder.name) not in keep:
                shutil.rmtree(folder)

    async def after_step(step: int) -> None:
        make_checkpoints(model, step)

    def add_row(numbers: Any, line: bytes, *at: Any) -> None:
        parsed.append(line)
        read_row(numbers, line, *at)

    read_row = history._add_row
    monkeypatch.setattr(history, "_add_row", add_row)
    monkeypatch.setattr(backend, "_delete_checkpoint_files", delete)
    backend.after_step = after_step
    make_checkpoints(model, 0)
    await make_trainer(20, checkpoint_retention_strategy=choose, num_rollout_workers=1, max_steps_off_policy=0).train()
    assert backend.newest() >= 4
    assert sorted(seen[-1]) == [1, 2, backend.newest() - 1]
    assert {metrics.get("train/reward") for metrics in seen[-1].values()} == {0.5}
    assert len(parsed) == len(set(parsed)) == len(read_history(model))


async def test_checkpoints_that_cannot_be_deleted_do_not_end_the_run(
    backend: ScriptedBackend,
    model: Model,
    make_trainer: MakeTrainer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(model: Model, keep: list[int]) -> None:
        raise OSError("a read-only file system")

    async def after_step(step: int) -> None:
        make_checkpoints(model, step)

    monkeypatch.setattr(backend, "_delete_checkpoint_files", fail)
    backend.after_step = after_step
    await make_trainer(8, checkpoint_retention_strategy=lambda context: [], num_rollout_workers=1).train()
    assert backend.newest() == 4
    assert "checkpoints that may go were not deleted" in caplog.text
