"""Compare models by the trajectories that were logged: load them, average them, draw them."""
