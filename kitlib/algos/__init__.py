"""The arithmetic of RL on tokens: pure functions of tensors, torch and nothing else.

    advantage.py     registry of estimators, GRPO, sessions with several outputs
    advantage_outcome.py   estimators with one reward a row
    advantage_token.py     estimators with an advantage for every token: GAE, REINFORCE++, ReMax
    advantage_baseline.py  the optimal token baseline
    policy_loss.py   registry of losses, PPO's clipped loss
    aggregation.py   from a loss a token to one number
    kl.py            KL estimates, controllers, KL in the reward
    masked.py        sums, means, variances under a mask
    groups.py        statistics over the answers to one prompt

Tensors are padded: [num_rows, j1], j1 the longest response of the batch; `response_mask` is 1 on the tokens that the
policy generated.
"""

from kitlib.algos import advantage_baseline, advantage_outcome, advantage_token  # noqa: F401  they register themselves
from kitlib.algos.advantage import (
    compute_advantage,
    compute_advantage_for_multi_trajectories,
    compute_grpo_outcome_advantage,
    get_adv_estimator_fn,
    register_adv_est,
)
from kitlib.algos.aggregation import agg_loss
from kitlib.algos.errors import AlgoError
from kitlib.algos.kl import apply_kl_penalty, get_kl_controller, kl_penalty
from kitlib.algos.policy_loss import (
    LossConfig,
    compute_policy_loss_vanilla,
    get_policy_loss_fn,
    register_policy_loss,
)

__all__ = [
    "AlgoError",
    "LossConfig",
    "agg_loss",
    "apply_kl_penalty",
    "compute_advantage",
    "compute_advantage_for_multi_trajectories",
    "compute_grpo_outcome_advantage",
    "compute_policy_loss_vanilla",
    "get_adv_estimator_fn",
    "get_kl_controller",
    "get_policy_loss_fn",
    "kl_penalty",
    "register_adv_est",
    "register_policy_loss",
]
