"""How a reader is told to go on: with a call in a notebook, with a command in a shell.

verl 0.9.1 has no counterpart. `source` is what the commands name: the folder of a recording, or `--address auto`.
"""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kitlib.inspector.doctor.finding import Finding

# A finding's view -> the view of `kitlib inspect`. A handle is in nobody's shell: the life of its key is looked at.
COMMANDS = {
    "group_board": "groups",
    "staleness": "staleness",
    "tokens": "tokens",
    "partitions": "partitions",
    "batch_handle": "key",
}


@dataclass(frozen=True)
class WayOn:
    """source: None in Python."""

    source: str | None = None

    def setting(self, key: str) -> str:
        """To where a setting came from."""
        if self.source is None:
            return f'config_table(config, "{key}")'
        return f"`kitlib inspect {self.source} config --key {quote(key)}`"

    @property
    def findings(self) -> str:
        """To all findings of the doctor."""
        return "doctor()" if self.source is None else f"`kitlib doctor {self.source}`"

    @property
    def config(self) -> str:
        """To an answer that needs the settings."""
        return "pass config=" if self.source is None else "give --config FILE"

    @property
    def exception(self) -> str:
        """To an answer that needs the error."""
        return "pass error= or logs=" if self.source is None else "give --logs PATH"

    def look(self, finding: Finding, stage: str | None) -> str:
        """The command that shows a finding; source is not None."""
        view, key = COMMANDS.get(finding.view, "presence"), next(iter(finding.keys), None)
        words = ["kitlib inspect", str(self.source)]
        if view in ("tokens", "key") and key is not None:
            words += [view, "--key", quote(key)]
        elif view in ("tokens", "key", "presence"):
            words += ["presence", *(["--stage", stage] if stage else [])]
        else:
            words.append(view)
        return " ".join([*words, *(["--partition", quote(finding.partition)] if finding.partition else [])])
