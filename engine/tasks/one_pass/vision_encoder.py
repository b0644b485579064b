"""The vision part of a text model in a worker process of its own: images to the tokens and vectors that stand for them
in the prompt, with `transformers`.

Only the vision tower and the projector stay in memory; the engine runs the text part.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from tokenizers import Tokenizer

from engine.tasks.one_pass.image_item import ImageItem, blank_image, pixels_of
from engine.tasks.one_pass.transformers_models import import_transformers, load_processor, read_config
from engine.tasks.vision import EncodedImage, VisionInfo

_MODEL_TYPES = ("llava", "gemma3", "mistral3", "qwen2_vl", "qwen2_5_vl")
_INPUTS = ("pixel_values", "image_sizes", "image_grid_thw")
_TEXT_PART = "language_model."


def load(model_dir: Path, device: str) -> VisionEncoder:
    """Load the vision part of a folder. Raises UnsupportedModel, OSError, ValueError or KeyError."""
    read_config(model_dir, _MODEL_TYPES, "vision parts")
    return VisionEncoder(model_dir, device)


class VisionEncoder:
    """One loaded vision part, a `WorkerModel`."""

    item_type = ImageItem

    def __init__(self, model_dir: Path, device: str) -> None:
        self._processor = load_processor("AutoImageProcessor", model_dir)
        self._device = torch.device(device)
        self._model = _load(model_dir).to(self._device)
        self._config = self._model.config
        self._tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        self._token_id = int(self._config.image_token_id)
        self._options: dict[str, Any] = {}
        self._separators: list[int] = []  # the tokens after each row of an image, and after the image
        if self._config.model_type == "mistral3":  # sizes are multiples of the area that becomes one token
            self._separators = self._tokenizer.encode("[IMG_BREAK][IMG_END]", add_special_tokens=False).ids
            self._options["patch_size"] = self._config.vision_config.patch_size * self._config.spatial_merge_size
        _, vectors = self._encode([ImageItem(blank_image())])
        is_mutual = self._config.model_type == "gemma3"
        self.info = VisionInfo(self._token_id, vectors[0].shape[1], self._markup(), is_mutual)

    def warm_up(self) -> None:
        """Do nothing: loading has already encoded an image."""

    def run(self, items: list[ImageItem]) -> list[bytes]:
        """Return an `EncodedImage` for each image, as MessagePack."""
        inputs, vectors = self._encode(items)
        found = []
        for index, each in enumerate(vectors):
            token_ids, grid = self._tokens(inputs, index, len(each))
            data = each.float().cpu().numpy().astype("<f4").tobytes()
            found.append(msgspec.msgpack.encode(EncodedImage(token_ids, data, grid)))
        return found

    @torch.inference_mode()
    def _encode(self, items: list[ImageItem]) -> tuple[Mapping[str, torch.Tensor], list[torch.Tensor]]:
        """Return the inputs of the vision tower, and the vectors [n, C] of each image."""
        images = [pixels_of(item.image) for item in items]
        options = {"return_tensors": "pt", "input_data_format": "channels_last"} | self._options
        made = self._processor(images, **options).to(self._device)
        inputs = {name: made[name] for name in _INPUTS if name in made}
        return inputs, list(self._model.get_image_features(**inputs, return_dict=True).pooler_output)

    def _tokens(
        self, inputs: Mapping[str, torch.Tensor], index: int, num_vectors: int
    ) -> tuple[list[int], tuple[int, int] | None]:
        """Return the tokens of an image in the prompt, and their rows and columns if positions depend on them."""
        if "image_grid_thw" in inputs:
            _, height, width = inputs["image_grid_thw"][index].tolist()
            side = self._config.vision_config.spatial_merge_size
            return [self._token_id] * num_vectors, (height // side, width // side)
        if self._config.model_type != "mistral3":
            return [self._token_id] * num_vectors, None
        num_columns = inputs["image_sizes"][index].tolist()[1] // self._options["patch_size"]
        rows = [*[self._token_id] * num_columns, self._separators[0]] * (num_vectors // num_columns)
        return [*rows[:-1], self._separators[1]], None

    def _markup(self) -> tuple[str, str] | None:
        """Return the chat template's text for an image, and the text that replaces it."""
        if self._config.model_type != "gemma3":
            return None
        first, image, last = (
            str(self._tokenizer.id_to_token(int(token_id)))
            for token_id in (self._config.boi_token_index, self._token_id, self._config.eoi_token_index)
        )
        return first, f"\n\n{first}{image}{last}\n\n"


def _load(model_dir: Path) -> Any:
    """Return the model in float32 without its text part. Raises OSError, ValueError or KeyError."""
    transformers = import_transformers()
    config = transformers.AutoConfig.from_pretrained(model_dir, local_files_only=True)
    text = config.text_config  # the smallest that `transformers` accepts: its weights are not loaded
    text.num_hidden_layers, text.vocab_size, text.intermediate_size = 1, 8, 8
    text.pad_token_id = text.bos_token_id = text.eos_token_id = None
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:1]
    with warnings.catch_warnings(action="ignore"):
        model, report = transformers.AutoModel.from_pretrained(
            model_dir,
            config=config,
            local_files_only=True,
            use_safetensors=True,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    wrong = {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}
    lacking = sorted(name for name in wrong if not name.startswith(_TEXT_PART))
    if lacking:
        raise ValueError(f"the files have no weights for {', '.join(lacking[:5])}")
    model.language_model = torch.nn.Identity()
    return model.eval()
