"""The phase that a recorded run is in, and since when no row has come: what tells a stall that is not the queue's.

verl 0.9.1 has no counterpart. The log of a recording has a mark where a stage begins and where it ends; a stage that
has begun and not ended is the phase at the last picture.
"""

from __future__ import annotations

from typing import Any

from kitlib.inspector.recording import Recording
from kitlib.keys import is_trajectory_key

# Phases that hold the generation up although no row of theirs is awaited. In colocate_async generation pauses while
# the actor trains, which is no fault.
HOLDING = ("update_weights", "save_checkpoint")


def phase_of(recording: Recording) -> dict[str, Any]:
    """trainer_phase, seconds_in_phase and seconds_since_last_row at the last moment; {} outside of such a phase."""
    if not recording.moments:
        return {}
    now = recording.last.at
    begun = {record.stage: record for record in recording.stage_records if record.started <= now}
    open_ones = [record for record in begun.values() if record.seconds is None and record.stage in HOLDING]
    if not open_ones:
        return {}
    rows = [e.started_at for e in recording.events() if e.is_put and any(is_trajectory_key(key) for key in e.keys)]
    last = max((at for at in rows if at <= now), default=open_ones[-1].started)
    return {
        "trainer_phase": open_ones[-1].stage,
        "seconds_in_phase": now - open_ones[-1].started,
        "seconds_since_last_row": now - last,
    }
