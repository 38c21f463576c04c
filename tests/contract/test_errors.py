"""The tree of errors, and that each of them crosses a process border whole."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest

from art import errors
from art.errors import ARTError

BASES: dict[str, set[type[BaseException]]] = {
    "ConfigurationError": {ValueError},
    "DependencyError": {ImportError},
    "MissingDependencyError": {errors.DependencyError, ImportError},
    "IncompatibleDependencyError": {errors.DependencyError, ImportError},
    "RolloutError": {RuntimeError},
    "TooManyRolloutFailuresError": {errors.RolloutError, RuntimeError},
    "PipelineStalledError": {TimeoutError},
    "RolloutTimedOutError": {errors.RolloutError, TimeoutError},
    "DataError": {ValueError},
    "TokenizationError": {errors.DataError, ValueError},
    "NoTrainableTokensError": {errors.DataError, ValueError},
    "JudgeError": {ValueError},
    "TrainingError": {RuntimeError},
    "NonFiniteLossError": {errors.TrainingError, RuntimeError},
    "TrainerDiedError": {errors.TrainingError, RuntimeError},
    "CheckpointError": {RuntimeError},
    "CheckpointNotFoundError": {errors.CheckpointError, RuntimeError},
    "CheckpointUnavailableError": {errors.CheckpointNotFoundError, FileNotFoundError, ValueError},
    "CheckpointIncompleteError": {errors.CheckpointError, RuntimeError},
    "InferenceError": {RuntimeError},
    "ServerStartError": {errors.InferenceError, RuntimeError},
    "ServerNotReadyError": {errors.InferenceError, TimeoutError},
    "ServerDiedError": {errors.InferenceError, RuntimeError},
    "AdapterLoadError": {errors.InferenceError, RuntimeError},
    "AdapterNotServedError": {errors.InferenceError, RuntimeError},
    "StaleAdapterError": {errors.InferenceError, RuntimeError},
    "LocalServingUnavailableError": {errors.InferenceError, RuntimeError},
    "S3SyncError": {RuntimeError},
    "ForbiddenBucketCreationError": {errors.DeploymentError},
    "UnsupportedLoRADeploymentProviderError": {errors.DeploymentError},
    "UnsupportedBaseModelDeploymentError": {errors.DeploymentError},
    "LoRADeploymentTimedOutError": {errors.DeploymentError},
}
STATUS_CODES = {
    "ForbiddenBucketCreationError": 403,
    "UnsupportedLoRADeploymentProviderError": 400,
    "UnsupportedBaseModelDeploymentError": 400,
    "LoRADeploymentTimedOutError": 504,
}
# A value for each type that an error's parameter may have.
SAMPLES: dict[str, Any] = {
    "str": "text",
    "str | None": "text",
    "int": 7,
    "int | None": 7,
    "float": 0.25,
    "float | None": 0.25,
    "bool": True,
    "Sequence[int]": [1, 2],
    "Sequence[str]": ["a", "b"],
    "Sequence[BaseException]": [],
    "dict[str, Any] | None": {"url": "u", "attempts": 3},
}
CLASSES = sorted(
    (cls for cls in vars(errors).values() if inspect.isclass(cls) and issubclass(cls, ARTError)),
    key=lambda cls: cls.__name__,
)


def make(cls: type[ARTError]) -> ARTError:
    parameters = list(inspect.signature(cls).parameters.values())
    values = {parameter.name: SAMPLES[parameter.annotation] for parameter in parameters}
    positional = [values.pop(p.name) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    return cls(*positional, **values)


@pytest.mark.parametrize("name", sorted(BASES))
def test_error_is_caught_by_the_clauses_promised(name: str) -> None:
    cls = getattr(errors, name)

    assert all(issubclass(cls, base) for base in BASES[name])


@pytest.mark.parametrize("cls", CLASSES)
def test_error_pickles_with_its_facts(cls: type[ARTError]) -> None:
    error = make(cls)

    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is cls
    assert copy.args == error.args
    assert vars(copy) == vars(error)
    assert str(copy) == str(error) == error.message == error.detail


@pytest.mark.parametrize("cls", CLASSES)
def test_every_parameter_is_kept_as_an_attribute_or_told_in_the_message(cls: type[ARTError]) -> None:
    error = make(cls)

    for parameter in inspect.signature(cls).parameters.values():
        value = SAMPLES[parameter.annotation]
        assert getattr(error, parameter.name, None) == value or str(value) in error.message, parameter.name


@pytest.mark.parametrize(("name", "status_code"), sorted(STATUS_CODES.items()))
def test_deployment_errors_take_only_a_message_and_know_their_status(name: str, status_code: int) -> None:
    error = getattr(errors, name)("why")

    assert (error.status_code, error.detail) == (status_code, "why")
