from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from art.checkpoints import stage_checkpoint
from art.dev.settings import TrainSettings
from art.errors import ConfigurationError, NonFiniteLossError, NoTrainableTokensError, TrainingError
from art.preprocessing.disk import DiskPackedTensors, packed_tensors_to_dir
from art.probe import AdapterProbe
from art.unsloth import train as train_module
from art.unsloth.language_model import LanguageModel
from art.unsloth.trainer import LoraTrainer
from tests.support.lora_models import randomize_adapter
from tests.support.packed_rows import Completion, Group, make_batch, pack_row
from tests.unit.unsloth.conftest import MakeTrainer

SETTINGS = TrainSettings(learning_rate=1e-2)
GOOD, BAD = [60, 61, 7], [99, 12, 13, 2]
ROW = pack_row([Group([5, 17, 200, 31], [Completion(GOOD, 1.0), Completion(BAD, -1.0)])])
ROWS = [ROW, pack_row([Group([9, 300, 41], [Completion([3, 250], 1.0), Completion([251, 4], -1.0)])])]
WriteBatch = Callable[..., DiskPackedTensors]


@pytest.fixture
def write_batch(tmp_path: Path) -> WriteBatch:
    def write(rows: list[Any] = ROWS, **changes: Any) -> DiskPackedTensors:
        batch: Any = make_batch(rows)
        for key, (row, value) in changes.items():
            batch[key][row] = torch.where(batch["assistant_mask"][row], value, batch[key][row])
        return packed_tensors_to_dir(batch, tmp_path / "tensors")

    return write


def model_of(trainer: LoraTrainer) -> LanguageModel:
    return trainer._require_loaded().model


def weights_of(trainer: LoraTrainer) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model_of(trainer).adapter_parameters().items()}


def optimizer_of(trainer: LoraTrainer) -> dict[int, dict[str, torch.Tensor]]:
    state: dict[int, dict[str, torch.Tensor]] = trainer._require_loaded().optimizer.state_dict()["state"]
    return {key: {name: value.clone() for name, value in entry.items()} for key, entry in state.items()}


def assert_same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, atol=0, rtol=0)


def save_step(trainer: LoraTrainer, output_dir: Path, step: int) -> Path:
    with stage_checkpoint(output_dir, step) as staging:
        trainer.save(staging, include_optimizer=True)
    return output_dir / "checkpoints" / f"{step:04d}"


def logprob(trainer: LoraTrainer, tokens: list[int]) -> float:
    return float(model_of(trainer).score_sequence([5, 17, 200, 31, *tokens])[3:].sum())


def test_training_makes_good_tokens_likelier_and_bad_ones_less_so(
    make_trainer: MakeTrainer, write_batch: WriteBatch
) -> None:
    trainer = make_trainer()
    good, bad = logprob(trainer, GOOD), logprob(trainer, BAD)
    batch = write_batch([ROW])
    for _ in range(3):
        list(trainer.train(batch, SETTINGS))
    assert logprob(trainer, GOOD) > good + 0.3
    assert logprob(trainer, BAD) < bad - 0.3


def test_one_dictionary_for_each_row_with_the_counts_in_the_last(
    make_trainer: MakeTrainer, write_batch: WriteBatch
) -> None:
    trainer = make_trainer()
    metrics = list(trainer.train(write_batch(), SETTINGS))
    always = {
        "loss/train",
        "loss/entropy",
        "loss/learning_rate",
        "loss/grad_norm",
        "time/gradient_step_s",
        "data/gradient_step_tokens",
        "data/gradient_step_trainable_tokens",
    }
    assert [set(entry) for entry in metrics] == [always, always | {"data/step_num_skipped_nonfinite"}]
    assert metrics[1]["data/step_num_skipped_nonfinite"] == 0
    assert [entry["loss/learning_rate"] for entry in metrics] == [1e-2, 1e-2]
    # 3 shared tokens, then the prompt's last token with each completion of 3 and 4 tokens.
    assert metrics[0]["data/gradient_step_tokens"] == 12
    assert metrics[0]["data/gradient_step_trainable_tokens"] == 7
    assert metrics[0]["loss/grad_norm"] > 0


def test_loss_of_the_first_row_by_the_library(make_trainer: MakeTrainer, write_batch: WriteBatch) -> None:
    trainer = make_trainer()
    # Where nothing was sampled the ratio is 1: the loss is the mean of -A * logprob.
    expected = (-logprob(trainer, GOOD) + logprob(trainer, BAD)) / 7
    metrics = next(iter(trainer.train(write_batch([ROW]), SETTINGS)))
    assert metrics["loss/train"] == pytest.approx(expected, abs=1e-4)


def test_sampled_logprobs_are_compared_with_the_new_ones(make_trainer: MakeTrainer, write_batch: WriteBatch) -> None:
    row = pack_row([Group([5, 17, 200, 31], [Completion([60, 61], 1.0, [-5.0, -7.0]), Completion([99], -1.0, [-4.0])])])
    metrics = list(make_trainer().train(write_batch([row]), SETTINGS))
    assert -1 <= metrics[0]["loss/probs_corr"] <= 1


def test_fresh_adapters_are_equal_and_change_nothing(make_trainer: MakeTrainer) -> None:
    torch.manual_seed(1)
    first = make_trainer()
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = make_trainer()
    assert torch.equal(torch.get_rng_state(), state)
    assert_same(weights_of(first), weights_of(second))
    probe = first.probe()
    assert probe.logprobs == probe.base_logprobs
    other = make_trainer(peft_args={"random_state": 1})
    assert any(not torch.equal(value, weights_of(other)[name]) for name, value in weights_of(first).items())


def test_probe_agrees_with_the_library(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    randomize_adapter(model_of(trainer))
    probe = trainer.probe()
    peft_model = model_of(trainer).peft_model
    ids = torch.tensor([probe.token_ids])
    assert ids.shape == (1, 16)
    with torch.no_grad():
        logits = peft_model.eval()(input_ids=ids).logits[0, :-1]
        with peft_model.disable_adapter():
            base_logits = peft_model(input_ids=ids).logits[0, :-1]
    for found, expected in ((probe.logprobs, logits), (probe.base_logprobs, base_logits)):
        by_library = expected.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        assert list(found) == pytest.approx(by_library.tolist(), abs=1e-5)
    assert probe.logprobs != probe.base_logprobs
    assert probe.dtype == "float32"
    model_of(trainer).is_quantized = True
    assert trainer.probe().dtype == "quantized"


def test_saved_and_loaded_it_goes_on_as_if_it_had_never_stopped(
    make_trainer: MakeTrainer, write_batch: WriteBatch, tmp_path: Path
) -> None:
    batch = write_batch()
    trainer = make_trainer()
    list(trainer.train(batch, SETTINGS))
    path = save_step(trainer, tmp_path / "model", 1)
    written = {entry.name for entry in path.iterdir()}
    assert written >= {"adapter_config.json", "adapter_model.safetensors", "probe.json", "trainer_state.pt"}
    assert written >= {"tokenizer.json", "tokenizer_config.json"}
    assert AdapterProbe.read(path) == trainer.probe()

    resumed = make_trainer()
    assert_same(weights_of(resumed), weights_of(trainer))
    assert_same(optimizer_of(resumed), optimizer_of(trainer))
    assert resumed.probe() == trainer.probe()
    list(trainer.train(batch, SETTINGS))
    list(resumed.train(batch, SETTINGS))
    assert_same(weights_of(resumed), weights_of(trainer))


def test_saved_adapter_is_what_the_library_loads(
    make_trainer: MakeTrainer, write_batch: WriteBatch, tmp_path: Path, tiny_qwen3: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    trainer = make_trainer()
    list(trainer.train(write_batch(), SETTINGS))
    path = save_step(trainer, tmp_path / "model", 1)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_qwen3, dtype=torch.float32), path)
    probe = trainer.probe()
    ids = torch.tensor([probe.token_ids])
    with torch.no_grad():
        logprobs = model.eval()(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    assert list(probe.logprobs) == pytest.approx(logprobs.tolist(), abs=1e-5)


def test_without_optimizer_state_a_resumed_run_starts_it_anew(
    make_trainer: MakeTrainer, write_batch: WriteBatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer()
    list(trainer.train(write_batch(), SETTINGS))
    with stage_checkpoint(tmp_path / "model", 1) as staging:
        trainer.save(staging, include_optimizer=False)
    assert not (tmp_path / "model" / "checkpoints" / "0001" / "trainer_state.pt").exists()
    assert optimizer_of(make_trainer()) == {}

    path = save_step(trainer, tmp_path / "model", 2)
    (path / "trainer_state.pt").write_bytes(b"cut short")
    resumed = make_trainer()
    assert optimizer_of(resumed) == {}
    assert "optimizer state not restored" in caplog.text
    list(resumed.train(write_batch(), SETTINGS))


def test_adapter_of_the_checkpoint_wins_over_other_peft_arguments(
    make_trainer: MakeTrainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_step(make_trainer(peft_args={"r": 4}), tmp_path / "model", 0)
    resumed = make_trainer(peft_args={"r": 16})
    assert model_of(resumed).peft_model.peft_config["default"].r == 4
    assert "the checkpoint's adapter has r=4; peft_args asks for 16" in caplog.text


class Interruption(BaseException):
    """Something that is no Exception, like Ctrl-C."""


@pytest.mark.parametrize("cause", [RuntimeError, MemoryError, torch.OutOfMemoryError, KeyboardInterrupt, Interruption])
def test_what_raises_in_the_second_row_undoes_the_first(
    make_trainer: MakeTrainer,
    write_batch: WriteBatch,
    monkeypatch: pytest.MonkeyPatch,
    cause: type[BaseException],
) -> None:
    trainer = make_trainer()
    batch = write_batch()
    list(trainer.train(batch, SETTINGS))
    weights, optimizer = weights_of(trainer), optimizer_of(trainer)
    real, calls = train_module.loss_fn, iter([False, True])

    def failing(*arguments: Any) -> Any:
        if next(calls):
            raise cause("simulated")
        return real(*arguments)

    monkeypatch.setattr(train_module, "loss_fn", failing)
    torch.manual_seed(3)
    random_state = torch.get_rng_state()
    steps = trainer.train(batch, SETTINGS)
    next(steps)
    torch.rand(5)
    assert not torch.equal(torch.get_rng_state(), random_state)
    with pytest.raises(cause, match="simulated"):
        next(steps)

    assert_same(weights_of(trainer), weights)
    assert_same(optimizer_of(trainer), optimizer)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(value.grad is None for value in model_of(trainer).adapter_parameters().values())
    monkeypatch.undo()
    list(trainer.train(batch, SETTINGS))
    assert trainer.probe() == _trained_twice(make_trainer, batch).probe()


def _trained_twice(make_trainer: MakeTrainer, batch: DiskPackedTensors) -> LoraTrainer:
    trainer = make_trainer()
    for _ in range(2):
        list(trainer.train(batch, SETTINGS))
    return trainer


def test_a_generator_closed_early_undoes_its_steps(make_trainer: MakeTrainer, write_batch: WriteBatch) -> None:
    trainer = make_trainer()
    weights = weights_of(trainer)
    steps: Any = trainer.train(write_batch(), SETTINGS)
    next(steps)
    assert any(not torch.equal(value, weights[name]) for name, value in weights_of(trainer).items())
    steps.close()
    assert_same(weights_of(trainer), weights)
    assert optimizer_of(trainer) == {}


def test_a_snapshot_survives_training(make_trainer: MakeTrainer, write_batch: WriteBatch) -> None:
    trainer = make_trainer()
    batch = write_batch()
    list(trainer.train(batch, SETTINGS))
    weights, optimizer = weights_of(trainer), optimizer_of(trainer)
    snapshot = trainer.snapshot()
    for _ in range(2):
        list(trainer.train(batch, SETTINGS))
        assert any(not torch.equal(value, weights[name]) for name, value in weights_of(trainer).items())
        trainer.restore(snapshot)
        assert_same(weights_of(trainer), weights)
        assert_same(optimizer_of(trainer), optimizer)


def test_a_row_with_an_infinite_loss_is_left_out_and_counted(
    make_trainer: MakeTrainer, write_batch: WriteBatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainer, expected = make_trainer(), make_trainer()
    metrics = list(trainer.train(write_batch(advantages=(0, math.nan)), SETTINGS))
    assert "loss/train" not in metrics[0]
    assert metrics[1]["data/step_num_skipped_nonfinite"] == 1
    assert "row=0 its loss is nan" in caplog.text
    list(expected.train(write_batch(ROWS[1:]), SETTINGS))
    assert_same(weights_of(trainer), weights_of(expected))


def test_a_row_with_an_infinite_gradient_is_left_out(make_trainer: MakeTrainer, write_batch: WriteBatch) -> None:
    trainer = make_trainer()
    name, parameter = next(iter(model_of(trainer).adapter_parameters().items()))
    calls = iter([math.inf, 1.0])
    parameter.register_hook(lambda gradient: gradient * next(calls))
    metrics = list(trainer.train(write_batch(), SETTINGS))
    assert "loss/train" not in metrics[0]
    assert "loss/train" in metrics[1]
    assert metrics[1]["data/step_num_skipped_nonfinite"] == 1
    assert torch.isfinite(weights_of(trainer)[name]).all()


def test_no_finite_row_at_all_is_an_error_and_changes_nothing(
    make_trainer: MakeTrainer, write_batch: WriteBatch, tmp_path: Path
) -> None:
    trainer = make_trainer()
    save_step(trainer, tmp_path / "model", 4)
    weights = weights_of(trainer)
    with pytest.raises(NonFiniteLossError) as caught:
        list(trainer.train(write_batch([ROW], weights=(0, math.inf)), SETTINGS))
    assert (caught.value.step, caught.value.row) == (5, 0)
    assert_same(weights_of(trainer), weights)


def test_a_batch_without_trained_tokens_is_an_error(make_trainer: MakeTrainer, write_batch: WriteBatch) -> None:
    row = pack_row([Group([5, 17], [Completion([], 1.0)])])
    with pytest.raises(NoTrainableTokensError):
        list(make_trainer().train(write_batch([row]), SETTINGS))


def test_accumulated_rows_make_one_step_with_their_mean_gradient(
    make_trainer: MakeTrainer, write_batch: WriteBatch
) -> None:
    trainer_args = {"max_grad_norm": 0.0, "weight_decay": 0.0, "optim": "adamw_torch"}
    accumulating = make_trainer(trainer_args={**trainer_args, "gradient_accumulation_steps": 2})
    twice = make_trainer(trainer_args=trainer_args)
    three = write_batch([ROW, ROW, ROWS[1]])
    metrics = list(accumulating.train(three, SETTINGS))
    assert len(metrics) == 2  # two rows, then the one that is left
    # Two equal rows have the mean of one.
    expected = list(twice.train(write_batch([ROW, ROWS[1]]), SETTINGS))
    for found, wanted in zip(metrics, expected, strict=True):
        assert found["loss/grad_norm"] == pytest.approx(wanted["loss/grad_norm"], rel=1e-4)
    for name, value in weights_of(twice).items():
        torch.testing.assert_close(weights_of(accumulating)[name], value, atol=1e-5, rtol=0)


def test_settings_of_the_call_win_over_the_trainer_arguments(
    make_trainer: MakeTrainer, write_batch: WriteBatch
) -> None:
    trainer = make_trainer(trainer_args={"gradient_accumulation_steps": 2})
    assert len(list(trainer.train(write_batch(), replace(SETTINGS, grad_accumulation_sequences=1)))) == 2


def test_rate_is_multiplied_by_the_number_of_completions(make_trainer: MakeTrainer, write_batch: WriteBatch) -> None:
    trainer = make_trainer()
    row = pack_row([Group([5, 6], [Completion([7]), Completion([8]), Completion([9, 10], -1.0)])])
    settings = replace(SETTINGS, num_trajectories_learning_rate_multiplier_power=0.5)
    metrics = list(trainer.train(write_batch([row]), settings))
    assert metrics[0]["loss/learning_rate"] == 1e-2
    assert trainer._require_loaded().optimizer.param_groups[0]["lr"] == pytest.approx(1e-2 * math.sqrt(3))


def test_gradient_is_clipped(make_trainer: MakeTrainer, write_batch: WriteBatch) -> None:
    plain = {
        "optim": "adamw_torch",
        "weight_decay": 0.0,
        "adam_epsilon": 1e6,
    }  # so that a step is as long as its gradient
    moved = {}
    for limit in (0.0, 0.01):
        trainer = make_trainer(trainer_args={**plain, "max_grad_norm": limit})
        before = weights_of(trainer)
        (metrics,) = trainer.train(write_batch([ROW]), replace(SETTINGS, learning_rate=1e6))
        after = weights_of(trainer)
        moved[limit] = math.sqrt(sum(float((after[name] - before[name]).square().sum()) for name in before))
        norm = metrics["loss/grad_norm"]
    assert norm > 0.02  # reported before it is cut
    assert moved[0.01] == pytest.approx(moved[0.0] * 0.01 / norm, rel=0.02)


def test_reference_is_the_base_model(make_trainer: MakeTrainer, write_batch: WriteBatch) -> None:
    trainer = make_trainer()
    randomize_adapter(model_of(trainer))
    with model_of(trainer).peft_model.disable_adapter():
        base = logprob(trainer, GOOD) + logprob(trainer, BAD)
    drift = (logprob(trainer, GOOD) + logprob(trainer, BAD) - base) / 7
    (metrics,) = trainer.train(write_batch([ROW]), replace(SETTINGS, kl_penalty_coef=0.1))
    assert metrics["loss/kl_policy_ref"] == pytest.approx(drift, abs=1e-4)


def test_reference_is_a_saved_adapter(make_trainer: MakeTrainer, write_batch: WriteBatch, tmp_path: Path) -> None:
    trainer = make_trainer()
    randomize_adapter(model_of(trainer), seed=1)
    reference = save_step(trainer, tmp_path / "elsewhere", 3)
    saved = logprob(trainer, GOOD) + logprob(trainer, BAD)
    randomize_adapter(model_of(trainer), seed=2)
    drift = (logprob(trainer, GOOD) + logprob(trainer, BAD) - saved) / 7
    settings = replace(SETTINGS, kl_penalty_coef=0.1, kl_ref_adapter_path=str(reference))
    torch.manual_seed(0)
    state = torch.get_rng_state()
    (metrics,) = trainer.train(write_batch([ROW]), settings)
    assert metrics["loss/kl_policy_ref"] == pytest.approx(drift, abs=1e-4)
    assert torch.equal(torch.get_rng_state(), state)
    assert list(model_of(trainer).peft_model.peft_config) == ["default"]
    assert set(weights_of(trainer)) == set(weights_of(make_trainer()))


def test_no_reference_adapter_is_a_configuration_error(
    make_trainer: MakeTrainer, write_batch: WriteBatch, tmp_path: Path
) -> None:
    trainer = make_trainer()
    weights = weights_of(trainer)
    settings = replace(SETTINGS, kl_penalty_coef=0.1, kl_ref_adapter_path=str(tmp_path / "nowhere"))
    with pytest.raises(ConfigurationError, match="nowhere"):
        list(trainer.train(write_batch(), settings))
    assert_same(weights_of(trainer), weights)
    list(trainer.train(write_batch(), SETTINGS))


def test_recomputed_logprobs_are_the_old_ones_for_all_steps(
    make_trainer: MakeTrainer, write_batch: WriteBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer()
    expected = logprob(trainer, GOOD) + logprob(trainer, BAD)
    row = pack_row([Group([5, 17, 200, 31], [Completion(GOOD, 1.0, [-1.0] * 3), Completion(BAD, -1.0, [-2.0] * 4)])])
    seen: list[Any] = []
    real = train_module.loss_fn
    monkeypatch.setattr(train_module, "loss_fn", lambda inputs, *rest: seen.append(inputs) or real(inputs, *rest))
    list(trainer.train(write_batch([row, row]), replace(SETTINGS, precalculate_logprobs=True)))
    assert len(seen) == 2
    for inputs in seen:
        assert inputs["logprobs"].nansum().item() == pytest.approx(expected, abs=1e-4)
        assert torch.isnan(inputs["logprobs"][~inputs["assistant_mask"]]).all()
        assert inputs["original_logprobs"].nansum().item() == -11.0


def test_normalizing_over_the_batch_weighs_tokens_equally(make_trainer: MakeTrainer, write_batch: WriteBatch) -> None:
    per_row = list(make_trainer().train(write_batch(), replace(SETTINGS, learning_rate=0.0)))
    batch_wide = list(
        make_trainer().train(write_batch(), replace(SETTINGS, learning_rate=0.0, batch_token_normalization=True))
    )
    # 7 and 4 trained tokens; the mean row has 5.5.
    for row, wide, tokens in zip(per_row, batch_wide, (7, 4), strict=True):
        assert wide["loss/train"] == pytest.approx(row["loss/train"] * tokens / 5.5, rel=1e-5)


def test_dropout_is_off_where_nothing_is_trained(make_trainer: MakeTrainer, write_batch: WriteBatch) -> None:
    trainer = make_trainer(peft_args={"lora_dropout": 0.5})
    randomize_adapter(model_of(trainer))
    assert trainer.probe() == trainer.probe()
    assert model_of(trainer).peft_model.training
    losses = {next(iter(trainer.train(write_batch([ROW]), SETTINGS)))["loss/train"] for _ in range(2)}
    assert len(losses) == 1  # rolled back with its random numbers each time, since the generator is not finished


def test_rolled_back_dropout_draws_the_same_again(make_trainer: MakeTrainer, write_batch: WriteBatch) -> None:
    trainer = make_trainer(peft_args={"lora_dropout": 0.5})
    randomize_adapter(model_of(trainer))
    batch = write_batch([ROW])
    snapshot = trainer.snapshot()
    (first,) = trainer.train(batch, SETTINGS)
    trainer.restore(snapshot)
    (again,) = trainer.train(batch, SETTINGS)
    trainer.restore(snapshot)
    torch.rand(1)
    (other,) = trainer.train(batch, SETTINGS)
    assert first["loss/train"] == again["loss/train"] != other["loss/train"]


def test_sizes_and_processors(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(init_args={"max_seq_length": 768})
    assert trainer.max_sequence_tokens == 768
    assert trainer.image_processor is None
    assert trainer.tokenizer.decode(trainer.tokenizer.encode("yes no")) == "yes no"


def test_on_a_cpu_there_is_nothing_to_move(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    before = {name: value.data_ptr() for name, value in model_of(trainer).peft_model.named_parameters()}
    trainer.offload()
    trainer.onload()
    assert {name: value.data_ptr() for name, value in model_of(trainer).peft_model.named_parameters()} == before


def test_a_closed_trainer_says_so_and_can_be_loaded_again(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    probe = trainer.probe()
    trainer.close()
    trainer.close()
    with pytest.raises(TrainingError, match="load"):
        trainer.probe()
    trainer.load()
    assert trainer.probe() == probe


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"peft_args": {"modules_to_save": ["lm_head"]}}, "modules_to_save"),
        ({"peft_args": {"init_lora_weights": "pissa"}}, "init_lora_weights"),
        ({"peft_args": {"bias": "all"}}, "bias"),
        ({"init_args": {"full_finetuning": True}}, "full_finetuning"),
        ({"peft_args": {"target_modules": ["no_such_module"]}}, "no_such_module"),
        ({"trainer_args": {"optim": "lomo"}}, "lomo"),
    ],
)
def test_what_cannot_be_served_or_trained_is_refused(
    make_trainer: MakeTrainer, sections: dict[str, dict[str, object]], named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named):
        make_trainer(**sections)


def test_verbose_raises_the_log_level(
    make_trainer: MakeTrainer, write_batch: WriteBatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer()
    with caplog.at_level("INFO"):
        list(trainer.train(write_batch([ROW]), SETTINGS))
        assert "optimizer step" not in caplog.text
        list(trainer.train(write_batch([ROW]), SETTINGS, verbose=True))
    assert "optimizer step" in caplog.text
