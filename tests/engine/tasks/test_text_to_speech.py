"""Text to speech: sentences, formats and rates, equality with `transformers` on small random weights, programs."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import miniaudio
import numpy as np
import pytest
import pytest_asyncio
import torch
from transformers import VitsConfig, VitsModel, VitsTokenizer

from engine.processes.zygote import Zygote
from engine.protocol.events import Data, Event, Failed, Finished
from engine.protocol.tasks.text_to_speech import TextToSpeech
from engine.tasks.loading import ModelLoadError
from engine.tasks.one_pass.text_to_speech import resample
from engine.tasks.text_to_speech import MAX_SENTENCE_CHARACTERS, Speaker, load, sentences
from engine.tasks.work import Refused, Work
from tests.fakes.one_pass import load_request
from tests.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

RATE = 16_000


async def test_text_is_cut_after_sentences_and_long_sentences_between_words():
    text = "It costs 3.50 dollars. Really?! Yes.\n\nNext line 今日は。元気?"
    assert sentences(text) == ["It costs 3.50 dollars.", "Really?!", "Yes.", "Next line 今日は。", "元気?"]
    long = sentences("word " * 200 + "end.")
    assert len(long) > 1
    assert max(map(len, long)) <= MAX_SENTENCE_CHARACTERS
    assert " ".join(long) == "word " * 200 + "end."
    assert sentences("...") == ["..."]
    assert "".join(sentences("x" * 1000)) == "x" * 1000


async def test_resampling_keeps_pitch_loudness_and_length():
    tone = np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000).astype(np.float32)
    higher = resample(tone, 16_000, 24_000)
    expected = np.sin(2 * np.pi * 440 * np.arange(24_000) / 24_000)
    assert len(higher) == 24_000
    assert np.abs(higher - expected).max() < 0.01
    assert np.abs(resample(higher, 24_000, 16_000) - tone).max() < 0.01


@pytest.fixture(scope="module")
def tiny_vits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A VITS of random weights, whose tokens are letters."""
    folder = tmp_path_factory.mktemp("vits")
    vocabulary = {character: number for number, character in enumerate(" abcdefghijklmnopqrstuvwxyz")} | {"<pad>": 27}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    tokenizer = VitsTokenizer(str(folder / "vocab.json"), phonemize=False, is_uroman=False, pad_token="<pad>")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = VitsConfig(
        vocab_size=28, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, ffn_dim=64, flow_size=32,
        spectrogram_bins=9, prior_encoder_num_flows=1, prior_encoder_num_wavenet_layers=1,
        posterior_encoder_num_wavenet_layers=1, upsample_initial_channel=32, upsample_rates=[4, 4],
        upsample_kernel_sizes=[8, 8], resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1]],
        duration_predictor_num_flows=1, depth_separable_num_layers=1, sampling_rate=RATE,
    )  # fmt: skip
    VitsModel(config).eval().save_pretrained(folder)
    return folder


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def speaker(zygote: Zygote, tiny_vits: Path) -> AsyncIterator[Speaker]:
    speaker = await load(load_request(zygote, tiny_vits))
    yield speaker
    await speaker.close()


async def speak(speaker: Speaker, text: str, **options) -> list[Event]:
    events: list[Event] = []
    task = TextToSpeech(text=text, **({"format": "pcm", "sample_rate": RATE} | options))
    await speaker.start(Work(task, bytes(32), 1), events.append)
    await wait_until(lambda: bool(events) and isinstance(events[-1], Finished | Failed))
    return events


def audio_of(events: list[Event]) -> bytes:
    return b"".join(event.data for event in events if isinstance(event, Data))


async def test_vits_of_random_weights_speaks_as_transformers_does(speaker: Speaker, tiny_vits: Path):
    model = VitsModel.from_pretrained(tiny_vits).eval()
    tokenizer = VitsTokenizer.from_pretrained(tiny_vits)
    torch.manual_seed(0)
    with torch.inference_mode():
        expected = model(**tokenizer("good morning", return_tensors="pt")).waveform[0].numpy()
    spoken = np.frombuffer(audio_of(await speak(speaker, "good morning")), "<i2").astype(np.float32) / 32767
    assert np.abs(spoken[: len(expected)] - np.clip(expected, -1, 1)).max() < 1e-3
    assert not spoken[len(expected) :].any()  # the pause after the sentence


async def test_each_sentence_is_an_event_and_usage_has_characters_and_seconds(speaker: Speaker):
    _, *pieces, finished = await speak(speaker, "One two. Three four.")
    assert len(pieces) == 2
    assert isinstance(finished, Finished)
    num_samples = len(audio_of(pieces)) // 2
    assert finished.usage.num_characters == len("One two.") + len("Three four.")
    assert finished.usage.audio_ms == pytest.approx(num_samples * 1000 / RATE, abs=2)


async def test_mp3_has_the_length_and_the_rate_of_the_samples(speaker: Speaker):
    samples = audio_of(await speak(speaker, "good morning my friend", sample_rate=24_000))
    file = audio_of(await speak(speaker, "good morning my friend", format="mp3", sample_rate=24_000))
    decoded = miniaudio.decode(file, nchannels=1, sample_rate=24_000)
    assert decoded.sample_rate == 24_000
    assert decoded.num_frames == pytest.approx(len(samples) // 2, abs=24_000 * 0.1)


async def test_cancelled_speech_is_charged_for_the_sentences_that_were_sent(speaker: Speaker):
    events: list[Event] = []
    task = TextToSpeech(text="good morning. " * 50, format="pcm", sample_rate=RATE)
    run = await speaker.start(Work(task, bytes(32), 1), events.append)
    await wait_until(lambda: any(isinstance(event, Data) for event in events))
    usage = run.cancel()
    num_pieces = len(events)
    assert 0 < usage.num_characters < 50 * len("good morning.")
    await speak(speaker, "another call")
    assert len(events) == num_pieces


@pytest.mark.parametrize("text", ["!!!", "123", "今日は"])
async def test_text_without_tokens_of_the_model_is_a_pause(speaker: Speaker, text: str):
    events = await speak(speaker, text)
    assert isinstance(events[-1], Finished)
    assert not np.frombuffer(audio_of(events), "<i2").any()


async def test_well_known_voice_is_the_default_and_an_unknown_one_is_refused(speaker: Speaker):
    assert isinstance((await speak(speaker, "hello", voice="alloy"))[-1], Finished)
    with pytest.raises(Refused, match="'/voice' must be one of 0"):
        await speak(speaker, "hello", voice="darth")


PROGRAM = """#!{python}
import sys, wave
text = sys.stdin.read()
arguments = sys.argv[1:]
if "fail" in text:
    sys.exit("no such word")
with wave.open(arguments[arguments.index("-o") + 1], "wb") as file:
    file.setparams((1, 2, 16000, 0, "NONE", ""))
    file.writeframes(bytes([0, 64]) * (100 * len(text)))
"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def program(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Speaker]:
    """A model that is a program, and a program of its name that writes 100 samples for each character."""
    folder = tmp_path_factory.mktemp("program")
    config = {"model_type": "flite", "package": "flite", "sampling_rate": RATE, "voices": {"slt": "en-us"}}
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["SpeechProgram"]}))
    file = folder / "bin" / "flite"
    file.parent.mkdir()
    file.write_text(PROGRAM.format(python=sys.executable))
    file.chmod(0o755)
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{file.parent}:{path}"
    zygote = Zygote()
    await zygote.start()
    speaker = await load(load_request(zygote, folder))
    os.environ["PATH"] = path
    yield speaker
    await asyncio.gather(speaker.close(), zygote.close())


async def test_program_speaks_and_its_failure_ends_only_its_call(program: Speaker):
    events = await speak(program, "hello")
    samples = np.frombuffer(audio_of(events), "<i2")
    assert np.count_nonzero(samples) == 100 * len("hello\n")
    failed = (await speak(program, "please fail"))[-1]
    assert isinstance(failed, Failed)
    assert not failed.is_retryable
    assert isinstance((await speak(program, "hello"))[-1], Finished)


async def test_language_that_no_voice_speaks_is_refused(program: Speaker):
    assert isinstance((await speak(program, "hello", language="en"))[-1], Finished)
    with pytest.raises(Refused, match="this model speaks en-us only"):
        await speak(program, "bonjour", language="fr")


async def test_missing_program_is_named_with_its_package(zygote: Zygote, tmp_path: Path):
    config = {"model_type": "espeak-ng", "package": "espeak-ng", "sampling_rate": RATE, "voices": {"en": "en"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="the program espeak-ng is not installed: apt-get install espeak-ng"):
        await load(load_request(zygote, tmp_path))
