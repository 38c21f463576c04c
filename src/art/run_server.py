"""A backend behind HTTP, for `art run`. It asks nobody who they are: keep it on this machine.

Every route takes JSON by POST. Where there is nothing but a model, the body is its dump (`model.model_dump()`);
otherwise an object with the arguments of the backend's method, the model under `model`.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from art.errors import ARTError, DataError
from art.model import Model, TrainableModel
from art.trajectories import TrajectoryGroup
from art.types import TrainConfig

logger = logging.getLogger(__name__)

GRACEFUL_SHUTDOWN_S = 10
"""How long requests may go on after the end was asked for; a training step is ended with its process."""

_Json = dict[str, Any]


def make_server(backend: Any) -> uvicorn.Server:
    """Give a server for this backend; `server.run(sockets=[…])` serves until it is told to end."""
    config = uvicorn.Config(make_app(backend), log_level="info", timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_S)
    return uvicorn.Server(config)


def make_app(backend: Any) -> FastAPI:
    """Give the application.

    Args:
        backend: A `LocalBackend`, or one with the same methods.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await backend.close()

    app = FastAPI(title="ART backend", docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_exception_handler(ARTError, _answer_error)
    app.add_exception_handler(NotImplementedError, _answer_error)

    async def healthcheck() -> _Json:
        return {"status": "ok"}

    async def close() -> None:
        await backend.close()

    async def register(model: _Json) -> None:
        await backend.register(_model(model))

    async def get_step(model: _Json) -> int:
        return int(await backend._get_step(_model(model)))

    async def delete_checkpoint_files(body: _Json) -> None:
        arguments = _arguments(body, "model", "steps_to_keep")
        await backend._delete_checkpoint_files(_model(arguments["model"]), arguments["steps_to_keep"])

    async def prepare_backend_for_training(body: _Json) -> list[str]:
        arguments = _arguments(body, "model")
        return list(await backend._prepare_backend_for_training(_model(arguments["model"]), arguments.get("config")))

    async def train_model(body: _Json) -> StreamingResponse:
        arguments = _arguments(body, "model", "trajectory_groups")
        steps = backend._train_model(
            _model(arguments["model"]),
            _groups(arguments["trajectory_groups"]),
            TrainConfig(**(arguments.get("config") or {})),
            arguments.get("dev_config") or {},
            bool(arguments.get("verbose")),
        )
        # What fails before the first result is answered with a status of its own.
        first = await anext(steps, None)
        return StreamingResponse(_lines(first, steps), media_type="application/x-ndjson")

    async def pull_from_s3(body: _Json) -> str | None:
        return await _call(backend._experimental_pull_from_s3, body)  # type: ignore[no-any-return]

    async def push_to_s3(body: _Json) -> None:
        await _call(backend._experimental_push_to_s3, body)

    app.add_api_route("/healthcheck", healthcheck, methods=["GET"])
    routes: dict[str, Callable[..., Any]] = {
        "/close": close,
        "/register": register,
        "/_get_step": get_step,
        "/_delete_checkpoint_files": delete_checkpoint_files,
        "/_prepare_backend_for_training": prepare_backend_for_training,
        "/_train_model": train_model,
        "/_experimental_pull_from_s3": pull_from_s3,
        "/_experimental_push_to_s3": push_to_s3,
    }
    for path, route in routes.items():
        app.add_api_route(path, route, methods=["POST"], response_model=None)
    return app


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    status = error.status_code if isinstance(error, ARTError) else 501
    logger.warning("%s answered with status %d: %s", request.url.path, status, error)
    return JSONResponse({"detail": str(error)}, status_code=status)


async def _lines(first: dict[str, float] | None, others: AsyncGenerator[dict[str, float], None]) -> AsyncIterator[str]:
    """Give each result as a line of JSON; an error, which can no longer have a status, is the last line."""
    if first is None:
        return
    yield json.dumps(first) + "\n"
    try:
        async with contextlib.aclosing(others):
            async for metrics in others:
                yield json.dumps(metrics) + "\n"
    except Exception as err:
        logger.exception("training failed after its first result")
        yield json.dumps({"detail": str(err), "error": type(err).__name__}) + "\n"


async def _call(method: Any, body: _Json) -> Any:
    arguments = _arguments(body, "model")
    model = _model(arguments.pop("model"))
    try:
        return await method(model, **arguments)
    except TypeError as err:
        raise DataError(f"the arguments do not fit: {err}") from err


def _arguments(body: _Json, *required: str) -> _Json:
    missing = [name for name in required if name not in body]
    if missing:
        raise DataError(f"the body lacks {', '.join(missing)}")
    return dict(body)


def _model(dumped: _Json) -> Model[Any, Any]:
    fields = {name: value for name, value in dumped.items() if name != "trainable"}
    try:
        if dumped.get("trainable") or "base_model" in dumped:
            return TrainableModel(**fields)
        return Model(**fields)
    except (TypeError, ValueError) as err:
        raise DataError(f"not a model: {err}") from err


def _groups(dumped: Any) -> list[TrajectoryGroup]:
    try:
        return [TrajectoryGroup.model_validate(group) for group in dumped]
    except (TypeError, ValueError) as err:
        raise DataError(f"not trajectory groups: {err}") from err
