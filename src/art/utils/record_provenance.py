"""Note in W&B how an adapter came to be."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import wandb

logger = logging.getLogger(__name__)

PROVENANCE_KEY = "wandb.provenance"


def record_provenance(run: wandb.Run, provenance: str) -> None:
    """Append a label, such as "local-rl", to the metadata of the run's latest adapter artifact.

    Does nothing where the run has logged no artifact of type `lora`, is kept offline, or where wandb is not installed.
    A label is not worth a training step: what fails is logged, not raised.
    """
    if getattr(run, "offline", False):
        logger.debug("provenance not recorded: run %s is kept offline, where artifacts cannot be looked up", run.name)
        return
    try:
        import wandb
    except ImportError:
        logger.debug("provenance not recorded: wandb is not installed")
        return
    missing = (wandb.errors.Error, ValueError, OSError)
    try:
        artifact = wandb.Api().artifact(f"{run.entity}/{run.project}/{run.name}:latest", type="lora")
    except missing as err:
        logger.debug("provenance not recorded: run %s has no adapter artifact: %s", run.name, err)
        return
    labels = list(artifact.metadata.get(PROVENANCE_KEY) or [])
    artifact.metadata[PROVENANCE_KEY] = [*labels, provenance]
    try:
        artifact.save()
    except missing as err:
        logger.warning("provenance of the adapter of run %s could not be saved: %s", run.name, err)
