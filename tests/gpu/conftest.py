"""One model of a true shape, and what every test on a GPU needs. Without a GPU all of this folder is skipped."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import art.local.backend
from dev.gpu.make_model import make_model
from tests.support.faulty_service import FOLDER_VARIABLE, Faults
from tests.support.gpu_service import GpuService

SHAPE = "qwen2.5-0.5b"
FOLDER = Path(__file__).parent


def why_not() -> str | None:
    """Say why these tests cannot run here."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return None if torch.cuda.is_available() else "there is no CUDA device"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.timeout(600))
            item.add_marker(pytest.mark.filterwarnings("default"))  # of the libraries, about each other
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def base_model() -> Path:
    """A model of the 0.5B shape, made once for all runs on this machine (1 GB)."""
    folder = Path(os.environ.get("ART_TEST_MODELS", tempfile.gettempdir())) / SHAPE
    return make_model(SHAPE, folder)


@pytest.fixture(scope="session")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    faults = Faults(tmp_path_factory.mktemp("faults"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, FOLDER_VARIABLE, str(faults.folder))
        patch.setattr(art.local.backend, "UnslothService", GpuService)
        yield faults
