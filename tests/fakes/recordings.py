"""Recordings made for tests: WAV files of a tone."""

from __future__ import annotations

import array
import io
import math
import wave


def tone(seconds: float, *, rate: int = 16_000, channels: int = 1, frequency: float = 440.0) -> bytes:
    """Return a WAV file with a tone of half the full amplitude in every channel."""
    samples = array.array("h")
    for number in range(int(seconds * rate)):
        value = int(16384 * math.sin(2 * math.pi * frequency * number / rate))
        samples.extend([value] * channels)
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(channels)
        written.setsampwidth(2)
        written.setframerate(rate)
        written.writeframes(samples.tobytes())
    return file.getvalue()
