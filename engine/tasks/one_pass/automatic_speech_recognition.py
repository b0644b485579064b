"""Speech models in their worker process: 16-bit samples to text.

Two kinds of folders: Whisper and Moonshine with safetensors, which run with `transformers`, and Moonshine's ONNX
export (`encoder_model.onnx`, `decoder_model_merged.onnx`), which runs with `onnxruntime`. Never runs code of a model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.protocol.tasks.automatic_speech_recognition import SAMPLE_RATE
from engine.tasks.automatic_speech_recognition import AudioPart, SpeechModelInfo
from engine.tasks.one_pass.transformers_models import import_transformers

_MODEL_TYPES = ("whisper", "moonshine")
_TOKENS_PER_S = 6.5  # faster than anyone speaks; limits repetitions of a model that does not find its end
_SPARE_TOKENS = 8
_MAX_BATCH = 8
_START, _END = 1, 2  # Moonshine's token ids


class UnsupportedModel(ValueError):
    """The folder does not contain a supported speech model."""


def load(model_dir: Path, device: str) -> TransformersSpeechModel | OnnxMoonshine:
    """Load the model of a folder. Raises UnsupportedModel, OSError, ValueError or KeyError."""
    config = json.loads((model_dir / "config.json").read_text())
    if "auto_map" in config or config.get("model_type") not in _MODEL_TYPES:
        raise UnsupportedModel(f"speech models are {' and '.join(_MODEL_TYPES)} without code of their own")
    if (model_dir / "encoder_model.onnx").is_file():
        return OnnxMoonshine(model_dir, config)
    return TransformersSpeechModel(model_dir, config, device)


class OnnxMoonshine:
    """Moonshine in ONNX. Parts run one by one, because the export has no mask for padding."""

    item_type = AudioPart

    def __init__(self, model_dir: Path, config: dict[str, Any]) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise UnsupportedModel("ONNX models need the package onnxruntime: pip install 'hearth[speech]'") from None
        from tokenizers import Tokenizer

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        providers = ["CPUExecutionProvider"]
        self._encoder = onnxruntime.InferenceSession(model_dir / "encoder_model.onnx", options, providers)
        self._decoder = onnxruntime.InferenceSession(model_dir / "decoder_model_merged.onnx", options, providers)
        self._cache_names = [each.name for each in self._decoder.get_inputs() if each.name.startswith("past_key")]
        self._num_heads = int(config["decoder_num_key_value_heads"])
        self._head_size = int(config["hidden_size"]) // int(config["decoder_num_attention_heads"])
        self._tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        self.info = SpeechModelInfo(tuple(config.get("languages", ())))

    def warm_up(self) -> None:
        self.run([AudioPart(bytes(2 * SAMPLE_RATE), "", "")])

    def run(self, items: list[AudioPart]) -> list[str]:
        """Return the text of each part."""
        return [self._tokenizer.decode(self._token_ids(_waveform(item))) for item in items]

    def _token_ids(self, waveform: np.ndarray) -> list[int]:
        """Return the ids of greedy decoding. `waveform` is float32, [samples]."""
        hidden = self._encoder.run(None, {"input_values": waveform[None]})[0]  # [1, frames, D]
        empty = np.zeros((0, self._num_heads, 1, self._head_size), np.float32)
        cache = dict.fromkeys(self._cache_names, empty)
        token_ids, latest = [], _START
        for step in range(_max_tokens(waveform)):
            inputs = {
                "input_ids": np.array([[latest]], np.int64),
                "encoder_hidden_states": hidden,
                "use_cache_branch": np.array([step > 0]),
            }
            logits, *present = self._decoder.run(None, inputs | cache)
            latest = int(logits[0, -1].argmax())
            if latest == _END:
                break
            token_ids.append(latest)
            # The keys and values of the encoder are computed in the first step only.
            for name, value in zip(self._cache_names, present, strict=True):
                if step == 0 or ".decoder." in name:
                    cache[name] = value
        return token_ids


class TransformersSpeechModel:
    """Whisper or Moonshine with `transformers`, decoded greedily in batches."""

    item_type = AudioPart

    def __init__(self, model_dir: Path, config: dict[str, Any], device: str) -> None:
        transformers = import_transformers()
        options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        self._processor = transformers.AutoProcessor.from_pretrained(model_dir, **options)
        model = transformers.AutoModelForSpeechSeq2Seq.from_pretrained(
            model_dir, use_safetensors=True, dtype=torch.float32, **options
        )
        self._model = model.eval().to(torch.device(device))
        self._is_whisper = config["model_type"] == "whisper"
        positions = config["max_target_positions" if self._is_whisper else "max_position_embeddings"]
        self._max_tokens = int(positions) - _SPARE_TOKENS
        is_multilingual = getattr(model.generation_config, "is_multilingual", False)
        languages = getattr(model.generation_config, "lang_to_id", None) or {}
        codes = tuple(code.strip("<|>") for code in languages) if is_multilingual else ()
        self.info = SpeechModelInfo(codes if is_multilingual else ("en",))

    def warm_up(self) -> None:
        self.run([AudioPart(bytes(2 * SAMPLE_RATE), "", "")])

    def run(self, items: list[AudioPart]) -> list[str]:
        """Return the text of each part. Parts of one language share batches."""
        texts = [""] * len(items)
        for language in sorted({item.language for item in items}):
            numbers = [number for number, item in enumerate(items) if item.language == language]
            for first in range(0, len(numbers), _MAX_BATCH):
                batch = numbers[first : first + _MAX_BATCH]
                for number, text in zip(batch, self._transcribe([items[each] for each in batch]), strict=True):
                    texts[number] = text
        return texts

    @torch.inference_mode()
    def _transcribe(self, items: list[AudioPart]) -> list[str]:
        waveforms = [_waveform(item) for item in items]
        inputs = self._processor(
            waveforms,
            sampling_rate=SAMPLE_RATE,
            return_tensors="pt",
            padding="max_length" if self._is_whisper else True,
        ).to(self._model.device)
        options: dict[str, Any] = {
            "do_sample": False,
            "max_new_tokens": min(self._max_tokens, max(map(_max_tokens, waveforms))),
        }
        if self._is_whisper and len(self.info.languages) > 1:
            options |= {"task": "transcribe", "language": items[0].language or None}
        token_ids = self._model.generate(**inputs, **options)
        texts: list[str] = self._processor.batch_decode(token_ids, skip_special_tokens=True)
        return texts


def _waveform(item: AudioPart) -> np.ndarray:
    """Return the samples as float32 between -1 and 1."""
    return np.frombuffer(item.samples, dtype="<i2").astype(np.float32) / 32768


def _max_tokens(waveform: np.ndarray) -> int:
    return int(len(waveform) / SAMPLE_RATE * _TOKENS_PER_S) + _SPARE_TOKENS
