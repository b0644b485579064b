"""Models that describe images in their worker process: BLIP and LLaVA with `transformers`, and PP-OCR."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from engine.tasks.image_to_text import DescriberInfo, DescriptionRequest
from engine.tasks.one_pass.image_item import blank_image, pixels_of
from engine.tasks.one_pass.text_recognition import TextRecognizer
from engine.tasks.one_pass.transformers_models import load_pretrained, load_processor, read_config

_MODEL_TYPES = ("blip", "llava", "llava_next", "pp_ocr")
_DEFAULT_PROMPT = "Describe this image."
_DEFAULT_POSITIONS = 2048
_MAX_BATCH = 8

Described = tuple[str, int, int]  # the text, the tokens of the prompt and those of the text


def load(model_dir: Path, device: str) -> Describer | TextRecognizer:
    """Load the model of a folder. Raises UnsupportedModel, OSError, ValueError or KeyError."""
    config = read_config(model_dir, _MODEL_TYPES, "models that describe images")
    if config["model_type"] == "pp_ocr":
        return TextRecognizer(model_dir)
    return (Blip if config["model_type"] == "blip" else Llava)(model_dir, device)


class Describer:
    """One loaded model, a `WorkerModel`. A prompt that takes more than a quarter of the context is truncated."""

    item_type = DescriptionRequest

    def __init__(self, model_dir: Path, device: str) -> None:
        self.processor = load_processor("AutoProcessor", model_dir)
        self.tokenizer = self.processor.tokenizer
        model = load_pretrained("AutoModelForImageTextToText", model_dir, is_complete=True)
        self.model = model.to(torch.device(device))
        self.max_positions = int(getattr(model.config.text_config, "max_position_embeddings", _DEFAULT_POSITIONS))
        self.info = DescriberInfo(self.max_positions)

    def warm_up(self) -> None:
        self.run([DescriptionRequest(blank_image(), "", False, 2, 0.0, 1.0, 50, 1.0, None)])

    def run(self, items: list[DescriptionRequest]) -> list[Described]:
        """Return the description of each image. Greedy requests with equal options share batches."""
        found: list[Described] = [("", 0, 0)] * len(items)
        for numbers in self._batches(items):
            for number, described in zip(numbers, self._describe([items[each] for each in numbers]), strict=True):
                found[number] = described
        return found

    def _batches(self, items: list[DescriptionRequest]) -> list[list[int]]:
        groups: dict[Any, list[int]] = {}
        for number, item in enumerate(items):
            key = (
                number if item.temperature > 0 else (item.prompt, item.is_raw, item.max_tokens, item.repetition_penalty)
            )
            groups.setdefault(key, []).append(number)
        size = self.max_batch
        return [group[first : first + size] for group in groups.values() for first in range(0, len(group), size)]

    @torch.inference_mode()
    def _describe(self, items: list[DescriptionRequest]) -> list[Described]:
        """Describe the images of requests with equal options."""
        first = items[0]
        inputs = self.inputs_of([pixels_of(item.image) for item in items], self._shortened(first.prompt), first.is_raw)
        num_prompt_tokens = inputs["input_ids"].shape[1] if "input_ids" in inputs else 0
        options: dict[str, Any] = {
            "max_new_tokens": max(1, min(first.max_tokens, self.max_positions - num_prompt_tokens)),
            "repetition_penalty": first.repetition_penalty or 1.0,
            "do_sample": first.temperature > 0,
            "num_beams": 1,
        }
        if first.temperature > 0:
            options |= {"temperature": first.temperature, "top_p": first.top_p, "top_k": first.top_k}
            torch.manual_seed(first.seed) if first.seed is not None else torch.seed()
        output_ids = self.model.generate(**inputs.to(self.model.device), **options)[:, self.num_repeated(inputs) :]
        texts = self.tokenizer.batch_decode(output_ids, skip_special_tokens=True)
        lengths = (output_ids != self.tokenizer.pad_token_id).sum(1).tolist()
        return [(text.strip(), num_prompt_tokens, length) for text, length in zip(texts, lengths, strict=True)]

    def _shortened(self, prompt: str) -> str:
        token_ids = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        limit = max(1, self.max_positions // 4)
        return prompt if len(token_ids) <= limit else str(self.tokenizer.decode(token_ids[:limit]))

    max_batch = 1

    def inputs_of(self, images: list[Any], prompt: str, is_raw: bool) -> Any:
        """Return the inputs of `generate`."""
        raise NotImplementedError

    def num_repeated(self, inputs: Any) -> int:  # noqa: ARG002
        """Return the number of tokens of the prompt that the output repeats and that do not belong to the text."""
        return 0


class Blip(Describer):
    """BLIP: the prompt is the start of the description."""

    max_batch = _MAX_BATCH

    def inputs_of(self, images: list[Any], prompt: str, is_raw: bool) -> Any:  # noqa: ARG002
        text = {"text": [prompt] * len(images)} if prompt else {}
        return self.processor(images=images, return_tensors="pt", **text)


class Llava(Describer):
    """LLaVA: the prompt is a question. Images have different numbers of parts, so each is a batch of its own."""

    def inputs_of(self, images: list[Any], prompt: str, is_raw: bool) -> Any:
        image_token = self.processor.image_token
        question = prompt.replace(image_token, "") or _DEFAULT_PROMPT
        if is_raw:
            text = f"{image_token}\n{question}"
        elif self.processor.chat_template:
            content = [{"type": "image"}, {"type": "text", "text": question}]
            text = self.processor.apply_chat_template(
                [{"role": "user", "content": content}], add_generation_prompt=True
            )
        else:
            text = f"USER: {image_token}\n{question} ASSISTANT:"
        return self.processor(images=images, text=[text], return_tensors="pt")

    def num_repeated(self, inputs: Any) -> int:
        return int(inputs["input_ids"].shape[1])
