"""Speech detector: turn the speech probabilities of consecutive frames into starts and ends of speech. Pure.

Speech starts with several frames above the threshold, and ends after a silence of a given length. The end lies where
that silence began.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

FRAME_SAMPLES = 512
FRAME_MS = 32

_THRESHOLD = 0.5  # probability above which a frame is speech
_QUIET_THRESHOLD = 0.35  # probability below which a frame of speech is silence
_START_FRAMES = 3


@dataclass
class SpeechDetector:
    """The state after a number of frames. `start_frame` is the first frame of the latest speech; `num_quiet` counts the
    silent frames at the end of running speech."""

    silence_frames: int
    num_frames: int = 0
    start_frame: int = 0
    num_quiet: int = 0
    is_speaking: bool = False
    _num_loud: int = 0

    def push(self, probability: float) -> bool:
        """Add the next frame. Return True if speech starts or ends with this frame."""
        self.num_frames += 1
        if not self.is_speaking:
            self._num_loud = self._num_loud + 1 if probability >= _THRESHOLD else 0
            if self._num_loud < _START_FRAMES:
                return False
            self.start_frame = self.num_frames - _START_FRAMES
            self.is_speaking = True
            self.num_quiet = 0
            return True
        if probability >= _THRESHOLD:
            self.num_quiet = 0
        elif probability < _QUIET_THRESHOLD or self.num_quiet:
            self.num_quiet += 1
        if self.num_quiet < self.silence_frames:
            return False
        self.end()
        return True

    @property
    def end_frame(self) -> int:
        """The frame at which the silence began that ended the latest speech, or that may end the running speech."""
        return self.num_frames - self.num_quiet

    def end(self) -> None:
        """End running speech at the latest frame."""
        self.is_speaking = False
        self._num_loud = 0


def speech_spans(probabilities: Iterable[float], silence_frames: int) -> list[tuple[int, int]]:
    """Return (first frame, frame after the last) of each span of speech in a whole recording."""
    detector, spans = SpeechDetector(silence_frames), []
    for probability in probabilities:
        if detector.push(probability) and not detector.is_speaking:
            spans.append((detector.start_frame, detector.end_frame))
    if detector.is_speaking:
        spans.append((detector.start_frame, detector.end_frame))
    return spans
