"""What the reader asks for: messages from the views, on the control comm.

    hello, bye, resync                     a view opens, closes, missed a number
    partition, stage, follow, moment       show something else, in every view
    panel                                  a panel is opened in place of another
    detail                                 a cell was clicked, or its values are wanted

Two comms, because ipykernel hands a click to the thread that sent last on its comm: pushing on the control comm would
make clicks wait for the cell that is running. Only `hello` and `detail` are answered on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kitlib.contract import STAGES
from kitlib.inspector.run_tokenizer import find_tokenizer
from kitlib.inspector.widgets.desk import Desk, Message
from kitlib.inspector.widgets.detail import TOKEN_FIELDS, describe, read_value


class Requests:
    """Does what the views of one widget ask for. views: those that are open."""

    def __init__(self, desk: Desk, tokenizer: Any = None) -> None:
        self._desk, self._tokenizer = desk, tokenizer
        self.views: set[str] = set()

    def handle(self, message: Message) -> None:
        """Do what a view asks for. A message that is no request of ours is passed over."""
        handler: Callable[[Message], None] | None = getattr(self, f"_on_{message.get('kind')}", None)
        if handler is not None:
            with self._desk.lock:
                handler(message)

    def _on_hello(self, message: Message) -> None:
        self.views.add(message["view"])
        self._desk.outlet.reply({"kind": "hello", "view": message["view"]})
        if message["seq"] != self._desk.number:
            self._desk.open()

    def _on_bye(self, message: Message) -> None:
        self.views.discard(message["view"])
        self._desk.panels.forget(message["view"])

    def _on_resync(self, message: Message) -> None:
        self._desk.open()

    def _on_partition(self, message: Message) -> None:
        self._desk.show_partition(message["id"])

    def _on_stage(self, message: Message) -> None:
        self._desk.show_stage(message["name"] if message["name"] in STAGES else None)

    def _on_follow(self, message: Message) -> None:
        self._desk.follow() if message["on"] else self._desk.freeze()

    def _on_moment(self, message: Message) -> None:
        if 0 <= message["at"] < len(self._desk.feed.moments):
            self._desk.show_moment(message["at"])

    def _on_panel(self, message: Message) -> None:
        self._desk.panels.choose(message["view"], message["name"])
        self._desk.push_panels()

    def _on_detail(self, message: Message) -> None:
        shown, field = self._desk.shown, message["field"]
        key = shown.grid.key_of(message["row"])
        if key is None:
            facts = [("gone", "the row is no longer in the queue")]
        elif message["values"]:
            facts = read_value(shown.source, shown.partition_id, key, field, self._tokenizer_of(field))
        else:
            facts = describe(self._desk.feed, shown.row(key), shown.taken_at, key, field)
        answer = {name: message[name] for name in ("kind", "view", "row", "field", "values")}
        self._desk.outlet.reply({**answer, "facts": facts})

    def _tokenizer_of(self, field: str) -> Any:
        """The one that was handed in, or that of the run's model; only for a field that holds tokens."""
        if self._tokenizer is not None or field not in TOKEN_FIELDS:
            return self._tokenizer
        return find_tokenizer(self._desk.shown.source, self._desk.config).tokenizer
