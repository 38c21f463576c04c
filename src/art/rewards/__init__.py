"""Rewards that need no labels: a language model compares the rollouts of a group (RULER)."""

from art.rewards.ruler import ruler, ruler_score_group

__all__ = ["ruler", "ruler_score_group"]
