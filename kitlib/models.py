"""Tokenizer, causal language model and model config from a path: the shipped tiny ones or any Hugging Face directory.

verl 0.9.1: utils/tokenizer.py (hf_tokenizer, set_pad_token_id) and workers/engine/fsdp/transformer_impl.py (loading).
Left out: remote file systems, processors of multimodal models, LoRA adapters, code that comes with a model
(trust_remote_code) and weights that are initialised on the meta device.

A path that is a folder is read with `local_files_only`: no hub is asked, even with a network. A string of the form
`owner/name` is a hub id if there is no folder `owner` here, and goes to transformers, which takes it from its cache or
the network. Anything else that does not exist is a ModelError here; transformers would report a failed download.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kitlib.errors import KitError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model")
_CONFIG_KEY = "actor_rollout_ref.model.path"


class ModelError(KitError):
    """A model or tokenizer that cannot be loaded from the path that was given."""


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer at `path`. Without a padding token it gets the end-of-sequence token as one, as in verl.

    Raises ModelError if nothing can be loaded, or if there is neither a padding nor an end-of-sequence token.
    """
    from transformers import AutoTokenizer

    source = _source(path)
    # Without this check transformers makes an empty tokenizer of the model's kind and says nothing.
    if _is_local(path) and not any(any(Path(source).glob(pattern)) for pattern in _TOKENIZER_FILES):
        raise ModelError(f"{str(path)!r} holds no tokenizer; save one there with tokenizer.save_pretrained")
    with _explained(path, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=_is_local(path))
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            raise ModelError(
                f"the tokenizer of {str(path)!r} has neither a padding token nor an end-of-sequence token; "
                "set pad_token or eos_token in its tokenizer_config.json"
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model_config(path: str | Path) -> PretrainedConfig:
    """The config of the model at `path`: its architecture, no weights. Raises ModelError."""
    from transformers import AutoConfig

    with _explained(path, "model config"):
        return AutoConfig.from_pretrained(_source(path), local_files_only=_is_local(path))


def load_causal_lm(path: str | Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The causal language model at `path` with its weights as `dtype`, on the CPU, in evaluation mode.

    Raises ModelError, also if the checkpoint lacks weights of the architecture: transformers would make them random.
    """
    from transformers import AutoModelForCausalLM

    with _explained(path, "causal language model"), no_progress_bars():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            _source(path), dtype=dtype, local_files_only=_is_local(path), output_loading_info=True
        )
    model, info = loaded
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"the checkpoint at {str(path)!r} lacks {len(missing)} weights of {type(model).__name__}, "
            f"among them {missing[0]}; they would start as random numbers"
        )
    return model


def _is_local(path: str | Path) -> bool:
    return Path(path).expanduser().is_dir()


def _source(path: str | Path) -> str:
    """What transformers is given: the folder, or a hub id. Raises ModelError for a path that is neither."""
    folder = Path(path).expanduser()
    if not folder.exists():
        if isinstance(path, str) and _HUB_ID.fullmatch(path) and not folder.parent.exists():
            return path
        raise ModelError(f"there is no model folder {str(path)!r}; {_CONFIG_KEY} names the one to load")
    if not folder.is_dir():
        raise ModelError(f"{str(path)!r} is a file; {_CONFIG_KEY} must name the folder that holds config.json")
    if not (folder / "config.json").is_file():
        found = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "nothing"
        raise ModelError(
            f"{str(path)!r} is not a model folder: it has no config.json (it holds {found}); "
            f"{_CONFIG_KEY} must name a folder written by save_pretrained"
        )
    return str(folder)


@contextmanager
def _explained(path: str | Path, what: str) -> Iterator[None]:
    """Turns what transformers raises for an unusable path into one ModelError that names the path."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        where = "the folder" if _is_local(path) else "the Hugging Face hub (there is no such folder here)"
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"no {what} could be loaded from {where} {str(path)!r}: {first_line}") from error


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """The bar of a load or a save of transformers would cut through the progress display of the run."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()
