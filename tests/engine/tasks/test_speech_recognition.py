"""Speech recognition: cutting at quiet moments, times, and equality with `transformers` on small random models."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperTokenizer

from engine.processes.zygote import Zygote
from engine.protocol.events import Event, Finished
from engine.protocol.tasks.automatic_speech_recognition import SAMPLE_RATE, AutomaticSpeechRecognition, Transcript
from engine.tasks.automatic_speech_recognition import MAX_PART_S, SpeechRecognizer, cut, load
from engine.tasks.loading import ModelLoadError
from engine.tasks.work import Refused, Work
from tests.fakes.one_pass import load_request
from tests.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    """Return loud noise as 16-bit samples."""
    return np.random.default_rng(seed).integers(-20_000, 20_000, int(seconds * SAMPLE_RATE), dtype=np.int16)


async def test_short_recording_is_one_part():
    assert list(cut(noise(MAX_PART_S))) == [(0, MAX_PART_S * SAMPLE_RATE)]


async def test_long_recording_is_cut_in_its_pauses():
    pause = np.zeros(SAMPLE_RATE, np.int16)
    samples = np.concatenate([noise(18), pause, noise(15), pause, noise(20)])
    parts = list(cut(samples))
    assert [start for start, _ in parts[1:]] == [end for _, end in parts[:-1]]
    assert (parts[0][0], parts[-1][1]) == (0, len(samples))
    ends_s = [end / SAMPLE_RATE for _, end in parts[:-1]]
    first_s, second_s = ends_s
    assert 18 <= first_s <= 19
    assert 34 <= second_s <= 35
    assert all((end - start) <= MAX_PART_S * SAMPLE_RATE for start, end in parts)


@pytest.fixture(scope="module")
def tiny_whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Whisper of random weights, whose tokens are the 256 bytes."""
    folder = tmp_path_factory.mktemp("whisper")
    vocabulary = {chr(number + 256): number for number in range(256)} | {"<|endoftext|>": 256}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = WhisperTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=300, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=80, max_target_positions=64,
        pad_token_id=256, bos_token_id=256, eos_token_id=256, decoder_start_token_id=256, suppress_tokens=None,
        begin_suppress_tokens=None,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    model.generation_config.is_multilingual = False
    model.save_pretrained(folder)
    WhisperFeatureExtractor().save_pretrained(folder)
    return folder


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def recognizer(zygote: Zygote, tiny_whisper: Path) -> AsyncIterator[SpeechRecognizer]:
    recognizer = await load(load_request(zygote, tiny_whisper))
    yield recognizer
    await recognizer.close()


async def transcribe(recognizer: SpeechRecognizer, samples: np.ndarray, language: str = "") -> list[Event]:
    events: list[Event] = []
    task = AutomaticSpeechRecognition(audio=samples.tobytes(), language=language)
    await recognizer.start(Work(task, bytes(32), 1), events.append)
    await wait_until(lambda: bool(events) and isinstance(events[-1], Finished))
    return events


async def test_whisper_of_random_weights_transcribes_as_transformers_does(
    recognizer: SpeechRecognizer, tiny_whisper: Path
):
    samples = noise(3)
    model = WhisperForConditionalGeneration.from_pretrained(tiny_whisper).eval()
    features = WhisperFeatureExtractor.from_pretrained(tiny_whisper)(
        samples.astype(np.float32) / 32768, sampling_rate=SAMPLE_RATE, return_tensors="pt"
    )
    tokenizer = WhisperTokenizer.from_pretrained(tiny_whisper)
    expected = model.generate(**features, do_sample=False, max_new_tokens=int(3 * 6.5) + 8)
    text = tokenizer.batch_decode(expected, skip_special_tokens=True)[0].strip()
    _, result, finished = await transcribe(recognizer, samples)
    assert Transcript.of_result(result).text.split() == text.split()
    assert (finished.usage.audio_ms, finished.usage.prompt_tokens) == (3000, 0)


async def test_times_cover_the_recording_in_order(recognizer: SpeechRecognizer):
    _, result, _ = await transcribe(recognizer, noise(40))
    transcript = Transcript.of_result(result)
    assert transcript.duration_s == 40.0
    times = [time for word in transcript.words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= 40.01


@pytest.mark.parametrize(("samples", "language"), [(noise(0.05), ""), (noise(1), "xx")])
async def test_unusable_recording_and_language_are_refused(
    recognizer: SpeechRecognizer, samples: np.ndarray, language: str
):
    with pytest.raises(Refused):
        await transcribe(recognizer, samples, language)


async def test_folder_of_another_model_type_does_not_load(zygote: Zygote, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ModelLoadError, match="speech models are whisper and moonshine"):
        await load(load_request(zygote, tmp_path))
