"""The methods of `LocalBackend` that take checkpoints over from other models, and to and from S3."""

from __future__ import annotations

import asyncio
import logging
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

from art.checkpoint_manifest import ParentCheckpoint
from art.checkpoints import checkpoint_dir, list_steps, newest_step
from art.errors import CheckpointUnavailableError, ConfigurationError
from art.local.fork import export_checkpoint, fork_local, fork_remote, held_folder
from art.model import Model, TrainableModel
from art.model.path_parts import check_path_part
from art.utils.output_dirs import get_output_dir_from_model_properties
from art.utils.s3 import ExcludableOption, pull_model_from_s3, push_model_to_s3
from art.utils.s3_bucket import Bucket
from art.utils.s3_checkpoint_utils import get_latest_checkpoint_step_from_s3
from art.utils.s3_checkpoints import fetch_checkpoint, list_remote_checkpoints, newest_complete
from art.utils.s3_folders import Transfers
from art.utils.s3_model import in_thread, model_prefix, require_remote

logger = logging.getLogger(__name__)

AnyModel = Model[Any, Any]
WantedStep = int | Literal["latest"] | None


class CheckpointTransferMethods:
    """What `LocalBackend` inherits from here. "Experimental" is in the names for the sake of existing scripts."""

    _path: str

    def _model_dir(self, model: AnyModel) -> Path:
        raise NotImplementedError

    def _is_running(self, model: AnyModel) -> bool:
        raise NotImplementedError

    async def _experimental_fork_checkpoint(
        self,
        model: AnyModel,
        from_model: str,
        from_project: str | None = None,
        from_s3_bucket: str | None = None,
        not_after_step: int | None = None,
        verbose: bool = False,
        prefix: str | None = None,
    ) -> None:
        """Have a model start from a checkpoint of another one, under the same step number.

        Call it before the model is registered. The next step that is trained has the next number. Optimizer state
        comes along if the checkpoint has it; history, state and trajectories do not.

        Args:
            model: The model that shall start there.
            from_model: The model whose checkpoint is taken.
            from_project: Its project; None: the same one.
            from_s3_bucket: Also look into this bucket; what is newest is taken, from here if both have it.
            not_after_step: Take none above this step.
            verbose: Log every file.
            prefix: Folder in the bucket below which everything lies.

        Raises:
            CheckpointUnavailableError: There is no such checkpoint. It is a FileNotFoundError and a ValueError.
            CheckpointError: The model has newer checkpoints, with which it would go on, or the file system refused.
            ConfigurationError: The model is running.
            S3SyncError: The bucket cannot be read.
        """
        project = from_project if from_project is not None else model.project
        check_path_part("from_model", from_model)
        check_path_part("from_project", project)
        self._refuse_while_running(model, "fork into it before you register it")
        source_dir = Path(get_output_dir_from_model_properties(project, from_model, self._path))
        target_dir = self._model_dir(model)
        base_model = model.base_model if isinstance(model, TrainableModel) else None

        def work(transfers: Transfers) -> None:
            step = _newest_local(source_dir, not_after_step)
            if from_s3_bucket is not None:
                bucket, key = Bucket(from_s3_bucket), model_prefix(from_model, project, prefix)
                there = list_remote_checkpoints(bucket, key).values()
                remote = newest_complete(bucket, there, not_after=not_after_step)
                if remote is not None and (step is None or remote.step > step):
                    parent = ParentCheckpoint(remote.step, project, from_model, bucket.url(remote.prefix))
                    fork_remote(bucket, remote, target_dir, parent, base_model, transfers)
                    return
            if step is None:
                limit = "" if not_after_step is None else f" of step {not_after_step} or before"
                place = "" if from_s3_bucket is None else f", nor in the bucket {from_s3_bucket}"
                raise CheckpointUnavailableError(
                    f"model {from_model!r} of project {project!r} has no complete checkpoint{limit} in {source_dir}"
                    f"{place}",
                    available_steps=list_steps(source_dir),
                )
            parent = ParentCheckpoint(step, project, from_model)
            fork_local(checkpoint_dir(source_dir, step), target_dir, parent, base_model)

        await in_thread(work, verbose=verbose)

    async def _experimental_pull_model_checkpoint(
        self,
        model: TrainableModel[Any, Any],
        *,
        step: WantedStep = None,
        local_path: str | None = None,
        s3_bucket: str | None = None,
        prefix: str | None = None,
        verbose: bool = False,
    ) -> str:
        """Return a folder with a checkpoint, fetched from a bucket where this machine does not have it.

        Args:
            model: The model.
            step: The step; None or "latest" for the newest one, here or in the bucket, where an untrained step 0 on
                this machine does not count.
            local_path: Copy it to this folder.
            s3_bucket: Where to look beside this machine; None for nowhere.
            prefix: Folder in the bucket below which everything lies.
            verbose: Log every file.

        Returns:
            `local_path` if that is given, else the checkpoint's place in the model's folder.

        Raises:
            CheckpointUnavailableError: There is no such checkpoint. It is a FileNotFoundError and a ValueError.
            CheckpointError: It is incomplete, or the file system refused.
            ConfigurationError: `step` is something else, or the model is running, and fetching the checkpoint would
                change what it goes on from.
            S3SyncError: It could not be fetched, or did not arrive as it was.
        """
        if step not in (None, "latest") and type(step) is not int:
            raise ConfigurationError(f'step is {step!r}; it must be a number, "latest" or None')
        model_dir = self._model_dir(model)
        bucket_name = s3_bucket or model._s3_bucket
        key = model_prefix(model.name, model.project, prefix if prefix is not None else model._s3_prefix)

        def work(transfers: Transfers) -> str:
            path = _wanted_locally(model_dir, step)
            if bucket_name is not None and (path is None or step in (None, "latest")):
                path = self._newer_from_bucket(model, Bucket(bucket_name), key, step, path, transfers)
            if path is None:
                raise CheckpointUnavailableError(
                    f"no checkpoint of step {'latest' if step is None else step} in {model_dir}"
                    + (", and no bucket is named" if bucket_name is None else f", nor in the bucket {bucket_name}"),
                    step=step if isinstance(step, int) else None,
                    available_steps=list_steps(model_dir),
                )
            if local_path is None:
                return str(path)
            export_checkpoint(path, Path(local_path))
            return local_path

        return await in_thread(work, verbose=verbose)

    async def _experimental_pull_from_s3(
        self,
        model: AnyModel,
        *,
        s3_bucket: str | None = None,
        prefix: str | None = None,
        verbose: bool = False,
        delete: bool = False,
        only_step: int | Literal["latest"] | None = None,
        step: int | None = None,
        exclude: list[ExcludableOption] | None = None,
        latest_only: bool = False,
    ) -> None:
        """Fetch a model's folder, or one checkpoint of it, from a bucket.

        Deprecated: `_experimental_pull_model_checkpoint` says what it fetched; for a whole folder call
        `art.utils.s3.pull_model_from_s3`.

        Args:
            model: The model.
            s3_bucket: The bucket; None for the model's own, or the one in `BACKUP_BUCKET`.
            prefix: Folder in the bucket below which everything lies.
            verbose: Log every file.
            delete: Also delete what the bucket does not have.
            only_step: Only this step's checkpoint; "latest" does nothing where there is none.
            step: The same.
            exclude: What to leave out.
            latest_only: The same as `only_step="latest"`.

        Raises:
            CheckpointUnavailableError: The step is not in the bucket.
            ConfigurationError: The model is running.
            S3SyncError: Files could not be fetched, or did not arrive as they were.
        """
        warnings.warn(
            "_experimental_pull_from_s3 is deprecated: use _experimental_pull_model_checkpoint for a checkpoint, or "
            "art.utils.s3.pull_model_from_s3 for a whole folder",
            DeprecationWarning,
            stacklevel=2,
        )
        wanted: int | Literal["latest"] | None = "latest" if latest_only else only_step
        wanted = step if wanted is None else wanted
        self._refuse_while_running(model, "pull before you register it")
        bucket = s3_bucket or model._s3_bucket
        prefix = prefix if prefix is not None else model._s3_prefix
        if wanted == "latest":
            wanted = await get_latest_checkpoint_step_from_s3(model.name, model.project, bucket, prefix)
            if wanted is None:
                logger.info("nothing to pull: no checkpoint of %s in the bucket", model.name)
                return
        held = held_folder(self._model_dir(model))
        await asyncio.to_thread(held.__enter__)
        try:
            await pull_model_from_s3(
                model.name, model.project, wanted, bucket, prefix, verbose, delete, art_path=self._path, exclude=exclude
            )
        finally:
            held.__exit__(None, None, None)

    async def _experimental_push_to_s3(
        self,
        model: AnyModel,
        *,
        s3_bucket: str | None = None,
        prefix: str | None = None,
        verbose: bool = False,
        delete: bool = False,
    ) -> None:
        """Send a model's folder to a bucket, also while it is running; see `art.utils.s3.push_model_to_s3`.

        Raises:
            CheckpointUnavailableError: The model has no folder here.
            S3SyncError: Files could not be sent, or did not arrive as they were.
        """
        await push_model_to_s3(
            model.name,
            model.project,
            s3_bucket or model._s3_bucket,
            prefix if prefix is not None else model._s3_prefix,
            verbose,
            delete,
            art_path=self._path,
        )

    def _newer_from_bucket(
        self,
        model: AnyModel,
        bucket: Bucket,
        key: str,
        step: WantedStep,
        path: Path | None,
        transfers: Transfers,
    ) -> Path | None:
        """Fetch the wanted checkpoint from a bucket, unless this machine's is as new."""
        model_dir = self._model_dir(model)
        if isinstance(step, int):
            remote = require_remote(bucket, key, step)
        else:
            newest = newest_complete(bucket, list_remote_checkpoints(bucket, key).values())
            if newest is None or (path is not None and newest.step <= int(path.name)):
                return path
            remote = newest
        is_newer = remote.step > (newest_step(model_dir) or 0)
        if is_newer:
            self._refuse_while_running(model, f"step {remote.step} is newer than what it trains from")
        with held_folder(model_dir) if is_newer else nullcontext():
            return fetch_checkpoint(bucket, remote, model_dir, transfers)

    def _refuse_while_running(self, model: AnyModel, advice: str) -> None:
        if self._is_running(model):
            raise ConfigurationError(f"model {model.name!r} is being trained and served by this backend: {advice}")


def _newest_local(model_dir: Path, not_after: int | None) -> int | None:
    steps = [step for step in list_steps(model_dir) if not_after is None or step <= not_after]
    return max(steps, default=None)


def _wanted_locally(model_dir: Path, step: WantedStep) -> Path | None:
    wanted = step if isinstance(step, int) else newest_step(model_dir) or None
    if wanted is None or wanted not in list_steps(model_dir):
        return None
    return checkpoint_dir(model_dir, wanted)
