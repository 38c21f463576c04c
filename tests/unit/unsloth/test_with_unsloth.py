"""The same numbers with Unsloth as the loader. In a process of its own, since importing Unsloth changes libraries."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

SCRIPT = """
import json, sys
from pathlib import Path
import unsloth
import torch
from art.dev.settings import TrainSettings
from art.loss import loss_fn
from art.unsloth.self_check import check_model
from tests.support.lora_models import load_model
from tests.support.packed_rows import Completion, Group, make_batch, pack_row, unpack_rows

groups = [
    Group([5, 17, 200, 31, 8, 90, 44], [Completion([60, 61, 7], 1.0), Completion([60, 99, 12, 13, 2], -0.7)]),
    Group([9, 9, 300, 41], [Completion([3, 250, 7, 7], -1.2), Completion([251, 4], 0.9)]),
]
model = load_model(Path(sys.argv[1]), loader=sys.argv[2])
check_model(model, list(range(20, 32)))

def run(rows):
    model.peft_model.zero_grad(set_to_none=True)
    found = []
    for row in rows:
        batch = make_batch([row])
        logprobs, _ = model.score_row(batch, 4)
        loss_fn(batch, logprobs, None, None, TrainSettings(), "sum").policy_loss.backward()
        found += logprobs.detach()[batch["assistant_mask"].roll(-1, dims=1)].tolist()
    return found, torch.cat([value.grad.flatten() for value in model.adapter_parameters().values()])

packed, packed_gradient = run([pack_row(groups)])
alone, alone_gradient = run(unpack_rows(groups))
print(json.dumps({
    "logprobs": packed,
    "logprob_gap": max(abs(a - b) for a, b in zip(packed, alone, strict=True)),
    "gradient_gap": float((packed_gradient - alone_gradient).abs().max()),
    "gradient_norm": float(packed_gradient.norm()),
}))
"""


def run(base_model: Path, loader: str) -> dict[str, object]:
    completed = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(base_model), loader],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    found: dict[str, object] = json.loads(completed.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("unsloth") is None, reason="unsloth is not installed")
@pytest.mark.parametrize("architecture", ["tiny_qwen3", "tiny_llama"])
def test_packed_rows_are_right_with_unsloth(architecture: str, request: pytest.FixtureRequest) -> None:
    base_model = request.getfixturevalue(architecture)
    found, plain = run(base_model, "unsloth"), run(base_model, "transformers")
    assert found["logprob_gap"] < 1e-5  # type: ignore[operator]
    assert found["gradient_gap"] < 1e-5  # type: ignore[operator]
    assert found["logprobs"] == pytest.approx(plain["logprobs"], abs=1e-5)
    assert found["gradient_norm"] == pytest.approx(plain["gradient_norm"], rel=1e-4)
