"""A registered model on a GPU, for tests: rollouts, steps, scores, memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import art
from art.inference.admin_client import AdminClient
from art.local import LocalBackend
from art.types import LocalTrainResult
from dev.gpu.measure import used_mib
from tests.support.loop_thread import LoopThread
from tests.support.waiting import wait_until

START_TIMEOUT_S = 400.0
STEP_TIMEOUT_S = 200.0
ANSWER_TOKENS = 64
GROUP_SIZE = 4
PROMPTS = ("say yes or no please", "say maybe, and then say it again")
LEARNING_RATE = 3e-3
# One token at many places, as a probe has it.
SCORED = tuple(token for number in range(300, 312) for token in (number, 14))
# What an idle CUDA runtime may leave behind for a moment.
CLOSED_MIB = 64
ENGINE_ARGS: dict[str, Any] = {
    "enforce_eager": True,  # the engine starts in half the time
    "gpu_memory_utilization": 0.1,
    "kv_cache_memory_bytes": 4 << 30,
    "max_model_len": 2048,
    "max_num_seqs": 64,
}

Groups = list[art.TrajectoryGroup]


@dataclass
class GpuRun:
    """A registered model and the loop that its script runs on."""

    loop: LoopThread
    backend: LocalBackend
    model: art.TrainableModel[Any, Any]
    used_before_mib: int

    def step(self) -> LocalTrainResult:
        """Sample, train, serve."""
        return self.loop.run(self.train(), STEP_TIMEOUT_S)

    async def train(self, groups: Groups | None = None) -> LocalTrainResult:
        """Train on rollouts, new ones by default."""
        return await self.backend.train(self.model, groups or await self.sample(), learning_rate=LEARNING_RATE)

    async def sample(self) -> Groups:
        """Sample a group for each prompt; rewards are given, so that no two are equal."""
        return await art.gather_trajectory_groups(
            (art.TrajectoryGroup(self._rollout(prompt, number) for number in range(GROUP_SIZE)) for prompt in PROMPTS),
            pbar_desc=None,
        )

    async def greedy(self, prompt: list[int], tokens: int, begun: asyncio.Event | None = None) -> tuple[list[int], str]:
        """Have tokens generated greedily under the newest name; return them and why they ended."""
        stream = await self.model.openai_client().completions.create(
            model=self.model.get_inference_name(),
            prompt=prompt,
            max_tokens=tokens,
            temperature=0,
            logprobs=1,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        found: list[int] = []
        reason = ""
        async for chunk in stream:
            choice = chunk.choices[0]
            found += [
                int(text.removeprefix("token_id:")) for text in (choice.logprobs and choice.logprobs.tokens) or []
            ]
            reason = choice.finish_reason or reason
            if begun is not None and found:
                begun.set()
        return found, reason

    async def distance_from_best(self, prompt: list[int], answer: list[int], name: str) -> list[float]:
        """Return for each token of an answer how far its logprob is below that of the best token at its place."""
        reply = await self.model.openai_client().completions.create(
            model=name,
            prompt=[*prompt, *answer],
            max_tokens=1,
            extra_body={"prompt_logprobs": 1},
        )
        scored: Any = reply.choices[0].model_extra and reply.choices[0].model_extra["prompt_logprobs"]
        distances = []
        for token, entry in zip(answer, scored[len(prompt) :], strict=True):
            best = max(value["logprob"] for value in entry.values())
            distances.append(best - entry[str(token)]["logprob"])
        return distances

    def scores(self, name: str | None = None) -> list[float]:
        """Score one token at many places under a name."""
        return self.loop.run(self._scores(name or self.model.get_inference_name()))

    def used_mib(self) -> int:
        """Return the GPU memory of this process and all that it started."""
        return used_mib()

    def service(self) -> Any:
        """Return what stands for the service in this process."""
        (hosted,) = self.backend._services.values()
        return hosted.actor

    def close_and_check(self) -> None:
        """Close the backend; nothing of it may be left, in memory or as a process."""
        self.loop.run(self.model.openai_client().close())
        started = {child.pid: child.name() for child in psutil.Process().children(recursive=True)}
        self.loop.run(self.backend.close())
        wait_until(lambda: self.used_mib() <= self.used_before_mib + CLOSED_MIB, 20)
        wait_until(lambda: not [pid for pid, name in started.items() if _is_left(pid, name)], 20)

    async def _scores(self, name: str) -> list[float]:
        client = AdminClient(str(self.model.inference_base_url), str(self.model.inference_api_key))
        try:
            return await client.score(name, SCORED, range(0, len(SCORED) - 1, 2))
        finally:
            await client.close()

    async def _rollout(self, prompt: str, number: int) -> art.Trajectory:
        messages: Any = [{"role": "user", "content": prompt}]
        answer = await self.model.openai_client().chat.completions.create(
            model=self.model.get_inference_name(),
            messages=messages,
            max_tokens=ANSWER_TOKENS,
            extra_body={"ignore_eos": True},
        )
        return art.Trajectory(messages_and_choices=[*messages, answer.choices[0]], reward=number / GROUP_SIZE)


@contextlib.contextmanager
def registered(base_model: Path, path: Path, name: str, config: dict[str, Any]) -> Iterator[GpuRun]:
    """Register a model with a backend of its own, and close it in the end whatever has become of it."""
    loop = LoopThread()
    before = used_mib()
    backend = LocalBackend(path=str(path))
    internal: Any = {
        "engine_args": ENGINE_ARGS,
        "init_args": {"load_in_4bit": False, "max_seq_length": 2048},
        **config,
    }
    model: art.TrainableModel[Any, Any] = art.TrainableModel(
        name=name, project="gpu", base_model=str(base_model), _internal_config=internal
    )
    try:
        loop.run(model.register(backend), START_TIMEOUT_S)
        yield GpuRun(loop, backend, model, before)
    finally:
        loop.run(backend.close())
        loop.close()


def _is_left(pid: int, name: str) -> bool:
    """Tell whether a process still runs; multiprocessing's own trackers end with this process."""
    try:
        process = psutil.Process(pid)
        tracker = "resource_tracker" in " ".join(process.cmdline())
        return process.name() == name and process.status() != psutil.STATUS_ZOMBIE and not tracker
    except psutil.NoSuchProcess:
        return False
