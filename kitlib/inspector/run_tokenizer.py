"""The tokenizer of a run, found without the run: its settings name a model, and the model's folder has tokenizer.json.

verl 0.9.1 has no counterpart. The file is read by the `tokenizers` library alone: no model is built, no code of a model
runs, no hub is asked. A hub id counts if it lies in the cache of this machine. Whoever has a tokenizer of another kind
hands it to the view.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from kitlib.errors import KitError
from kitlib.inspector.recorded_config import RecordedConfig
from kitlib.inspector.recording_files import CONFIG
from kitlib.inspector.settings import setting

FILE = "tokenizer.json"
KEYS = ("actor_rollout_ref.model.tokenizer_path", "actor_rollout_ref.model.path")
TRAINED = "model"  # what a run of kitlib leaves beside its recording


class NoTokenizerError(KitError):
    """A path that holds no tokenizer.json, or one that cannot be read."""


class FileTokenizer:
    """A tokenizer.json with the two calls that the views make."""

    def __init__(self, file: Path) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing narrower
            raise NoTokenizerError(f"{file} is no tokenizer that can be read: {error}") from error

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text, markers such as `<tool_call>` kept."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids."""
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids


class Found(NamedTuple):
    """tokenizer: None if there is none. says: which one it is, or why there is none."""

    tokenizer: FileTokenizer | None
    says: str


@lru_cache(maxsize=4)  # a screen shows the same trajectory every second
def open_tokenizer(path: str | Path) -> FileTokenizer:
    """The tokenizer of a model folder (or of a model in the hub's cache). Raises NoTokenizerError."""
    folder = Path(path).expanduser()
    file = folder / FILE if folder.is_dir() else _cached(str(path))
    if file is None:
        raise NoTokenizerError(f"{str(path)!r} is no folder on this machine")
    if not file.is_file():
        raise NoTokenizerError(f"{str(path)!r} holds no {FILE}")
    return FileTokenizer(file)


def find_tokenizer(source: Any, config: Any = None) -> Found:
    """The tokenizer that a config, a recording or one moment of it names; of a recording also that of the trained
    model beside it. Raises nothing: without one, a view shows ids."""
    reasons = []
    for said, path in _named(source, config):
        try:
            return Found(open_tokenizer(path), f"text by the tokenizer of {path}")
        except NoTokenizerError as error:
            reasons.append(f"{said}: {error}")
    return Found(None, "; ".join(reasons) or "nothing names a model")


def _named(source: Any, config: Any) -> Iterator[tuple[str, str]]:
    folder = getattr(source, "folder", None)
    if config is None and folder is not None and (folder / CONFIG).is_file():
        config = RecordedConfig((folder / CONFIG).read_text(encoding="utf-8"))
    for key in KEYS:
        if path := setting(config, key):
            yield key, str(path)
    if folder is not None and (trained := folder.parent / TRAINED).is_dir():
        yield "the trained model", str(trained)


def _cached(name: str) -> Path | None:
    """tokenizer.json of `owner/name` in the hub's cache, None if it is not there or `name` is no such id."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, FILE)
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None
