"""The arithmetic of RL on tokens: pure functions of tensors, torch and nothing else.

    advantage.py               registry of estimators, GRPO, sessions with several outputs
    advantage_outcome.py       one reward a row: RLOO, OPO, GPG, GDPO, pass@k, REINFORCE++ with baseline
    advantage_token.py         an advantage for every token: GAE, REINFORCE++, ReMax
    advantage_baseline.py      the optimal token baseline
    policy_loss.py             registry of losses, PPO's clipped loss
    policy_loss_ratio.py       GSPO, SAPO, CISPO, geometric mean, divergence PPO
    policy_loss_covariance.py  Clip-Cov, KL-Cov
    policy_loss_reinforce.py   GPG, DRO, REINFORCE, bypass mode
    value_loss.py              the critic's clipped loss
    aggregation.py             from a loss a token to one number
    kl.py                      KL estimates, controllers, KL in the reward
    rollout_correction.py      importance weights and rejection for a sampler that is not quite the policy
    pf_ppo.py                  drawing rows by reward
    masked.py, groups.py       sums and means under a mask, over the answers to one prompt

Tensors are padded: [num_rows, j1], j1 the longest response of the batch; `response_mask` is 1 on the tokens that the
policy generated.
"""

from kitlib.algos import (  # noqa: F401  they register themselves  # noqa: F401
    advantage_baseline,
    advantage_outcome,
    advantage_token,
    policy_loss_covariance,
    policy_loss_ratio,
    policy_loss_reinforce,
)
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
from kitlib.algos.rollout_correction import RolloutCorrection, correct_rollout
from kitlib.algos.value_loss import compute_value_loss

__all__ = [
    "AlgoError",
    "LossConfig",
    "RolloutCorrection",
    "agg_loss",
    "apply_kl_penalty",
    "compute_advantage",
    "compute_advantage_for_multi_trajectories",
    "compute_grpo_outcome_advantage",
    "compute_policy_loss_vanilla",
    "compute_value_loss",
    "correct_rollout",
    "get_adv_estimator_fn",
    "get_kl_controller",
    "get_policy_loss_fn",
    "kl_penalty",
    "register_adv_est",
    "register_policy_loss",
]
