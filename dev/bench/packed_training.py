"""A training step on packed rows with shared prompts, on the same trajectories unpacked, and with plain transformers
+ PEFT.

The same tokens are trained in all three; the loss is compared first. Times are ratios within one run.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import ROOT, keep, spread
from engine import tiny_model
from tokenize_and_pack import make_group

from art.dev.get_model_config import get_model_config
from art.dev.settings import TrainSettings
from art.preprocessing.batch import build_training_batch
from art.preprocessing.disk import DiskPackedTensors, packed_tensors_from_dir
from art.unsloth.trainer import LoraTrainer

DEMO_MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct"
SETTINGS = TrainSettings(learning_rate=0.0)  # the weights stay, so that every round does the same work
PLAIN_BATCH = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None, help="model folder; the demo model, else a tiny random one")
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--trajectories", type=int, default=8)
    parser.add_argument("--prompt-words", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    base = Path(options.model or (DEMO_MODEL if DEMO_MODEL.is_dir() else tiny_model(1)[0]))
    with tempfile.TemporaryDirectory() as folder:
        compare(base, Path(folder), options)


def compare(base: Path, folder: Path, options: argparse.Namespace) -> None:
    """Time the three ways in turn and keep the result."""
    has_cuda = torch.cuda.is_available()
    config = get_model_config(str(base), str(folder), {"init_args": {"load_in_4bit": False}}, has_cuda=has_cuda)
    trainer = LoraTrainer(base_model=str(base), config=config, output_dir=folder)
    trainer.load()
    groups = make_groups(options)
    packed = write_batch(trainer, groups, folder / "packed", SETTINGS)
    longest = max(row_lengths(packed))
    single = dataclasses.replace(SETTINGS, packed_sequence_length=longest_result(trainer, groups))
    unpacked = write_batch(trainer, groups, folder / "unpacked", single)
    rows = list(sequences(unpacked))
    ways = {
        "packed": lambda: train(trainer, packed, SETTINGS),
        "unpacked": lambda: train(trainer, unpacked, single),
        "plain": lambda: train_plainly(trainer, rows),
    }
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for name in ways:
        ways[name]()  # warm
    for _ in range(options.rounds):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            samples[name].append(time.perf_counter() - started)
    medians = {name: spread(values)["median"] for name, values in samples.items()}
    trained = int(packed_tensors_from_dir(**packed)["assistant_mask"].sum())
    to_best = min(medians["unpacked"], medians["plain"]) / medians["packed"]
    keep(
        "packed_training",
        {
            "model": base.name,
            "trajectories": options.groups * options.trajectories,
            "trained_tokens": trained,
            "packed_rows": packed["num_sequences"],
            "packed_tokens": packed["num_sequences"] * longest,
            "unpacked_rows": unpacked["num_sequences"],
            "unpacked_tokens": sum(len(row) for row in rows),
            "seconds": {name: spread(values) for name, values in samples.items()},
            "trained_tokens_per_s": {name: trained / value for name, value in medians.items()},
            "speedup_over_unpacked": medians["unpacked"] / medians["packed"],
            "speedup_over_plain": medians["plain"] / medians["packed"],
        },
        f"packed training is {medians['unpacked'] / medians['packed']:.2f} times as fast as unpacked and "
        f"{medians['plain'] / medians['packed']:.2f} times as fast as plain transformers + PEFT "
        f"({to_best:.2f} times the better of the two)",
    )


def make_groups(options: argparse.Namespace) -> list[Any]:
    """Return groups whose long question is shared by all their trajectories."""
    rng = random.Random(0)
    groups = [make_group(rng, trajectories=options.trajectories, turns=1) for _ in range(options.groups)]
    for number, group in enumerate(groups):
        for trajectory in group:
            question = f"question {number}: " + "say the word maybe " * (options.prompt_words // 4)
            trajectory.messages_and_choices[0] = {"role": "user", "content": question}
    return groups


def write_batch(trainer: LoraTrainer, groups: list[Any], folder: Path, settings: TrainSettings) -> DiskPackedTensors:
    """Tokenize and pack."""
    batch = build_training_batch(
        groups,
        tokenizer=trainer.tokenizer,
        image_processor=None,
        tensors_dir=folder,
        max_sequence_tokens=trainer.max_sequence_tokens,
        settings=settings,
        chat_template_kwargs=None,
        rng=random.Random(0),
    )
    assert batch.disk_packed_tensors is not None, batch.skip_reason
    return batch.disk_packed_tensors


def longest_result(trainer: LoraTrainer, groups: list[Any]) -> int:
    """Return the length of the longest trajectory, in tokens: a row of that length holds one."""
    with tempfile.TemporaryDirectory() as folder:
        alone = [type(group)(group.trajectories[:2]) for group in groups]
        packed = write_batch(trainer, alone, Path(folder), SETTINGS)
        positions = packed_tensors_from_dir(**packed)["input_pos"]
        return int(positions.max()) + 1


def row_lengths(packed: DiskPackedTensors) -> list[int]:
    """Return the length of each row, padding included."""
    return [packed["sequence_length"]] * packed["num_sequences"]


def sequences(unpacked: DiskPackedTensors) -> list[torch.Tensor]:
    """Return each unpacked row without its padding."""
    tensors = packed_tensors_from_dir(**unpacked)
    return [tokens[parents != -1] for tokens, parents in zip(tensors["tokens"], tensors["parent_ids"], strict=True)]


def train(trainer: LoraTrainer, packed: DiskPackedTensors, settings: TrainSettings) -> None:
    """Train a whole batch and wait for it."""
    for _ in trainer.train(packed, settings):
        pass
    synchronize()


def train_plainly(trainer: LoraTrainer, rows: list[torch.Tensor]) -> None:
    """Forward and backward as a plain loop does it: padded batches, all logits."""
    model = trainer._require_loaded().model
    for start in range(0, len(rows), PLAIN_BATCH):
        tokens = torch.nn.utils.rnn.pad_sequence(rows[start : start + PLAIN_BATCH], batch_first=True).to(model.device)
        mask = torch.nn.utils.rnn.pad_sequence(
            [torch.ones_like(row) for row in rows[start : start + PLAIN_BATCH]], batch_first=True
        ).to(model.device)
        with torch.autocast(model.device.type, dtype=model.dtype, enabled=model.dtype != torch.float32):
            logits = model.peft_model(input_ids=tokens, attention_mask=mask, use_cache=False).logits
        logprobs = logits[:, :-1].float().log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
        (-(logprobs * mask[:, 1:]).sum() / mask.sum()).backward()
    for parameter in model.adapter_parameters().values():
        parameter.grad = None
    synchronize()


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
