"""Model, optimizer and scheduler behind one object: see fsdp.py."""

from kitlib.workers.engine.fsdp import FSDPEngine

__all__ = ["FSDPEngine"]
