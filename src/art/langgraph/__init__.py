"""Train agents that are built with LangGraph.

`wrap_rollout` makes a trajectory of what the agent's model was asked and answered; `init_chat_model` gives the agent
that model. LangChain is imported when a chat model is made, not before; it comes with the extra `langgraph`.
"""

from art.langgraph.llm_wrapper import init_chat_model, wrap_rollout

__all__ = ["init_chat_model", "wrap_rollout"]
