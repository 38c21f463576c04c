import pickle

import pytest

from art.dev import model


@pytest.mark.parametrize(
    ("member", "value"),
    [
        (model.OptimizerNames.ADAMW_BNB, "adamw_bnb_8bit"),
        (model.OptimizerNames.LION, "lion_32bit"),
        (model.SchedulerType.REDUCE_ON_PLATEAU, "reduce_lr_on_plateau"),
        (model.IntervalStrategy.NO, "no"),
        (model.HubStrategy.EVERY_SAVE, "every_save"),
        (model.FSDPOption.HYBRID_SHARD_ZERO2, "hybrid_shard_zero2"),
        (model.DebugOption.UNDERFLOW_OVERFLOW, "underflow_overflow"),
    ],
)
def test_member_is_its_value(member, value):
    assert member == value
    assert type(member)(value) is member
    assert pickle.loads(pickle.dumps(member)) is member


def test_save_strategy_is_the_interval_strategy():
    assert model.SaveStrategy is model.IntervalStrategy
