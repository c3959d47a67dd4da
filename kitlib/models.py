"""Tokenizer, models and model config from a path: the shipped tiny ones or any Hugging Face directory.

verl 0.9.1: utils/tokenizer/tokenizer.py (hf_tokenizer, set_pad_token_id), workers/engine/fsdp/transformer_impl.py
(loading) and utils/model.py (load_valuehead_model). Left out: remote file systems, processors of multimodal models,
LoRA adapters, code that comes with a model (trust_remote_code) and weights that are initialised on the meta device.

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


def load_value_model(path: str | Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The trunk of the language model at `path` under a head of width 1 (a token classifier with one label), for the
    critic: on the CPU, without dropout.

    The head comes from the checkpoint if it has one of that width, else it starts as random numbers. Raises ModelError,
    also for trunk weights that the checkpoint lacks.
    """
    return _load_with_head("AutoModelForTokenClassification", path, dtype, "critic.model.path")


def load_reward_model(path: str | Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The sequence classifier with one label at `path`, on the CPU, in evaluation mode. Its head must be in the
    checkpoint. Raises ModelError."""
    key = "reward.reward_model.model_path"
    return _load_with_head("AutoModelForSequenceClassification", path, dtype, key, needs_head=True)


def _load_with_head(
    auto_class: str, path: str | Path, dtype: torch.dtype, config_key: str, needs_head: bool = False
) -> PreTrainedModel:
    import transformers

    with _explained(path, f"{auto_class.removeprefix('AutoModelFor')} model"), no_progress_bars(), _errors_only():
        config = transformers.AutoConfig.from_pretrained(_source(path, config_key), local_files_only=_is_local(path))
        config.num_labels, config.classifier_dropout = 1, 0.0
        loaded: Any = getattr(transformers, auto_class).from_pretrained(
            _source(path, config_key),
            config=config,
            dtype=dtype,
            local_files_only=_is_local(path),
            output_loading_info=True,
        )
    model, info = loaded
    trunk = f"{model.base_model_prefix}."
    missing = [name for name in sorted(info["missing_keys"]) if needs_head or name.startswith(trunk)]
    if missing:
        raise ModelError(
            f"the checkpoint at {str(path)!r} ({config_key}) lacks {len(missing)} weights of {type(model).__name__}, "
            f"among them {missing[0]}; they would start as random numbers"
        )
    return model


def _is_local(path: str | Path) -> bool:
    return Path(path).expanduser().is_dir()


def _source(path: str | Path, config_key: str = _CONFIG_KEY) -> str:
    """What transformers is given: the folder, or a hub id. Raises ModelError for a path that is neither."""
    folder = Path(path).expanduser()
    if not folder.exists():
        if isinstance(path, str) and _HUB_ID.fullmatch(path) and not folder.parent.exists():
            return path
        raise ModelError(f"there is no model folder {str(path)!r}; {config_key} names the one to load")
    if not folder.is_dir():
        raise ModelError(f"{str(path)!r} is a file; {config_key} must name the folder that holds config.json")
    if not (folder / "config.json").is_file():
        found = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "nothing"
        raise ModelError(
            f"{str(path)!r} is not a model folder: it has no config.json (it holds {found}); "
            f"{config_key} must name a folder written by save_pretrained"
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


@contextmanager
def _errors_only() -> Iterator[None]:
    """transformers reports weights of a language model that a classifier has no use for, and a head that is new: both
    are meant here."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
