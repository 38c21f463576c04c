"""Training one group on a GPU: packed with its shared prompt, against the same unpacked, and against other loops.

The same answers, the same loss and the same adapter in all ways; loss and gradient are compared before anything is
timed. A way's speed is answer tokens trained per second, since the other tokens are only carried along.

    python dev/bench/gpu_training.py --model /dev/shm/models/qwen2.5-7b --answers 8 --prompt 1024 --answer 1024
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from art.dev.get_model_config import get_model_config
from art.dev.settings import TrainSettings
from art.loss import loss_fn
from art.unsloth.self_check import check_model
from art.unsloth.state import build_model
from dev.gpu.measure import write_result

RESULTS = Path(__file__).parent / "results"
SETTINGS = TrainSettings()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # the latter for a dry run
Rows = list[dict[str, Any]]


def make_group(args: argparse.Namespace, vocab_size: int) -> tuple[list[int], list[list[int]], list[float]]:
    """Draw a prompt, answers of one length, and their advantages."""
    generator = torch.Generator().manual_seed(5)
    draw = lambda count: torch.randint(vocab_size, (count,), generator=generator).tolist()  # noqa: E731
    answers = [draw(args.answer) for _ in range(args.answers)]
    return draw(args.prompt), answers, torch.randn(args.answers, generator=generator).tolist()


def pack(prompt: list[int], answers: list[list[int]], advantages: list[float], multiple: int = 256) -> dict[str, Any]:
    """Lay a prompt and its answers into one row, as `art.preprocessing.pack` does."""
    shared = len(prompt) - 1
    parts: dict[str, list[Any]] = {
        "tokens": prompt[:-1],
        "group_ids": [1] * shared,
        "parent_ids": [1] * shared,
        "input_pos": list(range(shared)),
        "assistant_mask": [False] * shared,
        "advantages": [0.0] * shared,
    }
    for number, (answer, advantage) in enumerate(zip(answers, advantages, strict=True)):
        count = len(answer) + 1
        parts["tokens"] = parts["tokens"] + [prompt[-1], *answer]
        parts["group_ids"] += [2 + number] * count
        parts["parent_ids"] += [1] * count
        parts["input_pos"] += list(range(shared, shared + count))
        parts["assistant_mask"] += [False] + [True] * (count - 1)
        parts["advantages"] += [advantage] * count
    padding = -len(parts["tokens"]) % multiple
    fill = {"tokens": 0, "group_ids": -1, "parent_ids": -1, "input_pos": 0, "assistant_mask": False, "advantages": 0.0}
    row: dict[str, Any] = {
        key: torch.tensor([values + [fill[key]] * padding], device=DEVICE) for key, values in parts.items()
    }
    row["logprobs"] = torch.full(row["tokens"].shape, math.nan, device=DEVICE)
    row["weights"] = row["assistant_mask"].float()
    row["pixel_values"] = row["image_grid_thw"] = [None]
    return row


class Ours:
    """This package's model and loss."""

    def __init__(self, model: Any, build_s: float = 0.0, check_s: float = 0.0) -> None:
        self.model, self.build_s, self.check_s = model, build_s, check_s

    @classmethod
    def load(cls, args: argparse.Namespace, loader: str) -> Ours:
        """Load the model."""
        sections = {"init_args": {"load_in_4bit": args.four_bit}}
        config = get_model_config(str(args.model), "unused", sections, has_cuda=DEVICE == "cuda")  # type: ignore[arg-type]
        config["peft_args"]["r"] = args.rank
        began = time.perf_counter()
        model = build_model(str(args.model), config, None, loader=loader)  # type: ignore[arg-type]
        build_s, began = time.perf_counter() - began, time.perf_counter()
        model.peft_model.train()
        randomize(model.adapter_parameters())
        check_model(model, list(range(5, 21)))
        return cls(model, build_s, time.perf_counter() - began)

    def step(self, rows: Rows) -> float:
        """Accumulate the gradient of the loss summed over rows; return the loss."""
        total = 0.0
        for row in rows:
            logprobs, entropies = self.model.score_row(row, SETTINGS.logprob_calculation_chunk_size)  # type: ignore[arg-type]
            loss = loss_fn(row, logprobs, None, entropies, SETTINGS, "sum").policy_loss  # type: ignore[arg-type]
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        return total


class Plain:
    """transformers and PEFT, as one writes it: whole sequences, logits of all answers, the same policy gradient."""

    def __init__(self, args: argparse.Namespace) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        base = AutoModelForCausalLM.from_pretrained(
            args.model, dtype=torch.bfloat16 if DEVICE == "cuda" else torch.float32, device_map={"": DEVICE}
        )
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        lora = LoraConfig(r=args.rank, lora_alpha=16, target_modules=targets, task_type="CAUSAL_LM")
        self.model = get_peft_model(base, lora)
        self.model.train()
        randomize(self.parameters())

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Return what is trained."""
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    def recompute(self, on: bool) -> None:
        """Switch gradient checkpointing."""
        if on:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            self.model.gradient_checkpointing_disable()

    def step(self, prompt: list[int], answers: list[list[int]], advantages: list[float], batch: int) -> float:
        """Accumulate the gradient over all answers, so many at a time."""
        total = 0.0
        for start in range(0, len(answers), batch):
            some = answers[start : start + batch]
            tokens = torch.tensor([prompt + answer for answer in some], device=DEVICE)
            weight = torch.tensor(advantages[start : start + batch], device=DEVICE).unsqueeze(1)
            keep = len(some[0]) + 1
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                logits = self.model(input_ids=tokens, logits_to_keep=keep).logits[:, :-1]
            logprobs = torch.log_softmax(logits.float(), -1).gather(-1, tokens[:, 1 - keep :, None]).squeeze(-1)
            loss = -(weight * (logprobs - logprobs.detach()).exp().detach().clamp(0, 5) * logprobs).sum()
            loss.backward()
            total += loss.item()
        return total


def synchronize() -> None:
    """Wait for the GPU."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def reset_peak() -> None:
    """Give back what is cached, and count the peak of memory anew."""
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gib() -> float:
    """Return the peak of memory since `reset_peak`."""
    return torch.cuda.max_memory_allocated() / 2**30 if DEVICE == "cuda" else 0.0


def randomize(parameters: dict[str, torch.nn.Parameter]) -> None:
    """Give every way the same adapter, one that does something."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, value in sorted(parameters.items()):
            noise = torch.randn(value.shape, generator=generator)
            value.copy_(noise * (0.02 if "lora_A" in name else 0.005))


def gradient(parameters: dict[str, torch.nn.Parameter]) -> torch.Tensor:
    """Return the gradient as one vector, and clear it."""
    parts = [value.grad.float().flatten() for _, value in sorted(parameters.items()) if value.grad is not None]
    for value in parameters.values():
        value.grad = None
    return torch.cat(parts).cpu()


def measure(step: Callable[[], float], parameters: dict[str, torch.nn.Parameter], rounds: int) -> dict[str, Any]:
    """Take a first step, whose loss and gradient are kept, then time more of them."""
    synchronize()
    began = time.perf_counter()
    loss = step()
    synchronize()
    first_s = time.perf_counter() - began
    found = {"first_s": first_s, "loss": loss, "gradient": gradient(parameters)}
    step()
    reset_peak()
    step()
    times = []
    for _ in range(rounds):
        synchronize()
        began = time.perf_counter()
        step()
        synchronize()
        times.append(time.perf_counter() - began)
    gradient(parameters)
    found |= {"step_s": sorted(times)[len(times) // 2], "peak_gib": peak_gib()}
    return found


def ours_ways(
    args: argparse.Namespace, group: Any, result: dict[str, Any], ours: Ours | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Time this package's ways."""
    ours = ours or Ours.load(args, "unsloth" if DEVICE == "cuda" else "transformers")
    model = ours.model
    result |= {"build_s": ours.build_s, "check_s": ours.check_s}
    result["mask_form"] = model.mask_form
    result["activation_mib_per_token"] = (model.activation_bytes_per_token or 0) / 2**20
    prompt, answers, advantages = group
    packed = [pack(*group)]
    single = [pack(prompt, [answer], [value]) for answer, value in zip(answers, advantages, strict=True)]
    rows_used = {
        "packed": int((packed[0]["group_ids"] != -1).sum()),
        "unpacked": len(answers) * (args.prompt + args.answer),
    }
    result["row_tokens"] = rows_used
    parameters = model.adapter_parameters()
    yield "packed", measure(lambda: ours.step(packed), parameters, args.rounds)
    yield "packed, again", measure(lambda: ours.step(packed), parameters, 1)
    if args.profile:
        result["profile"] = profile(lambda: ours.step(packed))
        gradient(parameters)
    yield "unpacked", measure(lambda: ours.step(single), parameters, args.rounds)
    per_token, model.activation_bytes_per_token = model.activation_bytes_per_token, 1e12
    if args.recomputing:
        yield "packed, recomputing", measure(lambda: ours.step(packed), parameters, args.rounds)
    if args.dense:
        form, model.mask_form = model.mask_form, "dense"
        yield "packed, dense mask, recomputing", measure(lambda: ours.step(packed), parameters, args.rounds)
        model.mask_form = form
    model.activation_bytes_per_token = per_token


def plain_ways(args: argparse.Namespace, group: Any, result: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Time transformers and PEFT, with and without gradient checkpointing, one or more answers at a time."""
    plain = Plain(args)
    for recompute, batch in ((True, 4), (False, 1), (False, 2)):
        plain.recompute(recompute)
        name = f"plain, {batch} at a time{', recomputing' if recompute else ''}"
        try:
            yield name, measure(lambda batch=batch: plain.step(*group, batch), plain.parameters(), args.rounds)  # type: ignore[misc]
        except torch.OutOfMemoryError:
            yield name, {"failure": "out of memory"}


def trl_ways(args: argparse.Namespace, group: Any, result: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Time the gradient of TRL's GRPO trainer, given the answers."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    prompt, answers, advantages = group
    for recompute, batch in ((True, 4), (False, 2)):
        config = GRPOConfig(
            output_dir="/tmp/trl",
            per_device_train_batch_size=args.answers,
            num_generations=args.answers,
            loss_type="bnpo",
            beta=0.0,
            epsilon=10.0,
            gradient_checkpointing=recompute,
            model_init_kwargs={"dtype": "bfloat16" if DEVICE == "cuda" else "float32"},
            bf16=DEVICE == "cuda",
            use_cpu=DEVICE == "cpu",
            report_to="none",
        )
        trainer = GRPOTrainer(
            model=str(args.model),
            reward_funcs=lambda completions, **given: [0.0] * len(completions),
            args=config,
            train_dataset=Dataset.from_list([{"prompt": "x"}] * args.answers),
            peft_config=LoraConfig(r=args.rank, lora_alpha=16, target_modules=targets, task_type="CAUSAL_LM"),
        )
        model = trainer.model.to(DEVICE)
        model.train()
        parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        randomize(parameters)

        def step(trainer: Any = trainer, model: Any = model, batch: int = batch) -> float:
            total = 0.0
            for start in range(0, len(answers), batch):
                some = torch.tensor(answers[start : start + batch], device=DEVICE)
                shared = torch.tensor([prompt] * len(some), device=DEVICE)
                inputs = {
                    "prompt_ids": shared,
                    "prompt_mask": torch.ones_like(shared),
                    "completion_ids": some,
                    "completion_mask": torch.ones_like(some),
                    "advantages": torch.tensor(advantages[start : start + batch], device=DEVICE),
                    "num_items_in_batch": some.numel(),
                }
                with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=DEVICE == "cuda"):
                    loss = trainer.compute_loss(model, inputs) * some.numel()
                loss.backward()
                total += loss.item()
            return total

        name = f"trl, {batch} at a time{', recomputing' if recompute else ''}"
        try:
            yield name, measure(step, parameters, args.rounds)
        except torch.OutOfMemoryError:
            yield name, {"failure": "out of memory"}
        del trainer, model, parameters, step
        gc.collect()
        reset_peak()


def profile(step: Callable[[], float]) -> list[dict[str, Any]]:
    """Return the kernels that take most of a step's time on the GPU."""
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    began = time.perf_counter()
    with torch.profiler.profile(activities=activities) as found:
        step()
        synchronize()
    wall_ms = (time.perf_counter() - began) * 1e3
    kernels = [event for event in found.key_averages() if event.device_type != torch.autograd.DeviceType.CPU]
    kernels.sort(key=lambda event: -event.self_device_time_total)
    busy_ms = sum(event.self_device_time_total for event in kernels) / 1e3
    rows = [{"kernel": "(all)", "ms": busy_ms, "wall_ms": wall_ms}]
    for event in kernels[:25]:
        rows.append({"kernel": event.key[:90], "ms": event.self_device_time_total / 1e3, "calls": event.count})
    return rows


def matmul_rate() -> float:
    """Measure the card's bf16 matrix rate on random data, in FLOP/s."""
    first, second = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        first @ second
    synchronize()
    began = time.perf_counter()
    for _ in range(10):
        first @ second
    synchronize()
    return 10 * 2 * 8192**3 / (time.perf_counter() - began)


def longest_row(args: argparse.Namespace, group: Any, result: dict[str, Any]) -> None:
    """Find the longest packed row that trains, by doubling the number of answers."""
    prompt, answers, _ = group
    ours = Ours.load(args, "unsloth")
    result["longest"] = []
    tokens = 32768
    while tokens <= args.longest:
        count = max(1, (tokens - len(prompt)) // (len(answers[0]) + 1))
        row = pack(prompt, answers[:1] * count, [1.0] * count)
        reset_peak()
        try:
            ours.step([row])
            began = time.perf_counter()
            ours.step([row])
            synchronize()
            found: dict[str, Any] = {"step_s": time.perf_counter() - began}
        except torch.OutOfMemoryError:
            found = {"failure": "out of memory"}
        found |= {"row_tokens": row["tokens"].shape[1], "peak_gib": peak_gib()}
        result["longest"].append(found)
        print(found, flush=True)
        for value in ours.model.adapter_parameters().values():
            value.grad = None
        if "failure" in found:
            break
        tokens *= 2


def linear_parameters(folder: Path) -> float:
    """Count the weights that a token is multiplied with, layers and head."""
    from transformers import AutoConfig

    c = AutoConfig.from_pretrained(folder)
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    attention = c.hidden_size * head_dim * (2 * c.num_attention_heads + 2 * c.num_key_value_heads)
    return float(c.num_hidden_layers * (attention + 3 * c.hidden_size * c.intermediate_size))


WAYS = {"ours": ours_ways, "plain": plain_ways, "trl": trl_ways}


def run_ways(args: argparse.Namespace, path: Path, **given: Any) -> None:
    """Measure the ways of one kind, and add them to the result; the first way of all gives the gradient to compare."""
    if args.kind == "ours" and DEVICE == "cuda":
        import unsloth  # noqa: F401 - before transformers, as where nobody measures
    from transformers import AutoConfig

    result = json.loads(path.read_text()) if path.exists() else {}
    result |= {"shape": vars(args) | {"model": args.model.name, "result": None, "kind": None}}
    result.setdefault("ways", {})
    result.setdefault("matmul_tflops", matmul_rate() / 1e12)
    result["linear_parameters"] = weights = linear_parameters(args.model)
    group = make_group(args, AutoConfig.from_pretrained(args.model).vocab_size)
    reference_path = path.with_suffix(".gradient.pt")
    for name, found in WAYS[args.kind](args, group, result, **given):
        if "gradient" in found:
            own = found.pop("gradient")
            if not reference_path.exists():
                torch.save(own, reference_path)
            reference = torch.load(reference_path)
            found["gradient_difference"] = float((own - reference).norm() / reference.norm())
            found["answer_tokens_per_s"] = args.answers * args.answer / found["step_s"]
            tokens = result["row_tokens"]["packed" if name.startswith("packed") else "unpacked"]
            # A frozen weight costs two operations a token forward and two backward.
            found["matmul_share"] = 4 * weights * tokens / found["step_s"] / 1e12 / result["matmul_tflops"]
        result["ways"][name] = found
        print(name, {key: round(v, 4) if isinstance(v, float) else v for key, v in found.items()}, flush=True)
        write_result(path, result)


def summarize(path: Path) -> None:
    """Compare the packed way with the best of the others."""
    result = json.loads(path.read_text())
    speeds = {name: way["answer_tokens_per_s"] for name, way in result["ways"].items() if "step_s" in way}
    others = {name: speed for name, speed in speeds.items() if not name.startswith("packed")}
    best = max(others, key=lambda name: others[name])
    result |= {"best_other": best, "speedup": speeds["packed"] / others[best]}
    write_result(path, result)
    print(
        f"packed: {result['speedup']:.2f} times {best}; build {result['build_s']:.1f} s, check "
        f"{result['check_s']:.1f} s"
    )
    for row in result.get("profile", [])[:18]:
        print(row)


def make_parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    parser = argparse.ArgumentParser(description="Training one group on a GPU.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--answers", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--answer", type=int, default=1024)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--four-bit", action="store_true")
    parser.add_argument("--dense", action="store_true", help="also time the dense mask")
    parser.add_argument("--recomputing", action="store_true", help="also time recomputed activations")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--kinds", default="ours,plain,trl", help="what to time, each in a process of its own")
    parser.add_argument("--kind", choices=WAYS, default=None, help="what to time in this process")
    parser.add_argument("--summarize", action="store_true", help="with --kind: the other kinds are timed already")
    parser.add_argument("--longest", type=int, default=0, help="find the longest row, up to so many tokens")
    parser.add_argument("--result", type=Path, default=None)
    return parser


def main() -> int:
    args = make_parser().parse_args()
    path = args.result or RESULTS / f"gpu_training_{args.model.name}_{args.answers}x{args.answer}.json"
    if args.longest:
        result: dict[str, Any] = {"shape": vars(args) | {"model": args.model.name, "result": None}}
        longest_row(args, make_group(args, 1000), result)
        write_result(path, result)
    elif args.kind:
        run_ways(args, path)
        if args.summarize:
            summarize(path)
    else:
        path.unlink(missing_ok=True)
        path.with_suffix(".gradient.pt").unlink(missing_ok=True)
        for kind in args.kinds.split(","):
            # Unsloth changes the models' classes for a whole process.
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--kind", kind], check=False)
        path.with_suffix(".gradient.pt").unlink(missing_ok=True)
        summarize(path)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    sys.exit(main())
