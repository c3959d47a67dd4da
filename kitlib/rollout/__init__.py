"""Rollout: servers that turn prompts into tokens, the clients that spread requests over them, and the weight sync.

verl 0.9.1: workers/rollout/ and checkpoint_engine/. TransformersServer is loaded on first use, because it imports
transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kitlib.rollout.balancer import GlobalRequestLoadBalancer
from kitlib.rollout.checkpoint_engine import CheckpointEngineManager
from kitlib.rollout.client import FullyAsyncLLMServerClient, LLMServerClient
from kitlib.rollout.manager import LLMServerManager
from kitlib.rollout.protocol import LLMServer, RolloutError, ServerClosedError, StopReason, TokenOutput
from kitlib.rollout.sampling import SamplingParams

if TYPE_CHECKING:
    from kitlib.rollout.transformers_server import TransformersServer

__all__ = [
    "CheckpointEngineManager",
    "FullyAsyncLLMServerClient",
    "GlobalRequestLoadBalancer",
    "LLMServer",
    "LLMServerClient",
    "LLMServerManager",
    "RolloutError",
    "SamplingParams",
    "ServerClosedError",
    "StopReason",
    "TokenOutput",
    "TransformersServer",
]


def __getattr__(name: str) -> Any:
    if name == "TransformersServer":
        from kitlib.rollout.transformers_server import TransformersServer

        return TransformersServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
