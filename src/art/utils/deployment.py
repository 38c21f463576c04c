"""Not part of this package: importing it says so."""

from __future__ import annotations

raise ImportError(
    "art.utils.deployment is not part of this package, which deploys to no other service. A trained adapter is an "
    "ordinary PEFT folder, {art_path}/{project}/models/{name}/checkpoints/{step}: upload that.",
    name="art.utils.deployment",
)
