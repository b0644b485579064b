"""Vision chat with a LLaVA of random weights: equality with `transformers`, batches, chunks and the prefix cache."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from transformers import CLIPImageProcessorPil, LlavaForConditionalGeneration

from engine.processes.zygote import Zygote
from engine.protocol.events import Event, Failed, Finished, Token
from engine.protocol.images import Image
from engine.protocol.messages import ChatMessage
from engine.protocol.sampling import Sampling
from engine.protocol.tasks.text_generation import TextGeneration
from engine.tasks.loading import LoadRequest
from engine.tasks.text_generation import TextGenerator, load
from engine.tasks.work import Refused, Work
from engine.text.tokenizer import Tokenizer
from tests.fakes.tiny_llava import NUM_IMAGE_TOKENS, tiny_llava
from tests.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def model_dir(test_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llava(tmp_path_factory.mktemp("llava"), test_data)


def request_of(zygote: Zygote, folder: Path, **settings: Any) -> LoadRequest:
    values: dict[str, Any] = {
        "device": "cpu", "attention": "auto", "has_graphs": True, "dtype": "float32", "num_threads": 1,
        "kv_dtype": "auto", "kv_memory_bytes": 8 << 20, "adapter_memory_bytes": 0, "max_sequences": 8,
        "max_waiting": 64, "max_step_tokens": 512, "tensor_parallel": 1, "step_timeout_s": 60.0, "speculation": "off",
        "coalesce_ms": 0,
    }  # fmt: skip
    given: Any = SimpleNamespace(**(values | settings))
    fields: dict[str, Any] = {"kv_bytes": 8 << 20} if "kv_bytes" in LoadRequest.__dataclass_fields__ else {}
    return LoadRequest(
        folder=folder, revision="r", context_window=512, tool_parser=None, speculation=None, settings=given,
        num_threads=1, zygote=zygote, on_exit=lambda _line: None, open_model=lambda _name: nullcontext(), **fields,
    )  # fmt: skip


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def generator(zygote: Zygote, model_dir: Path) -> AsyncIterator[TextGenerator]:
    generator = await load(request_of(zygote, model_dir))
    yield generator
    await generator.close()


def picture(seed: int, width: int = 40, height: int = 50) -> Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image(width, height, pixels.tobytes(), width, height)


def message(text: str, *images: Image, offsets: Sequence[int] = ()) -> ChatMessage:
    return ChatMessage("user", text, images=images, image_offsets=tuple(offsets) or (0,) * len(images))


async def run(generator: TextGenerator, *messages: ChatMessage, **options: Any) -> list[Event]:
    events: list[Event] = []
    task = TextGeneration(messages=messages, sampling=Sampling(temperature=0.0, max_tokens=12))
    await generator.start(Work(task, options.get("namespace", bytes(32)), 1), events.append)
    await wait_until(lambda: bool(events) and isinstance(events[-1], Finished | Failed))
    assert isinstance(events[-1], Finished), events[-1]
    return events


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Token))


def expected(model_dir: Path, prompt: str, *images: Image) -> tuple[str, int]:
    """Return the text that `transformers` generates greedily, and the length of its prompt."""
    tokenizer, processor = Tokenizer(model_dir), CLIPImageProcessorPil.from_pretrained(model_dir)
    model = LlavaForConditionalGeneration.from_pretrained(model_dir, dtype=torch.float32).eval()
    ids = tokenizer.encode(prompt.replace("<image>", "<image>" * NUM_IMAGE_TOKENS), parse_special=True)
    ids = ids[1:] if ids[:2] == [1, 1] else ids
    arrays = [np.frombuffer(each.pixels, np.uint8).reshape(each.height, each.width, 3) for each in images]
    pixels = processor(arrays, return_tensors="pt")["pixel_values"]
    found = model.generate(
        input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), pixel_values=pixels,
        do_sample=False, max_new_tokens=12, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    return tokenizer.detokenizer().push(found[0, len(ids) :].tolist()), len(ids)


async def test_greedy_text_equals_that_of_transformers(generator: TextGenerator, model_dir: Path):
    image = picture(1)
    events = await run(generator, message("Once upon a time", image))
    text, num_prompt = expected(model_dir, "<s>user: <image>Once upon a time", image)
    assert text_of(events) == text
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.usage.prompt_tokens == num_prompt
    assert finished.usage.device_us > 0


async def test_images_stand_between_the_texts_of_a_message(generator: TextGenerator, model_dir: Path):
    first, second = picture(2), picture(3)
    events = await run(generator, message("Once upon\na time", first, second, offsets=(9, 16)))
    text, _ = expected(model_dir, "<s>user: Once upon<image>a time<image>", first, second)
    assert text_of(events) == text


async def test_images_share_batches_with_other_calls_and_do_not_mix(generator: TextGenerator):
    images = [picture(seed) for seed in range(10, 16)]
    alone = [text_of(await run(generator, message("Once", image))) for image in images]
    assert len(set(alone)) > 1
    calls = [run(generator, message("Once", image), namespace=b"b" * 32) for image in images]
    calls.append(run(generator, ChatMessage("user", "Once"), namespace=b"b" * 32))
    together = await asyncio.gather(*calls)
    assert [text_of(events) for events in together[:-1]] == alone


async def test_another_image_never_hits_the_prefix_cache(generator: TextGenerator):
    prompt = "One day a little girl named Lily found a needle in her room"
    first = await run(generator, message(prompt, picture(20)), namespace=b"c" * 32)
    again = await run(generator, message(prompt, picture(20)), namespace=b"c" * 32)
    other = await run(generator, message(prompt, picture(21)), namespace=b"c" * 32)
    cached = [events[-1].usage.cached_tokens for events in (first, again, other)]  # type: ignore[union-attr]
    assert cached[0] == 0
    assert cached[1] >= NUM_IMAGE_TOKENS
    assert cached[2] == 0
    assert text_of(again) == text_of(first) != text_of(other)


async def test_prompt_before_an_image_is_shared_by_all_images(generator: TextGenerator):
    prompt = "One day a little girl named Lily found a needle in her room. " * 2
    for seed in (30, 31):
        parts = message(prompt, picture(seed), offsets=(len(prompt),))
        events = await run(generator, parts, namespace=b"d" * 32)
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert 16 <= finished.usage.cached_tokens < finished.usage.prompt_tokens - NUM_IMAGE_TOKENS


async def test_prompts_in_chunks_give_the_same_text(zygote: Zygote, model_dir: Path, generator: TextGenerator):
    whole = [text_of(await run(generator, message("Once upon a time", picture(seed)))) for seed in (40, 41, 42)]
    chunked = await load(request_of(zygote, model_dir, max_step_tokens=8))
    try:
        calls = [run(chunked, message("Once upon a time", picture(seed))) for seed in (40, 41, 42)]
        assert [text_of(events) for events in await asyncio.gather(*calls)] == whole
    finally:
        await chunked.close()


async def test_image_token_in_the_text_of_a_caller_is_plain_text(generator: TextGenerator):
    events = await run(generator, message("a <image> b", picture(50)))
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert NUM_IMAGE_TOKENS < finished.usage.prompt_tokens < 2 * NUM_IMAGE_TOKENS + 10


async def test_images_that_do_not_fit_into_the_context_are_refused(generator: TextGenerator):
    with pytest.raises(Refused, match="this model's context is 512 tokens"):
        await run(generator, message("Once", *[picture(seed) for seed in range(16)], *[picture(0)] * 5))


async def test_images_that_were_not_decoded_are_refused(generator: TextGenerator):
    with pytest.raises(Refused, match="takes text only"):
        await run(generator, message("Once", Image.of_file(b"file")))
