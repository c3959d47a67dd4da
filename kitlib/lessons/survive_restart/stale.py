"""A checkpoint of which one file is from the step before: the sizes are right, and nothing complains."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kitlib.lessons.answers import Answer, mistakes, open_answer, right, unanswered
from kitlib.lessons.reading import name_of

FILES = ("data.pt", "actor/optimizer.pt", "actor/extra_rank_0.pt")


@dataclass
class StaleFile:
    """One file of `folder` is a copy from another checkpoint."""

    folder: Path = field(repr=False)
    name: str = field(repr=False)
    original: bytes = field(repr=False)

    def reveal(self) -> str:
        """What was done, in one sentence."""
        return f"{self.name} is from the step before"

    def mend(self) -> None:
        """Put the right file back."""
        (self.folder / self.name).write_bytes(self.original)

    def check(self, name: Any) -> Answer:
        """Is this the file? A path in the folder, or the last part of it."""
        if unanswered(name):
            return open_answer()
        known = sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())
        said = Path(name_of(name))
        meant = [path for path in known if self.folder / path == self.folder / said or said.name == Path(path).name]
        if not meant:
            return mistakes([f"there is no file {name_of(name)!r} here; there are {', '.join(known)}"])
        if self.name in meant:
            return right(self.reveal())
        if meant[0] in FILES:
            return mistakes([f"{meant[0]} is of the right step: its counter agrees with the name of the folder"])
        return mistakes([f"{meant[0]} was not touched: look at the counters in {', '.join(FILES)}"])


def mix_checkpoint(folder: Path, before: Path, seed: int = 0) -> StaleFile:
    """Replace one file of the checkpoint `folder` by the same file of the checkpoint `before`."""
    name = random.Random(seed).choice(FILES)
    stale = StaleFile(folder, name, (folder / name).read_bytes())
    shutil.copyfile(before / name, folder / name)
    return stale
