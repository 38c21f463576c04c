"""Every exception that this package raises.

Facts are attributes, not only text, and every class pickles with them, since errors cross process borders.
Import from here; nothing else in the package defines an exception that a caller could meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class ARTError(Exception):
    """Base of all errors of this package.

    Attributes:
        message: What was tried, with which values, and what to do.
        status_code: HTTP status for `art run` and other servers that report the error.
    """

    def __init__(self, message: str, status_code: int = 500) -> None:
        super().__init__(message)
        self.message = message
        self.status_code = status_code

    @property
    def detail(self) -> str:
        """The message, under the name that web frameworks use."""
        return self.message

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_error, (type(self), self.args, dict(self.__dict__))


def _rebuild_error(cls: type[ARTError], args: tuple[Any, ...], attributes: dict[str, Any]) -> ARTError:
    layout: type = cls  # the built-in class that decides how an instance is laid out in memory
    while layout.__module__ != "builtins":
        layout = layout.__base__ or object
    error: ARTError = layout.__new__(cls, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


# Before anything starts ------------------------------------------------------------------------------------


class ConfigurationError(ARTError, ValueError):
    """A setting is unknown, malformed, or contradicts another one."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 400)


class DependencyError(ARTError, ImportError):
    """A package that the requested part needs is absent or unusable."""


class MissingDependencyError(DependencyError):
    """An optional package is not installed.

    Attributes:
        package: The import name that failed.
        extra: The extra that brings it, or None.
    """

    def __init__(self, package: str, *, needed_for: str, extra: str | None) -> None:
        how = f'pip install "openpipe-art[{extra}]"' if extra else f"pip install {package}"
        super().__init__(f"{needed_for} needs the package `{package}`, which is not installed. Install it with: {how}")
        self.package = package
        self.extra = extra
        self.name = package


class IncompatibleDependencyError(DependencyError):
    """A package is installed in a version whose interior differs from what we touch.

    Attributes:
        package: Distribution name.
        found_version: What is installed.
        wanted: The supported range, as text.
        missing: What was looked for and not found.
    """

    def __init__(self, package: str, *, found_version: str, wanted: str, missing: str) -> None:
        super().__init__(
            f"{package} {found_version} does not have {missing}, which this package relies on; supported: {wanted}. "
            f"Install a supported version of {package}, or report this with both versions."
        )
        self.package = package
        self.found_version = found_version
        self.wanted = wanted
        self.missing = missing


# Rollouts ---------------------------------------------------------------------------------------------------


class RolloutError(ARTError, RuntimeError):
    """Collecting trajectories failed."""


class TooManyRolloutFailuresError(RolloutError):
    """More rollouts failed than the caller allowed.

    Attributes:
        failures: The causes, oldest first.
    """

    def __init__(self, message: str, failures: Sequence[BaseException] = ()) -> None:
        super().__init__(message)
        self.failures = list(failures)


class RolloutTimedOutError(RolloutError, TimeoutError):
    """A rollout took longer than one may take, and was cancelled.

    Attributes:
        limit_s: How long it could have taken, in seconds.
    """

    def __init__(self, message: str, *, limit_s: float) -> None:
        super().__init__(message)
        self.limit_s = limit_s


class PipelineStalledError(ARTError, TimeoutError):
    """A pipeline made no progress, or did not end, within its time limit.

    Attributes:
        report: What every part of the pipeline was doing: a line for each.
        waited_s: Seconds without progress.
    """

    def __init__(self, message: str, *, report: str = "", waited_s: float = 0.0) -> None:
        super().__init__(message)
        self.report = report
        self.waited_s = waited_s


# Data -------------------------------------------------------------------------------------------------------


class DataError(ARTError, ValueError):
    """Trajectories cannot be used as they are."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 400)


class TokenizationError(DataError):
    """A trajectory cannot be turned into tokens.

    Attributes:
        trajectory_index: Index within its group, or None.
        message_index: Index of the message within its history, or None.
    """

    def __init__(self, message: str, *, trajectory_index: int | None = None, message_index: int | None = None) -> None:
        super().__init__(message)
        self.trajectory_index = trajectory_index
        self.message_index = message_index


class ListContentError(TokenizationError, AssertionError):
    """An assistant message that is to be trained from its text has a list as content, not text."""


class NoTrainableTokensError(DataError):
    """No token of the data can be trained."""


class JudgeError(ARTError, ValueError):
    """A judge's answer cannot be used.

    Attributes:
        answer: What it said.
    """

    def __init__(self, message: str, *, answer: str) -> None:
        super().__init__(message)
        self.answer = answer


# Training ---------------------------------------------------------------------------------------------------


class TrainingError(ARTError, RuntimeError):
    """A training step failed; the last published step keeps serving."""


class NonFiniteLossError(TrainingError):
    """Every row of a step gave a loss or gradient that is NaN or infinite, or its weights give such logprobs.

    Attributes:
        step: The step that was being trained.
        row: The first such row; None where it is the weights.
    """

    def __init__(self, message: str, *, step: int | None = None, row: int | None = None) -> None:
        super().__init__(message)
        self.step = step
        self.row = row


class TrainerDiedError(TrainingError):
    """The process that trains ended without being asked to.

    Attributes:
        exit_code: Its exit code; negative for a signal, as in `subprocess`.
        log_path: Where its output is.
    """

    def __init__(self, message: str, *, exit_code: int | None = None, log_path: str | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.log_path = log_path


# Checkpoints ------------------------------------------------------------------------------------------------


class CheckpointError(ARTError, RuntimeError):
    """A checkpoint cannot be written, read or removed."""


class CheckpointNotFoundError(CheckpointError):
    """No checkpoint of that step exists.

    Attributes:
        step: The step asked for, or None for "newest".
        available_steps: Steps that exist.
    """

    def __init__(self, message: str, *, step: int | None = None, available_steps: Sequence[int] = ()) -> None:
        super().__init__(message, 404)
        self.step = step
        self.available_steps = list(available_steps)


class CheckpointUnavailableError(CheckpointNotFoundError, FileNotFoundError, ValueError):
    """There is no checkpoint to fork, pull or push, neither on this machine nor in the bucket, as far as it was named.

    It is a FileNotFoundError and a ValueError, since scripts for older releases catch either.
    """


class CheckpointIncompleteError(CheckpointError):
    """A checkpoint folder lacks files or holds broken ones.

    Attributes:
        path: The folder.
        missing: File names that are absent or unreadable.
    """

    def __init__(self, message: str, *, path: str, missing: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.path = path
        self.missing = list(missing)


# Inference --------------------------------------------------------------------------------------------------


class InferenceError(ARTError, RuntimeError):
    """The inference server did not do what was asked."""

    def __init__(self, message: str, status_code: int = 503) -> None:
        super().__init__(message, status_code)


class ServerStartError(InferenceError):
    """The inference server ended, or could not be started, before it was ready.

    Attributes:
        command: The command line, or a description for an engine in this process.
        exit_code: Exit code, negative for a signal; None when there was no process.
        log_path: Where its output is.
        log_tail: The last lines of that output.
    """

    def __init__(
        self,
        message: str,
        *,
        command: str = "",
        exit_code: int | None = None,
        log_path: str | None = None,
        log_tail: str = "",
    ) -> None:
        super().__init__(message)
        self.command = command
        self.exit_code = exit_code
        self.log_path = log_path
        self.log_tail = log_tail


class ServerNotReadyError(InferenceError, TimeoutError):
    """The inference server lives but did not become ready in time.

    Attributes:
        waited_s: Seconds waited.
        url: What was asked.
        log_path: Where the server's output is.
    """

    def __init__(self, message: str, *, waited_s: float, url: str, log_path: str | None = None) -> None:
        super().__init__(message)
        self.waited_s = waited_s
        self.url = url
        self.log_path = log_path


class ServerDiedError(InferenceError):
    """The inference server ended without being asked to.

    Attributes:
        exit_code: Exit code, negative for a signal.
        log_path: Where its output is.
    """

    def __init__(self, message: str, *, exit_code: int | None = None, log_path: str | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.log_path = log_path


class AdapterLoadError(InferenceError):
    """The server refused an adapter.

    Attributes:
        step: The step that was to be published.
        path: The adapter's folder.
        status: HTTP status of the refusal, or None.
        body: The server's own words.
    """

    def __init__(
        self, message: str, *, step: int, path: str, status: int | None = None, body: str | None = None
    ) -> None:
        super().__init__(message)
        self.step = step
        self.path = path
        self.status = status
        self.body = body


class AdapterNotServedError(InferenceError):
    """A step was asked for that the server does not serve.

    Attributes:
        step: The step asked for.
        served_steps: Steps that are served.
    """

    def __init__(self, message: str, *, step: int, served_steps: Sequence[int] = ()) -> None:
        super().__init__(message, 404)
        self.step = step
        self.served_steps = list(served_steps)


class StaleAdapterError(InferenceError):
    """The server answers for a step's name, but not with that step's weights.

    Attributes:
        step: The step that was to be published.
        adapter_name: The name that was probed.
        logprob_gap: Mean absolute difference to the trainer's logprobs, in nats.
        limit: The gap allowed, in nats.
        evidence: Which check failed, in words.
    """

    def __init__(
        self, message: str, *, step: int, adapter_name: str, logprob_gap: float, limit: float, evidence: str
    ) -> None:
        super().__init__(message)
        self.step = step
        self.adapter_name = adapter_name
        self.logprob_gap = logprob_gap
        self.limit = limit
        self.evidence = evidence


class LocalServingUnavailableError(InferenceError):
    """The local inference server is gone or does not answer, and recovery was not possible.

    Attributes:
        facts: What was found out: url, adapter_name, step, path, attempts, waited_s, pid, process_state,
            exit_code, health_before, health_after, log_path, log_tail (those that apply).
    """

    def __init__(self, message: str, *, facts: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.facts = dict(facts or {})


class AnswerInterruptedError(InferenceError):
    """A server's answer broke off after it had begun, so that it could not be asked for again unseen.

    Attributes:
        facts: What is known about the server, as in `LocalServingUnavailableError`.
    """

    def __init__(self, message: str, *, facts: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.facts = dict(facts or {})


# Storage ----------------------------------------------------------------------------------------------------


class S3SyncError(ARTError, RuntimeError):
    """Files could not be moved to or from an S3 bucket, or did not arrive as they were.

    Attributes:
        bucket: The bucket.
        key: The object, or the prefix, below it.
        code: The server's or the library's own name for what went wrong; empty where it is our finding.
    """

    def __init__(self, message: str, *, bucket: str, key: str = "", code: str = "") -> None:
        super().__init__(message)
        self.bucket = bucket
        self.key = key
        self.code = code


# Deployment -------------------------------------------------------------------------------------------------


class DeploymentError(ARTError):
    """Handing a trained model to somebody else's service failed."""


class ForbiddenBucketCreationError(DeploymentError):
    """The bucket does not exist and may not be created."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 403)


class UnsupportedLoRADeploymentProviderError(DeploymentError):
    """That provider does not take LoRA adapters from us."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 400)


class UnsupportedBaseModelDeploymentError(DeploymentError):
    """That provider does not serve this base model."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 400)


class LoRADeploymentTimedOutError(DeploymentError):
    """The provider did not finish in time."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 504)
