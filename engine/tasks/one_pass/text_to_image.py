"""Image models in their worker process: `diffusers` pipelines with safetensors. Never runs code of a model.

A pipeline's folder has `model_index.json`, whose classes must be those of `_PIPELINES` and of the libraries diffusers
and transformers. The model of digits that `hearth model add` trains has a small loop of its own (`DigitModel`). A
safety checker runs if its weights were published with the pipeline.
"""

from __future__ import annotations

import inspect
import io
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as PillowImage

from engine.protocol.images import Image
from engine.tasks.one_pass.worker import Steps
from engine.tasks.text_to_image import ImageModelInfo, ImagePrompt

_PIPELINES = (
    "StableDiffusionPipeline", "StableDiffusionXLPipeline", "LatentConsistencyModelPipeline", "FluxPipeline",
    "Flux2Pipeline", "Flux2KleinPipeline",
)  # fmt: skip
_LIBRARIES = ("diffusers", "transformers")
DIGIT_PIPELINE = "DigitPipeline"
_DEFAULT_SIDE = 1024


class UnsupportedModel(ValueError):
    """The folder does not contain a supported image model."""


class _Cancelled(Exception):
    """Raised between two steps of an image that is no longer needed."""


def load(model_dir: Path, device: str) -> PipelineModel | DigitModel:
    """Load the model of a folder. Raises UnsupportedModel, OSError, ValueError or KeyError."""
    index = json.loads((model_dir / "model_index.json").read_text())
    name = index.get("_class_name")
    if name == DIGIT_PIPELINE:
        return DigitModel(model_dir, device)
    if name not in _PIPELINES:
        raise UnsupportedModel(f"image models are {', '.join(_PIPELINES)} without code of their own")
    return PipelineModel(model_dir, index, device)


def import_diffusers() -> Any:
    """Return the module `diffusers`. Raises UnsupportedModel if it is not installed."""
    try:
        from engine.tasks.one_pass.diffusers_imports import diffusers
    except ImportError:
        raise UnsupportedModel("image models need the package diffusers: pip install 'hearth[images]'") from None
    return diffusers


class PipelineModel:
    """A pipeline of `diffusers`, a `SteppedModel`. Equal seeds give equal images."""

    item_type = ImagePrompt

    def __init__(self, model_dir: Path, index: dict[str, Any], device: str) -> None:
        diffusers = import_diffusers()
        self._device = torch.device(device)
        pipeline = getattr(diffusers, index["_class_name"]).from_pretrained(
            model_dir,
            local_files_only=True,
            use_safetensors=True,
            low_cpu_mem_usage=False,
            dtype=torch.float32 if self._device.type == "cpu" else torch.bfloat16,
            **_absent_components(model_dir, index),
        )
        pipeline.set_progress_bar_config(disable=True)
        pipeline.to(self._device)
        self._of_text = pipeline
        self._of_image = _derived(diffusers.AutoPipelineForImage2Image, pipeline)
        self._of_mask = _derived(diffusers.AutoPipelineForInpainting, pipeline)
        is_flux_2 = index["_class_name"].startswith("Flux2")
        denoiser = getattr(pipeline, "unet", None) or pipeline.transformer
        scale = int(getattr(pipeline, "vae_scale_factor", 8))
        size = int(getattr(pipeline, "default_sample_size", 0) or getattr(denoiser.config, "sample_size", 0) or 0)
        side = size * scale or _DEFAULT_SIDE
        self.info = ImageModelInfo(
            side,
            side,
            side_step=scale if hasattr(pipeline, "unet") else 2 * scale,
            takes_image=self._of_image is not None and not is_flux_2,
            takes_mask=self._of_mask is not None and not is_flux_2,
            takes_references=is_flux_2,
        )

    def warm_up(self) -> None:
        """Do nothing: a step of a large model can take a minute, and the first call does not pay much more."""

    def run_in_steps(self, items: list[ImagePrompt], steps: Steps) -> list[bytes | None]:
        """Return the PNG file of each item."""
        return [self._run(index, item, steps) for index, item in enumerate(items)]

    @torch.inference_mode()
    def _run(self, index: int, item: ImagePrompt, steps: Steps) -> bytes | None:
        pipeline, options = self._choose(item)
        num_steps = item.steps

        def on_step(_pipeline: Any, step: int, _time: Any, values: dict[str, Any]) -> dict[str, Any]:
            if steps.is_cancelled(index):
                raise _Cancelled
            steps.report(index, min(step + 1, num_steps), num_steps)
            return values

        options |= {
            "prompt": item.prompt,
            "width": item.width,
            "height": item.height,
            "num_inference_steps": num_steps,
            "generator": torch.Generator("cpu").manual_seed(item.seed),
            "callback_on_step_end": on_step,
        }
        if item.negative_prompt:
            options["negative_prompt"] = item.negative_prompt
        if item.guidance is not None:
            options["guidance_scale"] = item.guidance
        accepted = inspect.signature(pipeline.__call__).parameters
        try:
            image = pipeline(**{name: value for name, value in options.items() if name in accepted}).images[0]
        except _Cancelled:
            return None
        return to_png(image)

    def _choose(self, item: ImagePrompt) -> tuple[Any, dict[str, Any]]:
        """Return the pipeline for an item, and its options for images."""
        size = (item.width, item.height)
        if item.references:
            return self._of_text, {"image": [to_pillow(each) for each in item.references]}
        if item.image is None:
            return self._of_text, {}
        # At least one step is computed: with a strength below 1 / steps there would be none.
        options: dict[str, Any] = {
            "image": to_pillow(item.image).resize(size),
            "strength": min(1.0, max(item.strength, 1 / item.steps)),
        }
        if item.mask is None:
            return self._of_image, options
        return self._of_mask, options | {"mask_image": to_pillow(item.mask).convert("L").resize(size)}


class DigitModel:
    """Handwritten digits by class-conditional diffusion, a `SteppedModel`. The first digit or number word of a prompt
    is drawn in 8 x 8 pixels and enlarged."""

    item_type = ImagePrompt
    WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    GUIDANCE = 2.0

    def __init__(self, model_dir: Path, device: str) -> None:
        diffusers = import_diffusers()
        options: dict[str, Any] = {"local_files_only": True}
        self._unet = diffusers.UNet2DModel.from_pretrained(
            model_dir, subfolder="unet", use_safetensors=True, **options
        ).eval()
        self._unet.to(torch.device(device))
        self._scheduler = diffusers.DDIMScheduler.from_pretrained(model_dir, subfolder="scheduler", **options)
        self.info = ImageModelInfo(
            256, 256, 8, takes_image=False, takes_mask=False, takes_references=False,
            words=(*self.WORDS, *map(str, range(10))),
        )  # fmt: skip

    def warm_up(self) -> None: ...

    def run_in_steps(self, items: list[ImagePrompt], steps: Steps) -> list[bytes | None]:
        """Return the PNG file of each item."""
        return [self._run(index, item, steps) for index, item in enumerate(items)]

    @torch.inference_mode()
    def _run(self, index: int, item: ImagePrompt, steps: Steps) -> bytes | None:
        digit = self._digit(item.prompt)
        guidance = self.GUIDANCE if item.guidance is None else item.guidance
        # The last class stands for no digit in particular.
        classes = torch.tensor([digit, len(self.WORDS)], device=self._unet.device)
        side = self._unet.config.sample_size
        noise = torch.randn((1, 1, side, side), generator=torch.Generator("cpu").manual_seed(item.seed))
        latent = noise.to(self._unet.device)
        self._scheduler.set_timesteps(item.steps)
        for number, time in enumerate(self._scheduler.timesteps):
            if steps.is_cancelled(index):
                return None
            drawn, neutral = self._unet(latent.repeat(2, 1, 1, 1), time, classes).sample
            latent = self._scheduler.step((neutral + guidance * (drawn - neutral))[None], time, latent).prev_sample
            steps.report(index, number + 1, item.steps)
        pixels = ((latent[0, 0].float().cpu().numpy() + 1) * 127.5).clip(0, 255).astype(np.uint8)
        image = PillowImage.fromarray(pixels).resize((item.width, item.height), PillowImage.Resampling.BICUBIC)
        return to_png(image)

    def _digit(self, prompt: str) -> int:
        """Return the first digit that a prompt names; the front has checked that there is one."""
        for word in prompt.lower().replace(".", " ").replace(",", " ").split():
            if word in self.info.words:
                return self.info.words.index(word) % len(self.WORDS)
        raise ValueError("the prompt names no digit")


def _absent_components(model_dir: Path, index: dict[str, Any]) -> dict[str, None]:
    """Return the components, such as a safety checker, whose weights were not published. Raises UnsupportedModel for
    components that are not of a known library."""
    absent: dict[str, None] = {}
    for name, value in index.items():
        if not isinstance(value, list):
            continue
        if value != [None, None] and value[0] not in (*_LIBRARIES, "stable_diffusion"):
            raise UnsupportedModel(f"model_index.json: {name} is of the unsupported library {value[0]}")
        if not (model_dir / name).is_dir():
            absent[name] = None
    return absent


def _derived(factory: Any, pipeline: Any) -> Any:
    """Return the pipeline of another kind with the same weights, or None if there is none for this family."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            derived = factory.from_pipe(pipeline)
    except ValueError:
        return None
    derived.set_progress_bar_config(disable=True)
    return derived


def to_pillow(image: Image) -> PillowImage.Image:
    """Return a decoded image for a pipeline."""
    return PillowImage.frombytes("RGB", (image.width, image.height), image.pixels)


def to_png(image: PillowImage.Image) -> bytes:
    """Return the image as a PNG file without metadata."""
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=3)
    return file.getvalue()
