"""What cannot work is refused with its reason, before anything is started where that can be known; what cannot be
trained is counted and said."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import art
from art.errors import ConfigurationError
from art.local import LocalBackend
from tests.integration.local.conftest import SharedRun
from tests.support.local_run import Groups, fixed_logprobs, listed_names, make_model, sample, train_step

pytestmark = pytest.mark.integration


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[LocalBackend]:
    with LocalBackend(path=str(tmp_path / "art")) as backend:
        yield backend


def in_the_way(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a file where a folder should be")
    return path


# Before anything is started -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make_path", [in_the_way, lambda path: in_the_way(path) / "below", lambda _: Path("/proc/art")]
)
def test_folder_that_cannot_be_made(tmp_path: Path, make_path: Callable[[Path], Path]) -> None:
    path = make_path(tmp_path / "taken")
    with pytest.raises(ConfigurationError, match=f"{path} cannot be made: .*; choose another path"):
        LocalBackend(path=str(path))


@pytest.mark.parametrize("blocked", ["project/models/tiny", "project/models/tiny/logs"])
def test_file_in_the_way_of_a_models_folder(backend: LocalBackend, tiny_base: Path, blocked: str) -> None:
    path = in_the_way(Path(backend._path) / blocked)
    with pytest.raises(ConfigurationError, match=f"{path}.*; choose another path"):
        asyncio.run(make_model(tiny_base).register(backend))
    assert backend._services == {}


BASE_MODELS = [
    pytest.param("missing/model/folder", None, "does not exist", id="missing"),
    pytest.param("./missing", None, "does not exist", id="missing-relative"),
    pytest.param("{}/file", {"file": "x"}, "is a file", id="file"),
    pytest.param("{}", {"README.md": "x"}, "has no config.json", id="no-config"),
    pytest.param("{}", {"config.json": '{"model_type": '}, "config.json cannot be read", id="broken-config"),
    pytest.param("{}", {"config.json": '{"hidden_size": 8}'}, "does not say of which type", id="no-type"),
]


@pytest.mark.parametrize(("base_model", "files", "message"), BASE_MODELS)
def test_base_model_that_is_none(
    backend: LocalBackend, tmp_path: Path, base_model: str, files: dict[str, str] | None, message: str
) -> None:
    for name, content in (files or {}).items():
        (tmp_path / name).write_text(content)
    base_model = base_model.format(tmp_path)
    with pytest.raises(ConfigurationError, match=f"base_model '{base_model}' .*{message}"):
        asyncio.run(make_model(base_model).register(backend))
    assert backend._services == {}


CONFIGS = [
    pytest.param({"engine_arg": {}}, "'engine_arg' .did you mean 'engine_args'", id="unknown-key"),
    pytest.param(
        {"serving": {"pause_mod": "keep"}}, "'pause_mod' .did you mean 'pause_mode'", id="unknown-serving-key"
    ),
    pytest.param(
        {"engine_args": {"max_loras": 3, "max_cpu_loras": 2}}, "max_cpu_loras.* below max_loras", id="too-few"
    ),
    pytest.param(
        {"engine_args": {"max_cpu_loras": 4}}, "must be above serving.'max_live_adapters'", id="live-adapters"
    ),
    pytest.param({"engine_args": {"enable_lora": False}}, "could not be served", id="no-adapters"),
    pytest.param({"init_args": {"max_seq_length": 1}}, "max_seq_length'. is 1: .* at least 2", id="max-seq-length"),
    pytest.param({"peft_args": {"r": 0}}, "'r'. is 0", id="rank"),
    pytest.param({"trainer_gpu_ids": [0]}, "needs both", id="half-dedicated"),
]


@pytest.mark.parametrize(("config", "message"), CONFIGS)
def test_configuration_that_cannot_hold(
    backend: LocalBackend, tiny_base: Path, config: dict[str, Any], message: str
) -> None:
    model: Any = art.TrainableModel(
        name="tiny",
        project="project",
        base_model=str(tiny_base),
        _internal_config=config,  # type: ignore[arg-type]
    )
    with pytest.raises(ConfigurationError, match=message):
        asyncio.run(model.register(backend))
    assert backend._services == {}


SERVER_CONFIGS = [
    pytest.param({"server_arg": {}}, "'server_arg' .did you mean 'server_args'", id="unknown-key"),
    pytest.param({"server_args": {"port": "8000"}}, "'port'. is '8000'", id="port-as-text"),
    pytest.param({"server_args": {"port": 70000}}, "'port'. is 70000: .* at most 65535", id="port-too-high"),
]


@pytest.mark.parametrize(("config", "message"), SERVER_CONFIGS)
def test_server_configuration_that_cannot_hold(
    backend: LocalBackend, tiny_base: Path, config: Any, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        asyncio.run(make_model(tiny_base).register(backend, _openai_client_config=config))
    assert backend._services == {}


def test_environment_that_does_not_parse(
    backend: LocalBackend, tiny_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_SERVER_TIMEOUT", "soon")
    with pytest.raises(ConfigurationError, match="ART_SERVER_TIMEOUT is 'soon'"):
        asyncio.run(make_model(tiny_base).register(backend))


def test_training_a_model_that_is_not_registered(backend: LocalBackend, tiny_base: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"call `await model\.register\(backend\)` first"):
        asyncio.run(backend.train(make_model(tiny_base), []))


# Once a process is started --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_only_a_started_service_finds_out(shared: SharedRun, tiny_base: Path, tmp_path: Path) -> None:
    """A port in use, a model that another process trains, and two folders that only look like models, all at once."""
    holder = shared.backend._services["project", "tiny"].actor.process.pid
    strange, empty = tmp_path / "strange", tmp_path / "empty"
    for folder, config in (
        (strange, {"model_type": "strange"}),
        (empty, json.loads((tiny_base / "config.json").read_text())),
    ):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))

    async def register(name: str, base: Path, port: int = 0) -> str:
        server: Any = {"server_args": {"port": port}} if port else None
        try:
            await make_model(base, name=name).register(backend, _openai_client_config=server)
        except ConfigurationError as err:
            return str(err)
        raise AssertionError("nothing was raised")

    async def scenario(port: int) -> list[str]:
        return await asyncio.gather(
            register("port", tiny_base, port), register("tiny", tiny_base), register("a", strange), register("b", empty)
        )

    with LocalBackend(path=str(shared.path)) as backend, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        port_error, lock_error, strange_error, empty_error = asyncio.run(scenario(port))

    assert f"cannot listen on 127.0.0.1:{port}: [Errno 98] Address already in use" in port_error
    assert f"{shared.model_dir} is in use by process {holder}: one process at a time may train a model" in lock_error
    assert f"base_model '{strange}' cannot be loaded: " in strange_error
    assert f"base_model '{empty}' cannot be loaded: " in empty_error
    assert shared.loop.run(fixed_logprobs(shared.model)), "the model that was trained already is served on"


# What cannot be trained -----------------------------------------------------------------------------------------


def without_choices(groups: Groups) -> Groups:
    for group in groups:
        for trajectory in group.trajectories:
            answer: Any = trajectory.messages_and_choices[-1]
            trajectory.messages_and_choices[-1] = {"role": "assistant", "content": answer.message.content}
    return groups


def without_logprobs(groups: Groups) -> Groups:
    for group in groups:
        for trajectory in group.trajectories:
            answer: Any = trajectory.messages_and_choices[-1]
            answer.logprobs = None
    return groups


def with_unusable_rewards(groups: Groups) -> Groups:
    for group in groups:
        for trajectory in group.trajectories:
            trajectory.reward = math.nan
    return groups


UNTRAINABLE = [
    pytest.param(lambda groups: [], "there are no groups", {"submitted": 0}, id="no-groups"),
    pytest.param(lambda groups: [art.TrajectoryGroup([])], "without a trajectory", {"submitted": 1}, id="empty-group"),
    pytest.param(without_choices, "no Choice, only plain messages", {"dropped_untrainable": 8}, id="plain-messages"),
    pytest.param(without_logprobs, "all without logprobs", {"dropped_untrainable": 8}, id="no-logprobs"),
    pytest.param(
        with_unusable_rewards, "no reward is a finite number", {"dropped_nonfinite_reward": 8}, id="nan-rewards"
    ),
]


@pytest.mark.parametrize(("spoil", "reason", "counts"), UNTRAINABLE)
def test_step_without_anything_to_train_advances_and_says_why(
    shared: SharedRun,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Groups], Groups],
    reason: str,
    counts: dict[str, float],
) -> None:
    step = shared.loop.run(shared.model.get_step())
    groups = spoil(shared.loop.run(sample(shared.model)))

    result = shared.loop.run(shared.backend.train(shared.model, groups))

    assert result.step == step + 1
    assert reason in caplog.text
    found = {key: value for key, value in result.metrics.items() if any(key.endswith(name) for name in counts)}
    assert list(found.values()) == list(counts.values()), result.metrics
    name = shared.model.get_inference_name()
    assert name == f"tiny@{step + 1}"
    assert name in shared.loop.run(listed_names(shared.model))


def test_over_long_trajectories_are_left_out_and_counted(shared: SharedRun, caplog: pytest.LogCaptureFixture) -> None:
    groups = shared.loop.run(sample(shared.model))
    for trajectory in groups[0].trajectories:
        prompt: Any = trajectory.messages_and_choices[0]
        prompt["content"] *= 40
    result = shared.loop.run(train_step(shared.backend, shared.model, groups))
    assert result.metrics["data/step_num_trajectories_dropped_overlong"] == len(groups[0].trajectories)
    assert result.metrics["data/step_num_packed_sequences"] == len(groups[1].trajectories)


def test_all_trajectories_over_long(shared: SharedRun, caplog: pytest.LogCaptureFixture) -> None:
    groups = shared.loop.run(sample(shared.model))
    result = shared.loop.run(shared.backend.train(shared.model, groups, packed_sequence_length=16))
    assert result.metrics["data/step_num_trajectories_dropped_overlong"] == 8
    assert "longer than 16 tokens" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss_fn": "dpo"}, "loss_fn='dpo' is unknown"),
        ({"ppo": True, "loss_fn": "cispo"}, "contradicts"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"kl_penalty_coef": 0.1, "kl_ref_adapter_path": "/missing"}, "/missing"),
    ],
)
def test_training_option_that_cannot_hold(shared: SharedRun, options: dict[str, Any], message: str) -> None:
    step = shared.loop.run(shared.model.get_step())
    groups = shared.loop.run(sample(shared.model))
    with pytest.raises(ValueError, match=message):
        shared.loop.run(shared.backend.train(shared.model, groups, **options))
    assert shared.loop.run(shared.model.get_step()) == step
    assert shared.model.get_inference_name() == f"tiny@{step}"


def test_trajectories_in_place_of_groups(shared: SharedRun) -> None:
    groups = shared.loop.run(sample(shared.model))
    loose: Any = groups[0].trajectories
    with pytest.raises(TypeError, match="TrajectoryGroup"):
        shared.loop.run(shared.backend.train(shared.model, loose))
