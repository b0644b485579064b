"""Silero VAD in its worker process: frames of 512 samples to speech probabilities, with `onnxruntime`.

Frames of several streams run in one batch, one frame of each stream at a time, because a frame's state depends on the
frame before. Never runs code of a model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from engine.protocol.speech_detector import FRAME_SAMPLES
from engine.protocol.tasks.automatic_speech_recognition import SAMPLE_RATE
from engine.tasks.voice_activity_detection import (
    CONTEXT_SAMPLES,
    MODEL_STATE_BYTES,
    FrameOutputs,
    Frames,
    VadModelInfo,
)

_WINDOW = CONTEXT_SAMPLES + FRAME_SAMPLES
_RATE = np.array(SAMPLE_RATE, np.int64)


class UnsupportedModel(ValueError):
    """The folder does not contain a supported voice activity model."""


def load(model_dir: Path, _device: str) -> SileroVad:
    """Load the model of a folder. Raises UnsupportedModel, OSError, ValueError or KeyError."""
    config = json.loads((model_dir / "config.json").read_text())
    if "auto_map" in config or config.get("model_type") != "silero_vad":
        raise UnsupportedModel("voice activity models are silero_vad without code of their own")
    return SileroVad(model_dir / "model.onnx")


class SileroVad:
    """One loaded model, a `WorkerModel`."""

    item_type = Frames

    def __init__(self, file: Path) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise UnsupportedModel("ONNX models need the package onnxruntime: pip install 'hearth[speech]'") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # a frame takes less than a millisecond
        options.log_severity_level = 3
        self._session: Any = onnxruntime.InferenceSession(file, options, ["CPUExecutionProvider"])
        self.info = VadModelInfo()

    def warm_up(self) -> None:
        self.run([Frames(bytes(2 * _WINDOW), b"")])

    def run(self, items: list[Frames]) -> list[FrameOutputs]:
        """Return the probabilities of each item's frames."""
        waves = [np.frombuffer(item.samples, "<i2").astype(np.float32) / 32768 for item in items]
        counts = [(len(wave) - CONTEXT_SAMPLES) // FRAME_SAMPLES for wave in waves]
        states = np.stack([_state_of(item) for item in items], 1)  # [2, items, 128]
        found: list[list[float]] = [[] for _ in items]
        for number in range(max(counts)):
            rows = [row for row, count in enumerate(counts) if number < count]
            start = number * FRAME_SAMPLES
            inputs = np.stack([waves[row][start : start + _WINDOW] for row in rows])  # [rows, window]
            outputs, after = self._session.run(None, {"input": inputs, "state": states[:, rows], "sr": _RATE})
            states[:, rows] = after
            for row, probability in zip(rows, outputs[:, 0].tolist(), strict=True):
                found[row].append(probability)
        return [FrameOutputs(each, states[:, row].tobytes()) for row, each in enumerate(found)]


def _state_of(item: Frames) -> np.ndarray:
    """Return the state before the first frame, float32 [2, 128]."""
    return np.frombuffer(item.state or bytes(MODEL_STATE_BYTES), "<f4").reshape(2, 128)
