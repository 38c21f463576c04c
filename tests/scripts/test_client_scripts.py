"""Scripts whose rollouts need no engine: tools, images, streams, litellm, failures."""

from __future__ import annotations

import json
from pathlib import Path

from art.utils.trajectory_logging import read_trajectory_groups_parquet
from tests.scripts.chat_server import ANSWER, ChatServer
from tests.scripts.conftest import RunScript


def test_tools_over_several_turns_and_failures_within_the_allowance(
    run_script: RunScript, chat_server: ChatServer, tmp_path: Path
) -> None:
    facts = run_script("tool_agent.py", f"{chat_server.url}/v1")

    assert facts == {
        "groups": [2, 2],
        "rewards": [[1.0, 1.0], [1.0, 1.0]],
        "turns": 2,
        "roles": ["system", "user", "assistant", "tool", "assistant"],
        "several": ["Trajectory", "BadRequestError", "Trajectory"],
        "raised": "BadRequestError",
    }
    last = next(body for body in chat_server.bodies if body["messages"][-1]["role"] == "tool")
    assert [message.get("tool_calls") for message in last["messages"]][2][0]["function"]["arguments"] == (
        '{"city": "Oslo"}'
    )
    assert last["messages"][-1]["content"] == "sunny in Oslo"
    folder = tmp_path / ".art/scripts/models/prompted"
    (group,) = read_trajectory_groups_parquet(folder / "trajectories/test/0003.parquet")
    assert [len(group.trajectories), len(group.exceptions)] == [2, 1]
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 3]
    assert [rows[0]["val/reward"], rows[1]["test/exception_rate"]] == [1.0, 1 / 3]
    output = (tmp_path / "output.log").read_text()
    assert "gather: 100%" in output
    assert "exceptions=2" in output


def test_images_streams_litellm_and_trajectories_that_are_yielded_or_captured(
    run_script: RunScript, chat_server: ChatServer, tmp_path: Path
) -> None:
    facts = run_script("streams_and_images.py", f"{chat_server.url}/v1")

    assert [fact["reward"] for fact in facts] == [0.5, 1.0, 1.0, 0.0, 0.0, 0.25, 0.75, 0.5]
    image, stream, cut, by_litellm, streamed, yielded, captured, again = [fact["texts"] for fact in facts]
    assert [part["type"] for part in image[0]] == ["text", "image_url"]
    assert image[1] == by_litellm[1] == yielded[1] == again[1] == ANSWER
    assert stream[1].strip() == streamed[1].strip() == ANSWER
    assert cut[1] == "It "
    assert captured == ["first", ANSWER, "second", ANSWER]
    (group,) = read_trajectory_groups_parquet(tmp_path / ".art/scripts/models/prompted/trajectories/val/0000.parquet")
    assert [trajectory.messages()[0]["content"] for trajectory in group] == [fact["texts"][0] for fact in facts[:-1]]
