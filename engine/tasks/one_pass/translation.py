"""Translation models in their worker process: Marian, M2M100 and NLLB with `transformers`, and the program `apertium`.

A model of `apertium` is a folder with a `config.json` that names its `pair`, such as `eng-spa`, and no weights.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

from engine.tasks.one_pass.seq2seq import Seq2SeqModel
from engine.tasks.one_pass.transformers_models import UnsupportedModel, read_config
from engine.tasks.text_parts import PartOutput, TextPart
from engine.tasks.translation import TranslationModelInfo

_MODEL_TYPES = ("marian", "m2m_100", "apertium")
_NLLB_CODE = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}")
_LENGTH_STEP = 64  # tokens
_SPARE_TOKENS = 32
_APERTIUM_TIMEOUT_S = 60
_APERTIUM_CHARACTERS = 5000
_CHARACTERS_PER_TOKEN = 4


def load(model_dir: Path, device: str) -> TranslationModel | Apertium:
    """Load the model of a folder. Raises UnsupportedModel, OSError, ValueError or KeyError."""
    config = read_config(model_dir, _MODEL_TYPES, "translation models")
    if config["model_type"] == "apertium":
        return Apertium(config)
    return TranslationModel(model_dir, config, device)


class TranslationModel:
    """Marian, M2M100 or NLLB, a `WorkerModel`."""

    item_type = TextPart

    def __init__(self, model_dir: Path, config: dict[str, Any], device: str) -> None:
        self._model = Seq2SeqModel(model_dir, config, device)
        self._tokenizer = self._model.tokenizer
        self._is_marian = config["model_type"] == "marian"
        sources, targets = self._marian_languages() if self._is_marian else self._shared_languages()
        if not targets:
            raise UnsupportedModel("the tokenizer names no languages (tokenizer_config.json: target_lang)")
        self.info = TranslationModelInfo(tuple(sources), tuple(targets), self._model.max_tokens)

    def _marian_languages(self) -> tuple[list[str], list[str]]:
        codes = [code.strip("<>") for code in self._tokenizer.supported_language_codes]
        targets = codes or [self._tokenizer.target_lang] if self._tokenizer.target_lang or codes else []
        return [self._tokenizer.source_lang or "en"], targets

    def _shared_languages(self) -> tuple[list[str], list[str]]:
        """Return the languages of M2M100 or NLLB, which are the same for sources and targets."""
        if hasattr(self._tokenizer, "lang_code_to_id"):
            codes = list(self._tokenizer.lang_code_to_id)
        else:
            codes = sorted(filter(_NLLB_CODE.fullmatch, self._tokenizer.get_vocab()))
        return codes, codes

    def warm_up(self) -> None:
        self.run([TextPart("a", self.info.source_langs[0], self.info.target_langs[0])])

    def run(self, items: list[TextPart]) -> list[PartOutput]:
        """Return the translation of each part. Parts with the same languages and similar lengths share batches."""
        groups: dict[tuple[str, str, int], list[int]] = defaultdict(list)
        for number, item in enumerate(items):
            groups[item.source_lang, item.target_lang, self._max_output(item)].append(number)
        outputs: list[PartOutput] = [PartOutput("", 0, 0)] * len(items)
        for (source, target, max_output), numbers in groups.items():
            texts = [items[number].text for number in numbers]
            translated = self._translate(texts, source, target, max_output)
            for number, output in zip(numbers, translated, strict=True):
                outputs[number] = output
        return outputs

    def _max_output(self, item: TextPart) -> int:
        """Return the maximum length of a translation in tokens, which stops a model that repeats itself."""
        num_tokens = len(self._tokenizer(item.text)["input_ids"])
        steps = -(-num_tokens // _LENGTH_STEP)
        return min(self._model.max_tokens - 1, 2 * steps * _LENGTH_STEP + _SPARE_TOKENS)

    def _translate(self, texts: list[str], source: str, target: str, max_output: int) -> list[PartOutput]:
        options: dict[str, Any] = {"max_new_tokens": max_output}
        if not self._is_marian:
            self._tokenizer.src_lang = source
            has_ids = hasattr(self._tokenizer, "get_lang_id")
            find_id = self._tokenizer.get_lang_id if has_ids else self._tokenizer.convert_tokens_to_ids
            options["forced_bos_token_id"] = find_id(target)
        elif self._tokenizer.supported_language_codes:
            texts = [f">>{target}<< {text}" for text in texts]
        return self._model.rewrite(texts, options)


class Apertium:
    """The program `apertium`, which translates by rules between the two languages of a pair. Token counts are
    estimates."""

    item_type = TextPart

    def __init__(self, config: dict[str, Any]) -> None:
        self._pair: str = config["pair"]
        packages = " ".join(["apertium", *config.get("debian_packages", ())])
        program = shutil.which("apertium")
        if program is None:
            raise UnsupportedModel(f"the program apertium is not installed: apt-get install {packages}")
        self._program = program
        if self._pair not in self._run("-l").split():
            raise UnsupportedModel(f"apertium has no pair {self._pair}: apt-get install {packages}")
        source, target = self._pair.split("-")
        self.info = TranslationModelInfo((source,), (target,), _APERTIUM_CHARACTERS)

    def warm_up(self) -> None:
        self._run("-u", self._pair, text="a")

    def run(self, items: list[TextPart]) -> list[PartOutput]:
        """Return the translation of each part."""
        return [self._translate(item.text) for item in items]

    def _translate(self, text: str) -> PartOutput:
        translated = self._run("-u", self._pair, text=text).strip()
        return PartOutput(translated, _estimated_tokens(text), _estimated_tokens(translated))

    def _run(self, *arguments: str, text: str = "") -> str:
        """Run the program and return its output. Raises OSError if the program fails."""
        command = [self._program, *arguments]
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=_APERTIUM_TIMEOUT_S, check=False
        )
        if done.returncode:
            raise OSError(f"apertium {' '.join(arguments)}: {done.stderr.strip()[-200:]}")
        return done.stdout


def _estimated_tokens(text: str) -> int:
    return len(text) // _CHARACTERS_PER_TOKEN + 1
