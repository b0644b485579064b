"""Summaries equal those of `transformers` for each architecture; long texts are summarized in parts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from engine.processes.zygote import Zygote
from engine.protocol.events import Event, Finished, Result
from engine.protocol.tasks.summarization import Summarization
from engine.tasks.one_pass.summarization import load as load_in_worker
from engine.tasks.summarization import Summarizer, load
from engine.tasks.text_parts import TextPart
from engine.tasks.work import Work
from tests.fakes.one_pass import load_request
from tests.fakes.tiny_models import tiny_summarizer
from tests.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXTS = ("the man is eating food in a warm place", "it was a bad film and the sun was not in it", "where is the rain")
_GENERATION: dict[str, dict[str, Any]] = {
    "bart": {"num_beams": 2, "max_length": 32, "min_length": 8},
    "pegasus": {"num_beams": 2, "max_length": 32, "min_length": 8},
    "t5": {"num_beams": 3, "max_length": 24, "min_length": 6},
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def summarizer(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Summarizer]:
    zygote = Zygote()
    await zygote.start()
    summarizer = await load(load_request(zygote, tiny_summarizer(tmp_path_factory.mktemp("bart"))))
    yield summarizer
    await summarizer.close()
    await zygote.close()


async def summarize(summarizer: Summarizer, text: str, max_length: int = 0) -> tuple[str, Finished]:
    """Return the summary and the last event."""
    events: list[Event] = []
    await summarizer.start(Work(Summarization(text=text, max_length=max_length), b"", 0), events.append)
    await wait_until(lambda: bool(events) and isinstance(events[-1], Finished))
    _, result, finished = events
    assert isinstance(result, Result)
    assert isinstance(finished, Finished)
    return result.fields["text"], finished


def reference(folder: Path, text: str, **options: Any) -> str:
    """Return the summary that `transformers` makes of one text."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    inputs = tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        ids = model.generate(input_ids=inputs["input_ids"], do_sample=False, **options)
    return tokenizer.batch_decode(ids, skip_special_tokens=True)[0].strip()


@pytest.mark.parametrize("model_type", ["bart", "pegasus", "t5"])
async def test_batch_of_texts_equals_the_reference(tmp_path: Path, model_type: str):
    folder = tiny_summarizer(tmp_path, model_type)
    prefix = "the " if model_type == "t5" else ""
    expected = [reference(folder, prefix + text, **_GENERATION[model_type]) for text in TEXTS]
    outputs = load_in_worker(folder, "cpu").run([TextPart(text) for text in TEXTS])
    assert [output.text for output in outputs] == expected
    assert len(set(expected)) > 1, "different texts have different summaries"


async def test_maximum_length_limits_the_summary(summarizer: Summarizer):
    _, long = await summarize(summarizer, TEXTS[0])
    _, short = await summarize(summarizer, TEXTS[0], max_length=10)
    assert short.usage.completion_tokens <= 10 < long.usage.completion_tokens <= 32
    assert short.usage.prompt_tokens == 11  # nine words and two special tokens


async def test_text_longer_than_the_context_is_read_to_its_end(summarizer: Summarizer):
    _, finished = await summarize(summarizer, f"{TEXTS[0]}. " * 60)
    assert finished.usage.prompt_tokens > 60 * 10
