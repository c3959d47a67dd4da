"""A row whose rollout log-probs are right and belong to other tokens: each is moved some places along the response.

The bug behind it is a common one: a server reports a number for the first token or it does not, an agent loop drops
one at a turn, and from there on every number stands beside the wrong token. Shapes are right, and nothing raises.
"""

from __future__ import annotations

import random
from typing import Any

from kitlib.lessons.faults.fault import Fault, FaultError, save
from kitlib.lessons.faults.fields import rows_of
from kitlib.lessons.faults.judges import one_key
from kitlib.lessons.reading import number_of
from kitlib.transfer_queue import KVBatchMeta, QueueProtocol
from kitlib.workers.bridge import partition_of

MIN_TOKENS = 8  # of the response: long enough to see that numbers have moved


def shift_log_probs(tq: QueueProtocol, batch: KVBatchMeta, seed: int = 0) -> Fault:
    """The rollout_log_probs of one row move one or two places to the right. To find: key, places.

    The numbers that fall off at the end come back at the beginning. Padding rows are left alone; FaultError if no
    response has MIN_TOKENS tokens.
    """
    home, chance = partition_of(batch), random.Random(seed)
    rows = {key: row for key, row in rows_of(tq, batch, "rollout_log_probs").items() if len(row) >= MIN_TOKENS}
    if not rows:
        raise FaultError(f"no response of the batch has {MIN_TOKENS} tokens")
    key, places = chance.choice(sorted(rows)), chance.choice((1, 2))
    saved = save(tq, home, [key])
    tq.kv_put(key=key, partition_id=home, fields={"rollout_log_probs": rows[key].roll(places)})
    judges = {"key": one_key(tq, key, "server and trainer agree on its tokens"), "places": _places(places)}
    says = f"the rollout_log_probs of {key} stand {places} place{'s' * (places > 1)} too far right"
    return Fault(tq, says, None, {"key": key, "places": places}, judges, saved)


def _places(truth: int) -> Any:
    def judge(said: Any) -> list[str]:
        number = number_of(said)
        if number == truth:
            return []
        if number == -truth:
            return ["the other way round: give the number of places to the right, as a positive number"]
        if number == 0:
            return ["0 places would be no fault"]
        return [f"not {said!r}: for which number of places does rollout[places:] equal old[:-places]?"]

    return judge
