"""Helpers of a few lines each."""

from __future__ import annotations

import asyncio
import importlib
import logging
import math
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import art.utils
from art.serverless import ServerlessBackend
from art.trajectories import Trajectory, TrajectoryGroup
from art.utils import logging as script_logging
from art.utils.benchmark_rollout import benchmark_rollout
from art.utils.litellm import convert_litellm_choice_to_openai
from art.utils.old_benchmarking.calculate_step_metrics import calculate_step_std_dev
from art.utils.record_provenance import record_provenance
from art.utils.strip_logprobs import strip_logprobs
from tests.support.conversations import make_choice, make_trajectory


def test_names_are_functions_even_after_their_modules_are_imported() -> None:
    for name in art.utils.__all__:
        importlib.import_module(f"art.utils.{name}")
        assert callable(getattr(art.utils, name))


def test_strip_logprobs_goes_deep_and_leaves_the_original() -> None:
    trajectory = make_trajectory(tokens=2)
    original = {"logprobs": 1, "list": [{"logprobs": [1], "keep": 2}], "tuple": ({"logprobs": 3},), "t": trajectory}
    stripped = strip_logprobs(original)
    assert stripped["list"] == [{"keep": 2}]
    assert stripped["tuple"] == ({},)
    assert "logprobs" not in stripped
    assert stripped["t"].messages_and_choices[1].logprobs is None
    assert trajectory.messages_and_choices[1].logprobs is not None  # type: ignore[union-attr]
    assert original["list"] == [{"logprobs": [1], "keep": 2}]


def test_strip_logprobs_gives_back_what_cannot_be_copied() -> None:
    class Stubborn:
        logprobs = 1

        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("no copies")

    stubborn = Stubborn()
    assert strip_logprobs(stubborn) is stubborn
    assert stubborn.logprobs == 1


def test_script_lines_carry_text_and_colour(capsys: pytest.CaptureFixture[str]) -> None:
    for show in (script_logging.info, script_logging.step, script_logging.ok, script_logging.warn, script_logging.err):
        show("message")
    script_logging.dim("quiet")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert all("message" in line and script_logging._C.RESET in line for line in lines[:5])
    assert "quiet" in lines[5]


def test_benchmark_is_the_mean_reward() -> None:
    async def rollout(model: str, index: int, is_training: bool) -> Trajectory:
        assert (model, is_training) == ("m", False)
        return make_trajectory(float(index))

    assert asyncio.run(benchmark_rollout("m", 4, rollout)) == 1.5
    assert math.isnan(asyncio.run(benchmark_rollout("m", 0, rollout)))


def test_standard_deviation_is_averaged_over_groups_that_have_one() -> None:
    groups = [
        TrajectoryGroup([make_trajectory(1.0), make_trajectory(3.0)]),
        TrajectoryGroup([make_trajectory(5.0), make_trajectory(5.0)]),
        TrajectoryGroup([make_trajectory(9.0)]),
    ]
    assert calculate_step_std_dev(groups) == 0.5
    assert calculate_step_std_dev([]) == 0.0


def litellm_choice(**changed: Any) -> Any:
    token = SimpleNamespace(token="a", bytes=[97], logprob=-0.25)
    function = SimpleNamespace(name="look", arguments="{}")
    call = SimpleNamespace(id="c", type="function", function=function)
    fields: dict[str, Any] = {
        "finish_reason": "tool_calls",
        "index": 1,
        "message": SimpleNamespace(role="assistant", content="text", tool_calls=[call]),
        "logprobs": SimpleNamespace(content=[SimpleNamespace(**vars(token), top_logprobs=[token])]),
    }
    return SimpleNamespace(**{**fields, **changed})


def test_litellm_choice_becomes_openais() -> None:
    token = {"token": "a", "bytes": [97], "logprob": -0.25}
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    assert convert_litellm_choice_to_openai(litellm_choice()) == make_choice(
        "text",
        finish_reason="tool_calls",
        index=1,
        message={"tool_calls": [call]},
    ).model_copy(update={"logprobs": make_logprobs([{**token, "top_logprobs": [token]}])})


def make_logprobs(content: list[dict[str, Any]]) -> Any:
    from openai.types.chat.chat_completion import ChoiceLogprobs

    return ChoiceLogprobs.model_validate({"content": content})


@pytest.mark.parametrize(
    "changed",
    [
        {"message": None},
        {"message": SimpleNamespace(role="user", content="x", tool_calls=None)},
        {"message": SimpleNamespace(role="assistant", content="x", tool_calls=[SimpleNamespace(type="custom")])},
        {"logprobs": SimpleNamespace(content=None)},
    ],
)
def test_litellm_choice_that_has_no_counterpart_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        convert_litellm_choice_to_openai(litellm_choice(**changed))


def test_provenance_is_appended_to_the_latest_adapter(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saved: list[dict[str, Any]] = []
    artifact = SimpleNamespace(metadata={"wandb.provenance": ["sft"]})
    artifact.save = lambda: saved.append(dict(artifact.metadata))
    asked: list[str] = []
    wandb: Any = ModuleType("wandb")
    wandb.errors = SimpleNamespace(Error=type("Error", (Exception,), {}))

    def find(path: str, type: str) -> Any:
        asked.append(path)
        if "empty" in path:
            raise wandb.errors.Error("no artifact")
        return artifact

    wandb.Api = lambda: SimpleNamespace(artifact=find)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    run: Any = SimpleNamespace(entity="me", project="mail", name="agent")
    record_provenance(run, "local-rl")
    assert asked == ["me/mail/agent:latest"]
    assert saved == [{"wandb.provenance": ["sft", "local-rl"]}]
    record_provenance(SimpleNamespace(entity="me", project="empty", name="agent"), "local-rl")
    record_provenance(SimpleNamespace(project="mail", name="agent", offline=True), "local-rl")
    assert len(saved) == 1
    assert len(asked) == 2

    def fail() -> None:
        raise OSError("the network is gone")

    artifact.save = fail
    with caplog.at_level(logging.WARNING):
        record_provenance(run, "local-rl")
    assert "could not be saved: the network is gone" in caplog.text


def test_provenance_without_wandb_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    record_provenance(SimpleNamespace(), "local-rl")


def test_hosted_backend_cannot_be_made() -> None:
    with pytest.raises(NotImplementedError, match="LocalBackend"):
        ServerlessBackend(api_key="key")
