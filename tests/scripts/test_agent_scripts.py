"""Scripts with agents of other libraries and judges: LangGraph, RULER, MCP."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.scripts.conftest import RunScript
from tests.support.conversations import make_tool_call
from tests.support.scripted_openai import ScriptedOpenAI, serving_in_thread

QUIET_LITELLM = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def calls(*made: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(made)}


def play_mail_reader_or_judge(request: dict[str, Any]) -> Any:
    messages = request["messages"]
    if request["model"] == "judge":
        ids = re.findall(r'<trajectory id="(\d+)">', messages[1]["content"])
        scores = [{"trajectory_id": n, "explanation": "so so", "score": 1 / int(n)} for n in reversed(ids)]
        return json.dumps({"scores": scores})
    if len(messages) == 2:
        # Two calls at once; the rollouts differ, so that the judge is shown each.
        word = f"word-{id(messages)}"
        return calls(
            make_tool_call("search_inbox", f'{{"keywords":["{word}"]}}', "c1"),
            make_tool_call("search_inbox", '{"keywords": []}', "c2"),
        )
    if messages[-1]["role"] == "tool" and messages[-1]["tool_call_id"] == "c2":
        return calls(make_tool_call("return_final_answer", '{"answer":"Ann"}', "c3"))
    return "Done."


def test_langgraph_agents_judged_by_ruler_and_drawn(run_script: RunScript, tmp_path: Path) -> None:
    with serving_in_thread(ScriptedOpenAI(answer_to=play_mail_reader_or_judge)) as server:
        facts = run_script("langgraph_agent.py", server.base_url, **QUIET_LITELLM)
    assert sorted(facts.pop("rewards")) == [1 / 3, 1 / 3, 0.5, 0.5, 1.0, 1.0]
    assert facts == {
        "steps": [0, 0, 0, 1, 1, 1],
        "answered": [1.0] * 6,
        "roles": ["system", "user", "assistant", "tool", "tool", "assistant", "tool", "assistant"],
        "tools": ["search_inbox", "return_final_answer"],
        "answer": "Ann",
        "histories": 0,
    }
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    judged = [request for request in server.chats if request["model"] == "judge"]
    assert len(judged) == 2
    assert "search_inbox" in judged[0]["messages"][1]["content"]
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"judge-key" not in path.read_bytes()


def play_task_maker_or_agent(request: dict[str, Any]) -> Any:
    if request["model"] == "maker":
        return json.dumps({"scenarios": [{"task": f"task {n}", "difficulty": n} for n in range(1, 5)]})
    if len(request["messages"]) == 2:
        return calls(make_tool_call("find_papers", "{}", "c1"))
    return calls(make_tool_call("complete_task", '{"summary": "all found", "success": true}', "c2"))


def test_agent_on_the_tools_of_an_mcp_server(run_script: RunScript, tmp_path: Path) -> None:
    with serving_in_thread(ScriptedOpenAI(answer_to=play_task_maker_or_agent)) as server:
        facts = run_script("mcp_agent.py", server.base_url)
    assert facts == {
        "sizes": [3, 1],
        "rewards": [1.0] * 3,
        "completed": [True] * 3,
        "logs": ["all found"],
        "roles": ["system", "user", "assistant", "tool", "assistant"],
        "tools": ["find_papers", "complete_task"],
    }
    output = (tmp_path / "output.log").read_text()
    assert "[1/5] task 1" in output
    assert "difficulty 4/5:    1 (25%)" in output
    assert "generator-key" not in output
