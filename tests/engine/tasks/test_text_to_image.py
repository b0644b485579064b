"""Text to image: equality with `diffusers` on small random weights, seeds, images and masks, steps, cancellation."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import pytest_asyncio
import torch
from PIL import Image as PillowImage

from catalog.model_folder import derive_facts, inspect_folder
from engine.processes.zygote import Zygote
from engine.protocol.events import Event, Failed, Finished, Progress, Result
from engine.protocol.images import Image
from engine.protocol.tasks.text_to_image import TextToImage
from engine.tasks.loading import ModelLoadError
from engine.tasks.text_to_image import ImageGenerator, load
from engine.tasks.work import Refused, Work
from telemetry.clock import SYSTEM_CLOCK
from tests.fakes.one_pass import load_request
from tests.fakes.pipelines import SIDE, make_pipeline
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # from the library diffusers
]

KINDS = ["sd", "sdxl", "flux"]


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=KINDS)
async def generator(
    zygote: Zygote, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[ImageGenerator, Path]]:
    """A generator of each kind, and its folder."""
    folder = make_pipeline(request.param, tmp_path_factory.mktemp(request.param))
    generator = await load(load_request(zygote, folder))
    yield generator, folder
    await generator.close()


async def generate(generator: ImageGenerator, **options: Any) -> list[Event]:
    events: list[Event] = []
    task = TextToImage(**({"prompt": "a red boat", "steps": 3, "seed": 7} | options))
    await generator.start(Work(task, bytes(32), 1), events.append)
    await wait_until(lambda: bool(events) and isinstance(events[-1], Finished | Failed))
    return events


def pixels(events: list[Event]) -> list[np.ndarray]:
    [result] = [event for event in events if isinstance(event, Result)]
    return [np.asarray(PillowImage.open(io.BytesIO(file))) for file in result.fields["images"]]


def gradient() -> Image:
    values = np.linspace(0, 255, SIDE * SIDE * 3, dtype=np.uint8)
    return Image(SIDE, SIDE, values.tobytes(), SIDE, SIDE)


async def test_image_equals_that_of_diffusers_at_the_same_seed(generator: tuple[ImageGenerator, Path]):
    model, folder = generator
    pipeline = diffusers.DiffusionPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    options = {"num_inference_steps": 3, "width": SIDE, "height": SIDE, "guidance_scale": 4.0}
    expected = pipeline("a red boat", generator=torch.Generator().manual_seed(7), **options).images[0]
    [found] = pixels(await generate(model, width=SIDE, height=SIDE, guidance=4.0))
    assert np.abs(found.astype(int) - np.asarray(expected)).max() <= 1


async def test_equal_seeds_give_equal_bytes_and_progress_counts_the_steps_of_all_images(
    generator: tuple[ImageGenerator, Path],
):
    model, _ = generator
    size = {"width": SIDE, "height": SIDE}
    _started, *others, finished = await generate(model, num_images=2, **size)
    progress = [event for event in others if isinstance(event, Progress)]
    assert [event.num_total for event in progress] == [6] * len(progress)
    assert [event.num_done for event in progress] == sorted(event.num_done for event in progress)
    assert progress[-1].num_done == 6
    assert isinstance(finished, Finished)
    assert (finished.usage.num_steps, finished.usage.num_image_tiles) == (6, 2)
    [result] = [event for event in others if isinstance(event, Result)]
    first, second = result.fields["images"]
    assert first != second
    [again] = [event for event in await generate(model, seed=8, **size) if isinstance(event, Result)]
    assert again.fields["images"][0] == second


async def test_image_is_a_start_and_a_mask_keeps_the_rest(generator: tuple[ImageGenerator, Path]):
    model, _ = generator
    [plain] = pixels(await generate(model, width=SIDE, height=SIDE))
    [from_image] = pixels(await generate(model, image=gradient(), strength=0.5))
    assert from_image.shape == (SIDE, SIDE, 3)
    assert (plain != from_image).any()
    half = np.zeros((SIDE, SIDE, 3), np.uint8)
    half[:, SIDE // 2 :] = 255
    mask = Image(SIDE, SIDE, half.tobytes(), SIDE, SIDE)
    [from_mask] = pixels(await generate(model, image=gradient(), mask=mask, strength=0.9))
    assert from_mask.shape == (SIDE, SIDE, 3)


async def test_cancelled_image_ends_between_steps_and_is_charged_for_them(generator: tuple[ImageGenerator, Path]):
    model, _ = generator
    events: list[Event] = []
    task = TextToImage(prompt="a red boat", steps=10_000, seed=1, width=SIDE, height=SIDE)
    run = await model.start(Work(task, bytes(32), 1), events.append)
    await wait_until(lambda: any(isinstance(event, Progress) for event in events))
    usage = run.cancel()
    assert 0 < usage.num_steps < 10_000
    assert usage.num_image_tiles == 0
    assert isinstance((await generate(model, width=SIDE, height=SIDE))[-1], Finished)


async def test_image_to_refer_to_is_refused_by_name(generator: tuple[ImageGenerator, Path]):
    with pytest.raises(Refused, match="'/input_image_0' is not supported by this model"):
        await generate(generator[0], references=(gradient(),))


async def test_folder_of_a_pipeline_can_be_published(generator: tuple[ImageGenerator, Path]):
    folder = inspect_folder(generator[1])
    facts = derive_facts(folder, "@cf/test/images", SYSTEM_CLOCK.now())
    assert facts.task == "Text-to-Image"
    assert facts.schema == ("text_to_image_base64" if folder.architecture == "FluxPipeline" else "text_to_image")
    assert "vae/diffusion_pytorch_model.safetensors" in folder.files


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"_class_name": "EvilPipeline"}, "image models are StableDiffusionPipeline"),
        ({"_class_name": "StableDiffusionPipeline", "unet": ["evil", "Unet"]}, "unsupported library evil"),
    ],
)
async def test_pipeline_with_other_code_does_not_load(zygote: Zygote, tmp_path: Path, index: dict, message: str):
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(ModelLoadError, match=message):
        await load(load_request(zygote, tmp_path))
