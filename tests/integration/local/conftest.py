"""One backend in shared mode, as scripts use it, for all tests of this folder that need no other.

An engine takes 15 to 30 s to start, so the tests go on from whatever step the ones before have reached.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import art.local.backend
from art.local import LocalBackend
from tests.support.faulty_service import FOLDER_VARIABLE, Faults, FaultyService
from tests.support.local_run import Tiny, listed_names, make_model
from tests.support.loop_thread import LoopThread
from tests.support.tiny_model import make_tiny_model

START_TIMEOUT_S = 280.0


@dataclass
class SharedRun:
    """A registered model and the loop that its script runs on.

    Attributes:
        served_at_first: Names that the server answered to when the model was registered.
    """

    loop: LoopThread
    backend: LocalBackend
    model: Tiny
    faults: Faults
    path: Path
    served_at_first: set[str] = field(default_factory=set)

    @property
    def step(self) -> int:
        """The newest step."""
        return self.loop.run(self.model.get_step())

    @property
    def model_dir(self) -> Path:
        """The model's folder."""
        return self.path / self.model.project / "models" / self.model.name


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("base") / "base")


@pytest.fixture(scope="session")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    faults = Faults(tmp_path_factory.mktemp("faults"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, FOLDER_VARIABLE, str(faults.folder))
        patch.setattr(art.local.backend, "UnslothService", FaultyService)
        yield faults


@pytest.fixture(scope="session")
def shared(tiny_base: Path, faults: Faults, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedRun]:
    loop = LoopThread()
    path = tmp_path_factory.mktemp("shared")
    backend = LocalBackend(path=str(path))
    run = SharedRun(loop, backend, make_model(tiny_base), faults, path)
    try:
        loop.run(run.model.register(backend), START_TIMEOUT_S)
        run.served_at_first = loop.run(listed_names(run.model))
        yield run
    finally:
        if run.model.inference_base_url is not None:
            loop.run(run.model.openai_client().close())
        loop.run(backend.close())
        loop.close()
