"""A LangGraph agent whose rollouts a judge scores, with a chart at the end. `langgraph_agent.py URL`."""

import asyncio
import json
import sys
from pathlib import Path

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.prebuilt import create_react_agent

import art
from art.langgraph import init_chat_model, wrap_rollout
from art.rewards import ruler_score_group
from art.utils import iterate_dataset
from art.utils.benchmarking.charts import training_progress_chart
from art.utils.benchmarking.load_trajectories import load_trajectories

URL = sys.argv[1]
model = art.Model(
    name="prompted",
    project="scripts",
    inference_api_key="key",
    inference_base_url=URL,
    inference_model_name="served",
)


class EmailTrajectory(art.Trajectory):
    final_answer: str | None = None


async def rollout(model: art.Model, question: str) -> EmailTrajectory:
    trajectory = EmailTrajectory(reward=0.0, messages_and_choices=[], metadata={"question": question})

    @tool
    def search_inbox(keywords: list[str]) -> list[str]:
        """Search the inbox."""
        return [f"mail about {keyword}" for keyword in keywords]

    @tool
    def return_final_answer(answer: str) -> str:
        """Give the final answer."""
        trajectory.final_answer = answer
        return "thanks"

    chat_model = init_chat_model(model.get_inference_name(), temperature=1.0)
    agent = create_react_agent(chat_model, [search_inbox, return_final_answer])
    state = {"messages": [SystemMessage(content="You read mail."), HumanMessage(content=question)]}
    await agent.ainvoke(state, config={"configurable": {"thread_id": "1"}, "recursion_limit": 20})
    trajectory.metrics["answered"] = trajectory.final_answer is not None
    return trajectory


async def main() -> None:
    for batch in iterate_dataset(["Who wrote?", "When?"], groups_per_step=1, num_epochs=1, use_tqdm=False):
        groups = [
            art.TrajectoryGroup(wrap_rollout(model, rollout)(model, question) for _ in range(3))
            for question in batch.items
        ]
        judged = await art.gather_trajectory_groups(
            groups,
            pbar_desc="judged",
            max_exceptions=3,
            after_each=lambda group: ruler_score_group(
                group,
                "openai/judge",
                extra_litellm_params={"api_base": URL, "api_key": "judge-key"},
                swallow_exceptions=True,
            ),
        )
        await model.log(judged, split="val", step=batch.step)
    await model.openai_client().close()
    frame = await load_trajectories("scripts", art_path=".art")
    training_progress_chart(frame, "ruler_score", models=["prompted"], title="Judged").savefig("chart.png")
    trajectory = judged[0].trajectories[0]
    facts = {
        "rewards": frame["reward"].to_list(),
        "steps": frame["step"].to_list(),
        "answered": frame["metric_answered"].to_list(),
        "roles": [message["role"] for message in trajectory.messages()],
        "tools": [each["function"]["name"] for each in trajectory.tools or []],
        "answer": trajectory.final_answer,
        "histories": len(trajectory.additional_histories),
    }
    Path("facts.json").write_text(json.dumps(facts))


asyncio.run(main())
