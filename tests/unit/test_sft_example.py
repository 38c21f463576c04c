"""The data set of examples/sft is what its README says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from art.utils.sft import iterate_file

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "sft"
ENTRY = re.compile(r"(mon|tue|wed|thu|fri|sat|sun) \d{1,2}(:\d\d)?(am|pm) \| [a-z ]+ \| ([A-Z][a-z]+|-)")


@pytest.mark.parametrize(("name", "count"), [("train.jsonl", 128), ("held_out.jsonl", 12)])
def test_every_row_is_a_request_and_its_entry(name: str, count: int) -> None:
    rows = [trajectory.messages() for trajectory in iterate_file(str(FOLDER / name))]
    assert len(rows) == count
    for request, answer in rows:
        assert (request["role"], answer["role"]) == ("user", "assistant")
        assert ENTRY.fullmatch(str(answer["content"])), answer


def test_nothing_held_out_is_trained() -> None:
    def entries(name: str) -> set[str]:
        lines = (FOLDER / name).read_text().splitlines()
        return {message["content"] for line in lines for message in json.loads(line)["messages"]}

    assert not entries("held_out.jsonl") & entries("train.jsonl")
