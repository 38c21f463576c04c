"""What is left of an older set of benchmarking helpers; `art.utils.benchmarking` has the current ones."""
