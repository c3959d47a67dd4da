"""Mutations under which 01_open_the_queue must fail."""

from __future__ import annotations


def a_get_delivers_fields_that_some_rows_lack() -> None:
    """A column comes back if any requested row has it."""
    import numpy as np

    from kitlib.transfer_queue.controller import Controller

    Controller.ready_fields = lambda self, indexes: sorted(
        name for name, column in self.columns.items() if np.any(self.codes[indexes, column] > 0)
    )


def a_tag_put_replaces_the_tag() -> None:
    """A put with a tag forgets the tag that was there."""
    from kitlib.transfer_queue.controller import Controller

    Controller.merge_tags = lambda self, partition_id, keys, tags: self.partitions[partition_id].tags.update(
        zip(keys, map(dict, tags), strict=True)
    )
