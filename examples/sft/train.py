"""Teach a small language model, by example, to write calendar entries.

SmolLM2-135M-Instruct chats about an appointment; after 128 examples it answers with one line, such as
`fri 12pm | lunch | Ada`. After every few batches the new LoRA adapter is served, and requests that it was not trained
on show what it has learnt. Needs no GPU; README.md beside this file says more.

    python examples/sft/train.py
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from plot import draw_history, read_history

import art
from art.local import LocalBackend
from art.utils.sft import create_sft_dataset_iterator, iterate_file

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DEMO_MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct"
TRAINED_FILE, HELD_OUT_FILE = HERE / "train.jsonl", HERE / "held_out.jsonl"
PROJECT, MODEL = "calendar", "entries"

BATCH_SIZE = 8
BATCHES_PER_STEP = 4
PEAK_LEARNING_RATE = 2e-3
MAX_ANSWER_TOKENS = 32
ROW = "{:>4}  {:>6}  {:>7}  {:>11}  {:>7}  {}"  # of the table that is printed


def read_held_out() -> list[tuple[str, str]]:
    """Return requests that are not trained, each with the entry that is wanted."""
    rows = [json.loads(line)["messages"] for line in HELD_OUT_FILE.read_text().splitlines()]
    return [(question["content"], answer["content"]) for question, answer in rows]


async def answer(client: AsyncOpenAI, adapter: str, request: str) -> str:
    """Ask for the likeliest answer."""
    completion = await client.chat.completions.create(
        model=adapter, messages=[{"role": "user", "content": request}], max_tokens=MAX_ANSWER_TOKENS, temperature=0
    )
    return (completion.choices[0].message.content or "").strip()


async def answer_all(model: art.TrainableModel[Any, Any], client: AsyncOpenAI) -> list[str]:
    """Answer every held-out request with the adapter that is served now, and log how many entries are right."""
    adapter = model.get_inference_name()
    held_out = read_held_out()
    answers = await asyncio.gather(*(answer(client, adapter, request) for request, _ in held_out))
    share = sum(given == wanted for given, (_, wanted) in zip(answers, held_out, strict=True)) / len(held_out)
    await model.log(split="val", metrics={"correct": share}, step=await model.get_step())
    return answers


async def train(model: art.TrainableModel[Any, Any], backend: LocalBackend, epochs: int) -> None:
    """Train a few batches at a time; each time the result is served and asked."""
    await model.register(backend)
    client = model.openai_client()
    before = answers = await answer_all(model, client)
    print("\n" + ROW.format("step", "loss", "correct", "logprob gap", "seconds", "served"), flush=True)
    print_row(model, 0.0)
    chunks = create_sft_dataset_iterator(
        list(iterate_file(str(TRAINED_FILE))),
        chunk_size=BATCHES_PER_STEP,
        epochs=epochs,
        batch_size=BATCH_SIZE,
        peak_lr=PEAK_LEARNING_RATE,
        initial_step=await model.get_step() * BATCHES_PER_STEP,  # a run that was stopped goes on
        show_progress=False,
    )
    for chunk in chunks:
        started = time.monotonic()
        await model.train_sft(chunk.trajectories, chunk.config)
        answers = await answer_all(model, client)
        print_row(model, time.monotonic() - started)
    print_answers(before, answers)


def print_row(model: art.TrainableModel[Any, Any], seconds: float) -> None:
    """Print one line of the table: what was logged for the newest step; a dash stands for what was not."""
    step, row = list(read_history(run_dir_of(model)).items())[-1]
    loss, gap = row.get("loss/train"), row.get("train/sync/logprob_gap")
    print(
        ROW.format(
            step,
            "-" if loss is None else f"{loss:.3f}",
            f"{row['val/correct']:.0%}",
            "-" if gap is None else f"{gap:.1e}",
            f"{seconds:.0f}" if seconds else "-",
            model.get_inference_name(),
        ),
        flush=True,
    )


def print_answers(before: list[str], after: list[str]) -> None:
    """Show what the served model said to requests that it was not trained on, and what it says now."""
    for (request, wanted), old, new in zip(read_held_out(), before, after, strict=True):
        print(f"\n  {request}")
        print(f"    before: {' '.join(old.split())}")
        print(f"    after:  {' '.join(new.split())}{'' if new == wanted else f'   (wanted: {wanted})'}")


def run_dir_of(model: art.TrainableModel[Any, Any]) -> Path:
    """Return the folder that a run is kept in."""
    return Path(str(model.base_path)) / PROJECT / "models" / model.name


def main() -> int:
    parser = argparse.ArgumentParser(description="Teach a small language model to write calendar entries.")
    parser.add_argument(
        "--epochs", type=int, default=2, help="how often to go through the examples (default: %(default)s)"
    )
    parser.add_argument("--path", type=Path, default=ROOT / ".art", help="where runs are kept (default: %(default)s)")
    parser.add_argument("--model", default=str(DEMO_MODEL), help="name or folder of the model (default: %(default)s)")
    parser.add_argument("--dedicated", action="store_true", help="trainer on GPU 0, inference server on GPU 1")
    parser.add_argument("--fresh", action="store_true", help="delete the earlier run and start anew")
    args = parser.parse_args()
    if args.model == str(DEMO_MODEL) and not DEMO_MODEL.is_dir():
        print(f"error: there is no model at {DEMO_MODEL}: make it with dev/prepare_demo_model.py", file=sys.stderr)
        return 1

    config = art.dev.InternalModelConfig()
    if args.dedicated:
        config |= art.dev.InternalModelConfig(trainer_gpu_ids=[0], inference_gpu_ids=[1])
    model = art.TrainableModel(
        name=f"{MODEL}-dedicated" if args.dedicated else MODEL,
        project=PROJECT,
        base_model=args.model,
        base_path=str(args.path.absolute()),
        _internal_config=config,
    )
    run_dir = run_dir_of(model)
    if args.fresh:
        shutil.rmtree(run_dir, ignore_errors=True)
    print(f"starting trainer and inference engine for {args.model}; on a CPU this takes most of a minute", flush=True)
    try:
        with LocalBackend(path=str(args.path)) as backend:
            asyncio.run(train(model, backend, args.epochs))
    except KeyboardInterrupt:
        print("\nstopped. What was trained is kept: the same command without --fresh goes on from there.")
        return 130
    draw_history(read_history(run_dir), run_dir / "sft.png")
    print(f"\ncurves: {run_dir / 'sft.png'}\nrun:    {run_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
