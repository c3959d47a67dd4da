"""LoRA: small matrices beside the linear layers are trained, the model itself stays as it was.

verl 0.9.1: workers/engine/fsdp/transformer_impl.py (_build_lora_module, disable_adapter, the merged weights of
get_per_tensor_param) and utils/fsdp_utils.py. Source: "LoRA: Low-Rank Adaptation of Large Language Models"
(arXiv:2106.09685), equation 3.

    y = W x + s B A x        W [out, in] frozen;  A [rank, in], B [out, rank] trained, B = 0 at first
                             s = lora_alpha / rank

    reference        the same model with s = 0: no second copy                    without_adapter
    weight sync      W + s B A under the model's own names: servers know no LoRA  merged_weights
    checkpoint       everything in model.safetensors; A and B again in lora_adapter/, as peft reads it
    model/           merged, a plain model

The layers are those of peft, put into the model itself (peft's wrapper would change its class and every name).
Differs: always merged for the servers, where verl can also hand the adapter to vLLM. Left out: adapters on the critic,
layers other than linear ones, DoRA.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from kitlib.workers.errors import CheckpointError, WorkerError
from kitlib.workers.state_files import write_weights

ADAPTER = "default"
FOLDER, WEIGHTS = "lora_adapter", "adapter_model.safetensors"  # of a checkpoint, as peft names its file
PREFIX = "base_model.model."  # of the names in a file of peft


def uses_lora(model_settings: Any) -> bool:
    """Whether `actor_rollout_ref.model` asks for an adapter; the reference is then the actor without it."""
    return model_settings.lora_rank > 0 or model_settings.lora_adapter_path is not None


def add_lora(model: Any, model_settings: Any) -> None:
    """Put adapters into a model, in place, and freeze all else: fresh ones, or those of lora_adapter_path.

    Reads lora_rank, lora_alpha, target_modules, lora_adapter_path (whose own rank, alpha and targets count). Raises
    WorkerError for a layer that is not linear.
    """
    from peft import LoraConfig, inject_adapter_in_model, load_peft_weights, set_peft_model_state_dict

    path = model_settings.lora_adapter_path
    if path is None:
        targets = model_settings.target_modules
        lora = LoraConfig(
            r=model_settings.lora_rank,
            lora_alpha=model_settings.lora_alpha,
            target_modules=targets if isinstance(targets, str) else list(targets),
            bias="none",
        )
    else:
        lora = _read_config(path)
    inject_adapter_in_model(lora, model, ADAPTER)
    for name, layer in lora_layers(model).items():
        if not isinstance(layer.base_layer, nn.Linear):
            raise WorkerError(
                f"actor_rollout_ref.model.target_modules names {name}, a {type(layer.base_layer).__name__}: only "
                "linear layers can have an adapter here"
            )
    if path is not None:
        weights = load_peft_weights(str(path), device="cpu")
        loaded: Any = set_peft_model_state_dict(model, weights, ADAPTER)  # its declared type is an untyped namedtuple
        if unknown := loaded.unexpected_keys:
            raise CheckpointError(f"{path} is the adapter of another model: it has no place for {unknown[0]}")


def _read_config(path: str | Path) -> Any:
    from peft import LoraConfig

    try:
        lora = LoraConfig.from_pretrained(str(path))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"actor_rollout_ref.model.lora_adapter_path={path} holds no LoRA adapter of peft: {error}"
        ) from error
    if lora.use_dora or lora.bias != "none" or lora.modules_to_save:
        raise CheckpointError(f"{path}: DoRA, trained biases and modules_to_save of an adapter are not supported")
    lora.inference_mode = False  # peft saves it as frozen
    return lora


def lora_layers(model: nn.Module) -> dict[str, Any]:
    """The layers with an adapter by name; none in a plain model."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}


@contextlib.contextmanager
def without_adapter(model: nn.Module) -> Iterator[None]:
    """The model as it was before it had adapters, for the time of a block.

    By scaling with 0: peft's own switch also turns requires_grad off, which FSDP2 would remember.
    """
    layers = lora_layers(model).values()
    before = [dict(layer.scaling) for layer in layers]
    try:
        for layer in layers:
            layer.scaling.update(dict.fromkeys(layer.scaling, 0.0))
        yield
    finally:
        for layer, scaling in zip(layers, before, strict=True):
            layer.scaling.update(scaling)


def merged_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The full weights of a model with adapters (its state_dict, gathered) as those of the plain model."""
    layers = lora_layers(model)
    merged = {name: value for name, value in weights.items() if ".lora_" not in name and ".base_layer." not in name}
    for name, layer in layers.items():
        a, b = (weights[f"{name}.lora_{letter}.{ADAPTER}.weight"] for letter in "AB")  # [rank, in], [out, rank]
        merged[f"{name}.weight"] = weights[f"{name}.base_layer.weight"] + layer.scaling[ADAPTER] * (b @ a)
        if f"{name}.base_layer.bias" in weights:
            merged[f"{name}.bias"] = weights[f"{name}.base_layer.bias"]
    return merged


def save_adapter(model: Any, weights: Mapping[str, Any], folder: Path) -> None:
    """Write A and B of the full weights, and their settings, as peft reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    model.peft_config[ADAPTER].save_pretrained(str(folder))
    own = {name: value for name, value in weights.items() if ".lora_" in name}
    write_weights(folder / WEIGHTS, {PREFIX + name.replace(f".{ADAPTER}.", "."): value for name, value in own.items()})
