"""Views of a queue: what sits there, is it enough for the next stage, which groups teach something.

A view is a function of a snapshot (and a config, and the event log); it comes back as a `View`, which a notebook shows
as HTML, a terminal as text and `print` as plain text, all from one model.

    the queue     presence       keys x fields: is it enough for the next stage?
                  batch_handle   what do I hold, and what does the queue hold?
                  partitions     train and val side by side
                  diff           what did this stage change?
                  staleness      how old is what waits and what is there?
    the data      group_board    which groups teach something?
                  tokens         which tokens are trained, and how hard?
    the history   key_life       every write, read, tag change and clear of one key
                  provenance     who wrote a field, when, over what?
                  byte_ledger    which bytes moved, and what a batch with everything would have moved
    the plan      stage_card     one stage: called by, reads, writes, switches; and what it really read and wrote
                  stage_table    one step: which field appears after which stage?
                  config_table   every setting, where it came from, which branches it switches
                  row_to_rank    which key went to which rank, mini-batch and micro-batch?
                  shard_map      where does each parameter lie?
                  why_waiting    what does sample() wait for, and will it end?
    the run       time_line      who was busy when? (save_chrome_trace: the same for ui.perfetto.dev)

`kitlib.inspector.widgets` has the live grid for notebooks (Inspector), which needs the extra `notebooks`.
`record` writes all of this to a folder while a run goes on, `open_recording` gives it back without the run: its
`timeline()` and `waiting_at(moment)` are what time_line and why_waiting take.

Reading order: `view`, `render` (the model and its two writers), `selection`, `judgement`, then one `*_view` after
another; `history` for those that read events; `recorder`, `recording`, `terminal`.
"""

from kitlib.inspector.batch_handle_view import batch_handle
from kitlib.inspector.byte_ledger_view import byte_ledger
from kitlib.inspector.config_view import config_table
from kitlib.inspector.cuts import Cut, UnevenBatchError
from kitlib.inspector.diff_view import diff
from kitlib.inspector.group_board_view import group_board
from kitlib.inspector.history import NoEventsError
from kitlib.inspector.judgement import UnknownStageError
from kitlib.inspector.key_life_view import key_life
from kitlib.inspector.partitions_view import partitions
from kitlib.inspector.presence_view import presence
from kitlib.inspector.provenance_view import provenance
from kitlib.inspector.recorder import Recorder, record
from kitlib.inspector.recording import Moment, Recording, open_recording
from kitlib.inspector.recording_files import RecordingError
from kitlib.inspector.row_to_rank_view import row_to_rank
from kitlib.inspector.selection import NoSuchPartitionError
from kitlib.inspector.shard_map_view import ShardMapError, shard_map
from kitlib.inspector.stage_card_view import stage_card
from kitlib.inspector.stage_table_view import stage_table
from kitlib.inspector.staleness_view import staleness
from kitlib.inspector.timeline import EmptyTimelineError, Span, Timeline
from kitlib.inspector.timeline_view import time_line
from kitlib.inspector.tokens_view import tokens
from kitlib.inspector.trace_export import chrome_trace, save_chrome_trace
from kitlib.inspector.trajectory import NoTokensError
from kitlib.inspector.view import View, ViewTooLargeError
from kitlib.inspector.why_waiting_view import why_waiting

__all__ = [
    "Cut",
    "EmptyTimelineError",
    "NoEventsError",
    "NoSuchPartitionError",
    "Moment",
    "NoTokensError",
    "Recorder",
    "Recording",
    "RecordingError",
    "ShardMapError",
    "Span",
    "Timeline",
    "UnevenBatchError",
    "UnknownStageError",
    "View",
    "ViewTooLargeError",
    "batch_handle",
    "byte_ledger",
    "chrome_trace",
    "config_table",
    "diff",
    "group_board",
    "key_life",
    "open_recording",
    "partitions",
    "presence",
    "provenance",
    "record",
    "row_to_rank",
    "save_chrome_trace",
    "shard_map",
    "stage_card",
    "stage_table",
    "staleness",
    "time_line",
    "tokens",
    "why_waiting",
]
