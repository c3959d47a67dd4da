"""Mutations under which 07_score_the_tokens must fail."""

from __future__ import annotations


def the_response_is_cut_one_position_too_late() -> None:
    """Each token gets the score of the next one."""
    import kitlib.workers.padding as padding
    from kitlib.transfer_queue import jagged, lengths

    padding.response_from_nested = lambda tensor, mask: jagged(
        [row[len(row) - num :] for row, num in zip(tensor.unbind(), lengths(mask).tolist(), strict=True)]
    )


def rows_go_to_ranks_as_they_came() -> None:
    """Nothing is balanced."""
    import kitlib.workers.balance as balance

    balance.get_seqlen_balanced_partitions = lambda workload, k_partitions, equal_size: [
        list(range(len(workload)))[rank * len(workload) // k_partitions : (rank + 1) * len(workload) // k_partitions]
        for rank in range(k_partitions)
    ]


def the_actor_scores_at_temperature_one() -> None:
    """The temperature of the settings does not reach the worker."""
    from kitlib.workers.worker import Worker

    original = Worker.score
    Worker.score = lambda self, rows, pieces, temperature, *more, **named: original(
        self, rows, pieces, 1.0, *more, **named
    )


def metrics_count_padding_rows() -> None:
    """The tag is_padding is not looked at."""
    from kitlib.trainer.stages import PPOStages
    from kitlib.transfer_queue import KVBatchMeta

    original = PPOStages.compute_metrics

    def of_all_rows(self, batch):
        tags = [{name: value for name, value in tag.items() if name != "is_padding"} for tag in batch.tags]
        return original(self, KVBatchMeta(batch.keys, tags, batch.partition_id))

    PPOStages.compute_metrics = of_all_rows
