"""Vision chat with the other families than LLaVA, with random weights: equality with `transformers`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
import transformers

from engine.processes.zygote import Zygote
from engine.protocol.events import Finished
from engine.protocol.images import Image
from engine.tasks.text_generation import TextGenerator, load
from engine.text.tokenizer import Tokenizer
from tests.engine.tasks.test_vision import message, picture, request_of, run, text_of
from tests.fakes.tiny_vision import FAMILIES, tiny_vision

pytestmark = pytest.mark.asyncio(loop_scope="module")
_MERGE = 2  # side of the square of patches that becomes one token
_SOFT = "<image_soft_token>"
# Qwen 2-VL differs from 2.5-VL in its vision tower only, which `transformers` runs.
_FAMILIES = [pytest.param(name, marks=pytest.mark.full if name == "qwen2_vl" else ()) for name in FAMILIES]


@dataclass
class Family:
    name: str
    folder: Path
    generator: TextGenerator


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=_FAMILIES)
async def family(
    request: pytest.FixtureRequest, zygote: Zygote, test_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Family]:
    folder = tiny_vision(request.param, tmp_path_factory.mktemp(request.param), test_data)
    generator = await load(request_of(zygote, folder))
    yield Family(request.param, folder, generator)
    await generator.close()


def markup(name: str, inputs: dict[str, torch.Tensor], index: int) -> str:
    """Return the text of an image in the prompt, as the processors of `transformers` write it."""
    if name == "gemma3":
        return f"\n\n<start_of_image>{_SOFT * 25}<end_of_image>\n\n"
    if name == "mistral3":
        height, width = (side // 8 for side in inputs["image_sizes"][index].tolist())
        return "[IMG_BREAK]".join(["[IMG]" * width] * height) + "[IMG_END]"
    return "<|image_pad|>" * (int(inputs["image_grid_thw"][index].prod()) // _MERGE**2)


def expected(family: Family, prompt: str, *images: Image) -> tuple[str, int]:
    """Return the text that `transformers` generates greedily, and the length of its prompt."""
    model_class, processor_class, _, _, _ = FAMILIES[family.name]
    processor = getattr(transformers, processor_class).from_pretrained(family.folder)
    arrays = [np.frombuffer(each.pixels, np.uint8).reshape(each.height, each.width, 3) for each in images]
    options = {"patch_size": 8} if family.name == "mistral3" else {}
    inputs = dict(processor(arrays, return_tensors="pt", **options))
    inputs.pop("num_crops", None)
    for index in range(len(images)):
        prompt = prompt.replace("IMAGE", markup(family.name, inputs, index), 1)
    tokenizer = Tokenizer(family.folder)
    ids = torch.tensor([tokenizer.encode(prompt, parse_special=True)])
    model: Any = getattr(transformers, model_class).from_pretrained(family.folder, dtype=torch.float32).eval()
    kinds = (ids == model.config.image_token_id).int()
    if family.name == "gemma3":
        inputs["token_type_ids"] = kinds
    elif family.name != "mistral3":
        inputs["mm_token_type_ids"] = kinds
    found = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12, pad_token_id=0,
        eos_token_id=None, **inputs,
    )  # fmt: skip
    return tokenizer.detokenizer().push(found[0, ids.shape[1] :].tolist()), ids.shape[1]


async def test_greedy_text_equals_that_of_transformers(family: Family):
    image = picture(1)
    events = await run(family.generator, message("Once upon a time", image))
    text, num_prompt = expected(family, "<s>user\nIMAGEOnce upon a time assistant:", image)
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert (text_of(events), finished.usage.prompt_tokens) == (text, num_prompt)


async def test_images_of_different_sizes_stand_between_texts(family: Family):
    images = picture(2, 80, 30), picture(3, 33, 70)
    events = await run(family.generator, message("Once upon\na time", *images, offsets=(9, 16)))
    text, _ = expected(family, "<s>user\nOnce uponIMAGEa timeIMAGE assistant:", *images)
    assert text_of(events) == text


async def test_pixels_and_their_order_change_the_text(family: Family):
    texts = [text_of(await run(family.generator, message("Once", picture(seed)))) for seed in range(4, 12)]
    assert len(set(texts)) > 1


async def test_images_share_batches_with_other_calls_and_do_not_mix(family: Family):
    images = [picture(seed, 20 + 10 * (seed % 4)) for seed in range(10, 16)]
    alone = [text_of(await run(family.generator, message("Once", image))) for image in images]
    calls = [run(family.generator, message("Once", image), namespace=b"b" * 32) for image in images]
    calls.append(run(family.generator, message("Once upon a time"), namespace=b"b" * 32))
    together = await asyncio.gather(*calls)
    assert [text_of(events) for events in together[:-1]] == alone


async def test_prefix_cache_gives_the_same_text_and_never_another_image(family: Family):
    prompt = "One day a little girl named Lily found a needle in her room"
    first, again, other = [
        await run(family.generator, message(prompt, picture(seed)), namespace=b"c" * 32) for seed in (20, 20, 21)
    ]
    cached = [events[-1].usage.cached_tokens for events in (first, again, other)]  # type: ignore[union-attr]
    assert cached[0] == cached[2] == 0
    assert cached[1] >= 16
    assert text_of(again) == text_of(first)


async def test_prompts_in_chunks_give_the_same_text(zygote: Zygote, family: Family):
    parts = [message("Once upon a time", picture(seed), picture(seed + 9), offsets=(4, 9)) for seed in (40, 41, 42)]
    whole = [text_of(await run(family.generator, each)) for each in parts]
    chunked = await load(request_of(zygote, family.folder, max_step_tokens=8))
    try:
        assert [text_of(events) for events in await asyncio.gather(*[run(chunked, each) for each in parts])] == whole
    finally:
        await chunked.close()


async def test_image_markup_in_the_text_of_a_caller_is_plain_text(family: Family):
    token = FAMILIES[family.name][3]
    plain = await run(family.generator, message(f"a {token} b"))
    with_image = await run(family.generator, message(f"a {token} b", picture(50)))
    for events in (plain, with_image):
        assert isinstance(events[-1], Finished)
    assert with_image[-1].usage.prompt_tokens < plain[-1].usage.prompt_tokens + 60  # type: ignore[union-attr]
