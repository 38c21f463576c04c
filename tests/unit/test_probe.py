"""What the probe asks of a server."""

from __future__ import annotations

from pathlib import Path

from art.probe import AdapterProbe


def test_target_is_the_most_frequent_predicted_token() -> None:
    probe = AdapterProbe((7, 1, 5, 1, 7, 1), (-0.1, -0.2, -0.3, -0.4, -0.5), (-1.0,) * 5, "float32")
    assert probe.target == 1
    assert probe.positions == (0, 2, 4)
    assert probe.at_positions(probe.logprobs) == (-0.1, -0.3, -0.5)


def test_first_of_equally_frequent_tokens_is_taken() -> None:
    probe = AdapterProbe((5, 6, 7, 8), (-0.1, -0.2, -0.3), (-1.0,) * 3, "float32")
    assert (probe.target, probe.positions) == (6, (0,))


def test_probe_reads_back_as_written(tmp_path: Path) -> None:
    probe = AdapterProbe((5, 6), (-0.25,), (-0.5,), "bfloat16")
    probe.write(tmp_path)
    assert AdapterProbe.read(tmp_path) == probe
    assert AdapterProbe.read(tmp_path / "elsewhere") is None
