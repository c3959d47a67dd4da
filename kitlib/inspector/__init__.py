"""Views of a queue: what sits there, is it enough for the next stage, which groups teach something.

A view is a function of a snapshot (and a config); it comes back as a `View`, which a notebook shows as HTML, a
terminal as text and `print` as plain text, all from one model.

    presence      keys x fields: is it enough for the next stage?       group_board   which groups teach something?
    batch_handle  what do I hold, what does the queue hold?             diff          what did this stage change?
    partitions    train and val side by side                            tokens        which tokens are trained, how
    hard? stage_card    one stage: called by, reads, writes, switches
    stage_table   one step: which field appears after which stage?

Reading order: `view`, `render` (the model and its two writers), `selection`, `judgement`, then one `*_view` after
another.
"""

from kitlib.inspector.batch_handle_view import batch_handle
from kitlib.inspector.diff_view import diff
from kitlib.inspector.group_board_view import group_board
from kitlib.inspector.judgement import UnknownStageError
from kitlib.inspector.partitions_view import partitions
from kitlib.inspector.presence_view import presence
from kitlib.inspector.selection import NoSuchPartitionError
from kitlib.inspector.stage_card_view import stage_card
from kitlib.inspector.stage_table_view import stage_table
from kitlib.inspector.tokens_view import tokens
from kitlib.inspector.trajectory import NoTokensError
from kitlib.inspector.view import View, ViewTooLargeError

__all__ = [
    "NoSuchPartitionError",
    "NoTokensError",
    "UnknownStageError",
    "View",
    "ViewTooLargeError",
    "batch_handle",
    "diff",
    "group_board",
    "partitions",
    "presence",
    "stage_card",
    "stage_table",
    "tokens",
]
