"""Models that speak, in their worker process: a sentence to encoded audio.

Two kinds of folders: VITS with safetensors, which runs with `transformers`, and a `config.json` that names a program of
the operating system, which is started for each sentence. Never runs code of a model.
"""

from __future__ import annotations

import json
import re
import tempfile
import wave
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from engine.tasks.one_pass.programs import Program, ProgramFailed, find_program
from engine.tasks.one_pass.transformers_models import import_transformers
from engine.tasks.text_to_speech import Sentence, SpeakingModelInfo, SpokenSentence

_MODEL_TYPES = ("vits", "flite", "espeak-ng")
_MP3_KBIT_PER_S = 64
_ESPEAK_WORDS_PER_MINUTE = 175
_PAUSE_S = 0.15  # between sentences
_VOICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]{0,63}")


class UnsupportedModel(ValueError):
    """The folder does not contain a supported model."""


class _Voice(Protocol):
    """A speech synthesizer: a model or a program."""

    voices: dict[str, str]
    sample_rate: int

    def speak(self, sentence: Sentence) -> np.ndarray:
        """Return the speech as float32 between -1 and 1, at `sample_rate`."""
        ...


def load(model_dir: Path, device: str) -> SpeakingModel:
    """Load the model of a folder. Raises UnsupportedModel, OSError, ValueError or KeyError."""
    config = json.loads((model_dir / "config.json").read_text())
    model_type = config.get("model_type")
    if "auto_map" in config or model_type not in _MODEL_TYPES:
        raise UnsupportedModel(f"models that speak are {', '.join(_MODEL_TYPES)} without code of their own")
    if model_type == "vits":
        return SpeakingModel(VitsVoice(model_dir, config, device))
    return SpeakingModel(ProgramVoice(config))


class SpeakingModel:
    """A loaded model, a `WorkerModel`."""

    item_type = Sentence

    def __init__(self, voice: _Voice) -> None:
        self._voice = voice
        self.info = SpeakingModelInfo(voice.voices)

    def warm_up(self) -> None:
        self.run([Sentence("Hello.", next(iter(self.info.voices)), 1.0, "pcm", self._voice.sample_rate)])

    def run(self, items: list[Sentence]) -> list[SpokenSentence]:
        """Return the audio of each sentence."""
        return [self._run(item) for item in items]

    def _run(self, item: Sentence) -> SpokenSentence:
        try:
            waveform = resample(self._voice.speak(item), self._voice.sample_rate, item.sample_rate)
        except ProgramFailed as error:
            return SpokenSentence(b"", 0, 0, str(error))
        waveform = np.concatenate([waveform, np.zeros(int(item.sample_rate * _PAUSE_S), np.float32)])
        samples = (np.clip(waveform, -1, 1) * 32767).astype("<i2").tobytes()
        audio = _encode_mp3(samples, item.sample_rate) if item.format == "mp3" else samples
        return SpokenSentence(audio, len(waveform) * 1000 // item.sample_rate, len(item.text))


class VitsVoice:
    """VITS with `transformers`. Equal texts give equal speech."""

    def __init__(self, model_dir: Path, config: dict[str, Any], device: str) -> None:
        transformers = import_transformers()
        options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir, **options)
        if getattr(self._tokenizer, "phonemize", False) or getattr(self._tokenizer, "is_uroman", False):
            raise UnsupportedModel("VITS models that need phonemizer or uroman are not supported")
        model = transformers.VitsModel.from_pretrained(model_dir, use_safetensors=True, dtype=torch.float32, **options)
        self._model = model.eval().to(torch.device(device))
        self.sample_rate = int(config["sampling_rate"])
        language = str(config.get("language") or getattr(self._tokenizer, "language", "") or "")[:2]
        self.voices = {str(number): language for number in range(max(1, int(config.get("num_speakers", 1))))}

    @torch.inference_mode()
    def speak(self, sentence: Sentence) -> np.ndarray:
        inputs = self._tokenizer(sentence.text, return_tensors="pt").to(self._model.device)
        if inputs["input_ids"].numel() < 2:  # nothing that the model has tokens for
            return np.zeros(0, np.float32)
        self._model.speaking_rate = sentence.speed * self._model.config.speaking_rate
        torch.manual_seed(0)
        speaker = int(sentence.voice) if len(self.voices) > 1 else None
        waveform = self._model(**inputs, speaker_id=speaker).waveform[0]
        return np.asarray(waveform.float().cpu().numpy(), np.float32)


class ProgramVoice:
    """A program that writes a WAV file. `config` has its `model_type`, `package`, `voices` and `sampling_rate`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._name = str(config["model_type"])
        self._program: Program = find_program(self._name, str(config["package"]))
        self.sample_rate = int(config["sampling_rate"])
        self.voices = {str(name): str(language) for name, language in config["voices"].items()}
        if not self.voices or not all(map(_VOICE.fullmatch, self.voices)):
            raise UnsupportedModel("config.json: voices must be an object of names and languages")

    def speak(self, sentence: Sentence) -> np.ndarray:
        with tempfile.TemporaryDirectory(prefix="hearth-speech-") as folder:
            file = Path(folder) / "speech.wav"
            arguments = _ARGUMENTS[self._name](sentence, str(file))
            self._program.run(arguments, " ".join(sentence.text.split()) + "\n")
            with wave.open(str(file), "rb") as recording:
                if recording.getsampwidth() != 2 or recording.getnchannels() != 1:
                    raise ProgramFailed(f"{self._name} wrote a file that is not 16-bit mono")
                samples = np.frombuffer(recording.readframes(recording.getnframes()), "<i2")
                rate = recording.getframerate()
        return resample(samples.astype(np.float32) / 32768, rate, self.sample_rate)


def _flite(sentence: Sentence, file: str) -> list[str]:
    return ["-voice", sentence.voice, "--setf", f"duration_stretch={1 / sentence.speed:.3f}", "-o", file, "-"]


def _espeak(sentence: Sentence, file: str) -> list[str]:
    words_per_minute = str(round(_ESPEAK_WORDS_PER_MINUTE * sentence.speed))
    return ["--stdin", "-b", "1", "-v", sentence.voice, "-s", words_per_minute, "-w", file]


_ARGUMENTS: dict[str, Callable[[Sentence, str], list[str]]] = {"flite": _flite, "espeak-ng": _espeak}


def resample(waveform: np.ndarray, from_rate: int, to_rate: int) -> np.ndarray:
    """Return the waveform at another sample rate, limited to the frequencies that both rates can have."""
    if from_rate == to_rate or not len(waveform):
        return waveform
    num_samples = max(1, round(len(waveform) * to_rate / from_rate))
    spectrum = np.fft.rfft(waveform)[: num_samples // 2 + 1]
    return (np.fft.irfft(spectrum, num_samples) * (num_samples / len(waveform))).astype(np.float32)


def _encode_mp3(samples: bytes, sample_rate: int) -> bytes:
    """Return 16-bit mono samples as MP3 frames."""
    try:
        import lameenc
    except ImportError:
        raise RuntimeError("MP3 needs the package lameenc: pip install 'hearth[speech]'") from None
    encoder = lameenc.Encoder()
    encoder.silence()
    encoder.set_bit_rate(_MP3_KBIT_PER_S)
    encoder.set_in_sample_rate(sample_rate)
    encoder.set_out_sample_rate(sample_rate)
    encoder.set_channels(1)
    encoder.set_quality(5)  # 2 is the best, 7 the fastest
    return bytes(encoder.encode(samples) + encoder.flush())
