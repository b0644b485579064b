"""Reader of recordings: WAV, FLAC, MP3 and Ogg Vorbis to 16-bit mono samples at 16,000 Hz, with `miniaudio`."""

from __future__ import annotations

import array

import miniaudio

from documents.errors import DocumentRefused
from documents.options import Options

SAMPLE_RATE = 16_000
MAX_SECONDS = 15 * 60
MAX_CHANNELS = 2  # the library clips when it mixes more
_FRAMES_PER_CHUNK = SAMPLE_RATE
_UNREADABLE = "the recording is damaged, or neither WAV, FLAC, MP3 nor Ogg Vorbis"


def read(data: bytes, _name: str, _options: Options) -> bytes:
    """Return the samples as little-endian 16-bit integers, channels mixed to one. Raises DocumentRefused."""
    if (num_channels := _num_channels(data)) > MAX_CHANNELS:
        raise DocumentRefused(f"the recording has {num_channels} channels; at most {MAX_CHANNELS} are supported")
    samples = array.array("h")
    try:
        for chunk in miniaudio.stream_memory(
            data,
            output_format=miniaudio.SampleFormat.SIGNED16,
            nchannels=1,
            sample_rate=SAMPLE_RATE,
            frames_to_read=_FRAMES_PER_CHUNK,
        ):
            samples.extend(chunk)
            if len(samples) > MAX_SECONDS * SAMPLE_RATE:
                raise DocumentRefused(f"the recording is longer than {MAX_SECONDS} seconds")
    except miniaudio.MiniaudioError:
        raise DocumentRefused(_UNREADABLE) from None
    if not samples:
        raise DocumentRefused("the recording has no samples")
    return samples.tobytes()


def _num_channels(data: bytes) -> int:
    """Return the number of channels in a file's header. Raises DocumentRefused."""
    for get_info in (
        miniaudio.wav_get_info,
        miniaudio.flac_get_info,
        miniaudio.vorbis_get_info,
        miniaudio.mp3_get_info,
    ):
        try:
            return int(get_info(data).nchannels)
        except miniaudio.MiniaudioError:
            continue
    raise DocumentRefused(_UNREADABLE)
