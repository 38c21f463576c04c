"""The backend of `art run` over HTTP."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import art
from art import cli
from art.errors import CheckpointNotFoundError, TrainingError
from art.run_server import make_app, make_server
from art.types import Choice
from tests.support.conversations import make_trajectory
from tests.support.fake_backend import FakeBackend
from tests.support.waiting import wait_until


class Backend(FakeBackend):
    def __init__(self) -> None:
        super().__init__(samples=[{"loss/train": 1.0}, {"loss/train": 0.5}])
        self.models: list[Any] = []
        self.groups: list[art.TrajectoryGroup] = []
        self.fails_after: int | None = None

    async def register(self, model: Any) -> None:
        self.models.append(model)
        await super().register(model)

    async def _train_model(self, model: Any, trajectory_groups: Any, *args: Any, **kwargs: Any) -> Any:
        self.groups = trajectory_groups
        count = 0
        async for sample in super()._train_model(model, trajectory_groups, *args, **kwargs):
            if count == self.fails_after:
                raise TrainingError("the loss exploded")
            yield sample
            count += 1

    async def _experimental_pull_from_s3(self, model: Any, *, s3_bucket: str | None = None, step: int = -1) -> str:
        if step == 99:
            raise CheckpointNotFoundError("no step 99", step=99)
        return f"{s3_bucket}/{model.name}"

    async def _experimental_push_to_s3(self, model: Any) -> None:
        self.calls.append(("push", model.name))


@pytest.fixture
def backend() -> Backend:
    return Backend()


@contextlib.asynccontextmanager
async def reaching(backend: Backend) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(make_app(backend))
    async with httpx.AsyncClient(transport=transport, base_url="http://server.test") as client:
        yield client


def dumped_model() -> dict[str, Any]:
    model = art.TrainableModel(name="agent", project="p", base_model="b", id="i", _internal_config={"trainer_args": {}})
    return model.model_dump()


@pytest.mark.asyncio
async def test_models_arrive_as_they_were_sent(backend: Backend) -> None:
    prompted = art.Model(name="gpt", project="p")
    async with reaching(backend) as client:
        assert (await client.get("/healthcheck")).json() == {"status": "ok"}
        for body in (dumped_model(), prompted.model_dump()):
            (await client.post("/register", json=body)).raise_for_status()
        step = await client.post("/_get_step", json=dumped_model())
        address = await client.post("/_prepare_backend_for_training", json={"model": dumped_model(), "config": None})
    trained, other = backend.models
    assert isinstance(trained, art.TrainableModel)
    assert (trained.base_model, trained.id, trained._internal_config) == ("b", "i", {"trainer_args": {}})
    assert trained.model_dump() == dumped_model()
    assert type(other) is art.Model
    assert step.json() == 0
    assert address.json() == [backend.base_url, backend.api_key]


@pytest.mark.asyncio
async def test_training_gives_a_line_for_each_result(backend: Backend) -> None:
    group = art.TrajectoryGroup([make_trajectory(1.0, tokens=2), ValueError("lost")])
    body = {
        "model": dumped_model(),
        "trajectory_groups": [group.model_dump(mode="json")],
        "config": {"learning_rate": 1e-4},
        "dev_config": {"epsilon": 0.5},
    }
    async with reaching(backend) as client:
        answer = await client.post("/_train_model", json=body)
        deleted = await client.post("/_delete_checkpoint_files", json={"model": dumped_model(), "steps_to_keep": [1]})
    assert [json.loads(line) for line in answer.text.splitlines()] == [{"loss/train": 1.0}, {"loss/train": 0.5}]
    name, (count, config, dev_config, verbose) = backend.calls[0]
    assert (name, count, config.learning_rate, dev_config, verbose) == ("train", 1, 1e-4, {"epsilon": 0.5}, False)
    (received,) = backend.groups
    assert received.model_dump() == group.model_dump()
    choice = received.trajectories[0].messages_and_choices[1]
    assert isinstance(choice, Choice)
    assert choice.logprobs is not None
    assert deleted.status_code == 200
    assert backend.calls[-1] == ("delete", [1])


@pytest.mark.asyncio
@pytest.mark.parametrize(("fails_after", "status"), [(0, 500), (1, 200)])
async def test_failed_training_is_told_by_status_or_by_the_last_line(
    backend: Backend, fails_after: int, status: int
) -> None:
    backend.fails_after = fails_after
    async with reaching(backend) as client:
        answer = await client.post("/_train_model", json={"model": dumped_model(), "trajectory_groups": []})
    assert answer.status_code == status
    assert json.loads(answer.text.splitlines()[-1])["detail"] == "the loss exploded"


@pytest.mark.asyncio
async def test_other_methods_get_their_arguments_and_errors_their_status(backend: Backend) -> None:
    async with reaching(backend) as client:
        pulled = await client.post("/_experimental_pull_from_s3", json={"model": dumped_model(), "s3_bucket": "b"})
        missing = await client.post("/_experimental_pull_from_s3", json={"model": dumped_model(), "step": 99})
        wrong = await client.post("/_experimental_pull_from_s3", json={"model": dumped_model(), "bucket": "b"})
        await client.post("/_experimental_push_to_s3", json={"model": dumped_model()})
        await client.post("/close")
    assert pulled.json() == "b/agent"
    assert (missing.status_code, missing.json()) == (404, {"detail": "no step 99"})
    assert wrong.status_code == 400
    assert backend.calls == [("push", "agent"), ("close", None)]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/register", {"name": "a/b", "project": "p"}),
        ("/register", {"name": "a", "project": "p", "no_such_field": 1}),
        ("/_delete_checkpoint_files", {"model": {"name": "a", "project": "p"}}),
        ("/_train_model", {"model": {"name": "a", "project": "p"}, "trajectory_groups": [{"no": 1}]}),
    ],
)
async def test_bad_input_is_refused_with_the_reason(backend: Backend, path: str, body: dict[str, Any]) -> None:
    async with reaching(backend) as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["detail"]
    assert backend.calls == []


# The command ------------------------------------------------------------------------------------------------


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_taken_port_is_said_and_fails(taken_port: int) -> None:
    result = CliRunner().invoke(cli.app, ["run", "--port", str(taken_port)])
    assert result.exit_code == 1
    assert f"port {taken_port}" in result.output
    assert "Address already in use" in result.output


def test_missing_packages_are_said_and_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "art.run_server")
    monkeypatch.setitem(sys.modules, "fastapi", None)
    result = CliRunner().invoke(cli.app, ["run", "--port", "0"])
    assert result.exit_code == 1
    assert "openpipe-art[server]" in result.output


def test_command_serves_on_this_machine_and_closes_the_backend_at_the_end(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server(backend)
    monkeypatch.setattr(cli, "_make_run_server", lambda: server)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(CliRunner().invoke(cli.app, ["run", "--port", "0"])))
    thread.start()
    try:
        wait_until(lambda: server.started or bool(results))
        host, port = server.servers[0].sockets[0].getsockname()
        assert host == "127.0.0.1"
        assert httpx.get(f"http://127.0.0.1:{port}/healthcheck", trust_env=False).json() == {"status": "ok"}
    finally:
        server.should_exit = True
        thread.join(10)
    assert results[0].exit_code == 0
    assert f"http://127.0.0.1:{port}" in results[0].output
    assert backend.calls == [("close", None)]
