"""documents/audio.py: recordings become 16-bit mono samples at 16 kHz, or are refused with a reason."""

from __future__ import annotations

import array
import asyncio
import itertools
from collections.abc import Callable, Iterator

import pytest

from documents.audio import MAX_SECONDS, SAMPLE_RATE
from documents.converter import Converter
from documents.kinds import AUDIO
from documents.messages import Outcome
from documents.options import Options
from tests.fakes.recordings import tone

Decode = Callable[[bytes], Outcome]


@pytest.fixture(scope="module")
def decode() -> Iterator[Decode]:
    with asyncio.Runner() as runner:
        converter = Converter()
        yield lambda data: runner.run(converter.convert("audio", AUDIO, data, Options()))
        runner.run(converter.close())


@pytest.mark.parametrize(("rate", "channels"), [(16_000, 1), (44_100, 2), (8_000, 1), (48_000, 2)])
def test_recording_of_any_rate_becomes_mono_at_16_khz(decode: Decode, rate: int, channels: int):
    outcome = decode(tone(1.5, rate=rate, channels=channels))
    assert outcome.refusal == ""
    samples = array.array("h", outcome.samples)
    assert abs(len(samples) - 1.5 * SAMPLE_RATE) < 0.02 * SAMPLE_RATE
    crossings = sum(before < 0 <= after for before, after in itertools.pairwise(samples))
    assert abs(crossings - 440 * 1.5) < 10  # the tone is still the same
    assert 12_000 < max(samples) < 20_000


@pytest.mark.parametrize(
    "data", [b"", b"no recording", b"RIFF\xff\xff\xff\xffWAVEfmt ", b"ID3" + bytes(1000), b"fLaC" + b"\xff" * 1000]
)
def test_damaged_recording_is_refused_with_a_reason(decode: Decode, data: bytes):
    outcome = decode(data)
    assert outcome.refusal.startswith("the recording ")
    assert not outcome.samples


def test_recording_with_many_channels_is_refused(decode: Decode):
    assert decode(tone(0.1, channels=6)).refusal == "the recording has 6 channels; at most 2 are supported"


def test_truncated_recording_is_decoded_as_far_as_it_goes(decode: Decode):
    outcome = decode(tone(2.0)[: 44 + 2 * SAMPLE_RATE])
    assert len(outcome.samples) // 2 <= SAMPLE_RATE


def test_too_long_recording_is_refused(decode: Decode):
    quiet = tone(0.0, rate=8000)[:4] + b"\xff\xff\xff\x7f" + tone(0.0, rate=8000)[8:40]
    data = quiet + b"\xff\xff\xff\x7f" + bytes(2 * 8000 * (MAX_SECONDS + 2))
    assert decode(data).refusal == f"the recording is longer than {MAX_SECONDS} seconds"
