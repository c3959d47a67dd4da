"""Live widgets for notebooks: the presence grid of a queue or of a recording, while the run goes on.

    Inspector       canvas grid, partition tabs, filter, stage, group board, detail of a cell, time slider
    HtmlInspector   the same rows in pages of 50, for a front end that cannot load JavaScript of ours

Both show what `presence` and `group_board` show and judge by the same contract. They need the extra `notebooks`
(anywidget, ipywidgets), which is imported when a widget is made and never by `import kitlib`.

Reading order: `feed` (where pictures come from), `grid` (what the browser holds, and what changed), `wire` (the bytes
of a change), `shown` (the picture of now), `palette` (how a cell is judged and drawn), `desk` and `requests` (the two
halves of the conversation with the browser), `watcher` (the thread), `inspector`; then `static/*.js` in the order of
`assets.SCRIPTS`.
"""

from kitlib.inspector.widgets.html_inspector import HtmlInspector
from kitlib.inspector.widgets.inspector import Inspector
from kitlib.inspector.widgets.need import EmptyRecordingError, NotebookExtraError

__all__ = ["EmptyRecordingError", "HtmlInspector", "Inspector", "NotebookExtraError"]
