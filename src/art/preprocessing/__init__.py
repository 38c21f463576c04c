"""From trajectories to tensors: advantages, tokens, packed rows, files. Nothing here runs a model."""
