"""The stages of the serial pipeline that run a model over the batch without changing it.

verl 0.9.1: trainer/ppo/ray_trainer.py, RayPPOTrainer._compute_old_log_prob, _compute_ref_log_prob and
_compute_values. Each takes the padding out of the batch, calls a worker, pads what comes back, and returns it as a
DataProto to be joined.
"""

from __future__ import annotations

from torch import Tensor

from kitlib.algos import agg_loss
from kitlib.trainer.metrics import rollout_probs_diff
from kitlib.trainer.v0.driver import SerialDriver
from kitlib.trainer.v0.padding import no_padding_2_padding
from kitlib.trainer.v0.protocol import DataProto
from kitlib.trainer.v0.recording import recorded
from kitlib.workers.actor import ActorRolloutRefWorker
from kitlib.workers.critic import CriticWorker
from kitlib.workers.reference import ReferenceWorker


class SerialScoring(SerialDriver):
    """Log-probs and values of what was sampled."""

    worker: ActorRolloutRefWorker
    reference: ReferenceWorker | ActorRolloutRefWorker | None  # with LoRA, the actor without its adapter
    critic: CriticWorker | None

    @recorded("old_log_prob")
    def compute_log_prob(self, batch: DataProto) -> DataProto:
        """`old_log_probs` [response_length]: each response token under the policy before this update.

        With rollout_correction.bypass_mode `old_log_probs` are the rollout's and no model runs. Metrics:
        actor/entropy, training/rollout_probs_diff_*. verl returns the entropy, too, and `fit` drops it before the join.
        """
        if self.config.algorithm.rollout_correction.bypass_mode:
            return DataProto.from_dict({"old_log_probs": self._column(batch, "rollout_log_probs")})
        output = self.worker.compute_log_prob(self._for_worker(batch, calculate_entropy=True, compute_loss=False))
        old_log_probs, entropy = (no_padding_2_padding(output[name], batch) for name in ("log_probs", "entropy"))
        self._log_prob_metrics(batch, old_log_probs, entropy)
        return DataProto.from_dict({"old_log_probs": old_log_probs})

    def _log_prob_metrics(self, batch: DataProto, old_log_probs: Tensor, entropy: Tensor) -> None:
        actor, mask = self.config.actor_rollout_ref.actor, self._column(batch, "response_mask")
        mean = agg_loss(entropy, mask, actor.loss_agg_mode, loss_scale_factor=actor.loss_scale_factor)
        self.metrics["actor/entropy"] = mean.item()
        assert batch.batch is not None
        if "rollout_log_probs" in batch.batch:
            self.metrics |= rollout_probs_diff(batch.batch["rollout_log_probs"], old_log_probs, mask)

    @recorded("ref")
    def compute_ref_log_prob(self, batch: DataProto) -> DataProto:
        """`ref_log_prob` [response_length]: each response token under the frozen reference policy.

        Runs when `actor.use_kl_loss` or `algorithm.use_kl_in_reward` is on.
        """
        assert self.reference is not None, "no reference policy: the config asks for no KL"
        output = self.reference.compute_ref_log_prob(self._for_worker(batch, compute_loss=False))
        return DataProto.from_dict({"ref_log_prob": no_padding_2_padding(output["log_probs"], batch)})

    @recorded("values")
    def compute_values(self, batch: DataProto) -> DataProto:
        """`values` [response_length]: what the critic expects before each response token. Runs with a critic."""
        assert self.critic is not None, "no critic: the config asks for none"
        output = self.critic.compute_values(self._for_worker(batch, compute_loss=False))
        return DataProto.from_dict({"values": no_padding_2_padding(output["values"], batch)})
