"""V0, the serial pipeline: the same work as V1 with one DataProto that goes from stage to stage.

protocol.py     DataProto: the batch
columns.py      object columns, equality, merging
padding.py      left and right padding, and out of it again
feeding.py      prompts into a batch
agent_loop.py   the sessions of V1, gathered into a batch
stages.py       generate_sequences, compute_reward, compute_log_prob, compute_advantage, update_actor
reporting.py    validation, metrics, dumps
trainer.py      PPOTrainerV0: the loop; start here

PPOTrainerV0 runs with `trainer.use_v1=false`.
"""

from __future__ import annotations

from kitlib.trainer.v0.agent_loop import AgentLoopManager, AgentLoopWorker
from kitlib.trainer.v0.errors import DataProtoError, SerialPipelineError
from kitlib.trainer.v0.protocol import DataProto, DataProtoItem, pad_dataproto_to_divisor, unpad_dataproto
from kitlib.trainer.v0.trainer import PPOTrainerV0

__all__ = [
    "AgentLoopManager",
    "AgentLoopWorker",
    "DataProto",
    "DataProtoError",
    "DataProtoItem",
    "PPOTrainerV0",
    "SerialPipelineError",
    "pad_dataproto_to_divisor",
    "unpad_dataproto",
]
