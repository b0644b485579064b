"""Translations equal those of `transformers` for each architecture, and languages are found by codes and names."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from engine.processes.zygote import Zygote
from engine.protocol.events import Event, Finished, Result
from engine.protocol.tasks.translation import Translation
from engine.tasks.languages import find_code
from engine.tasks.loading import ModelLoadError
from engine.tasks.one_pass.translation import load as load_in_worker
from engine.tasks.text_parts import TextPart, split_text
from engine.tasks.translation import Translator, load
from engine.tasks.work import Refused, Work
from tests.fakes.one_pass import load_request
from tests.fakes.tiny_models import tiny_m2m100, tiny_marian, tiny_nllb
from tests.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXTS = ("the man is eating food", "where is a warm place", "bad film", "it was not good in the rain and in the sun")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def translator(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Translator]:
    translator = await load(load_request(zygote, tiny_m2m100(tmp_path_factory.mktemp("m2m100"))))
    yield translator
    await translator.close()


async def translate(translator: Translator, text: str, target: str = "fr", source: str = "") -> tuple[str, Finished]:
    """Return the translation and the last event."""
    events: list[Event] = []
    task = Translation(text=text, target_lang=target, source_lang=source)
    await translator.start(Work(task, b"", 0), events.append)
    await wait_until(lambda: bool(events) and isinstance(events[-1], Finished))
    _, result, finished = events
    assert isinstance(result, Result)
    assert isinstance(finished, Finished)
    return result.fields["text"], finished


def reference(folder: Path, text: str, source: str = "", forced: str = "") -> str:
    """Return the translation that `transformers` makes of one text."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    options = {}
    if forced:
        tokenizer.src_lang = source
        options["forced_bos_token_id"] = tokenizer.convert_tokens_to_ids(forced)
    with torch.inference_mode():
        ids = model.generate(**tokenizer(text, return_tensors="pt"), do_sample=False, max_new_tokens=127, **options)
    return tokenizer.batch_decode(ids, skip_special_tokens=True)[0].strip()


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("kind", ["marian", "m2m100", "nllb", "marian of two targets"])
async def test_batch_of_texts_equals_the_reference(tmp_path: Path, kind: str):
    if kind.startswith("marian"):
        targets = ("fra", "deu") if "two" in kind else ()
        folder, (source, target) = tiny_marian(tmp_path, targets=targets), ("en", "deu" if targets else "fr")
        prefix = f">>{target}<< " if targets else ""
        expected = [reference(folder, prefix + text) for text in TEXTS]
    elif kind == "m2m100":
        folder, (source, target) = tiny_m2m100(tmp_path), ("en", "de")
        expected = [reference(folder, text, source, "__de__") for text in TEXTS]
    else:
        folder, (source, target) = tiny_nllb(tmp_path), ("eng_Latn", "fra_Latn")
        expected = [reference(folder, text, source, target) for text in TEXTS]
    model = load_in_worker(folder, "cpu")
    assert target in model.info.target_langs
    outputs = model.run([TextPart(text, source, target) for text in TEXTS])
    assert [output.text for output in outputs] == expected
    assert len(set(expected)) > 1, "different texts have different translations"


async def test_languages_of_a_batch_do_not_mix(tmp_path: Path):
    model = load_in_worker(tiny_m2m100(tmp_path), "cpu")
    parts = [TextPart(text, "en", target) for text in TEXTS for target in ("fr", "de")]
    assert [each.text for each in model.run(parts)] == [model.run([part])[0].text for part in parts]


async def test_tokens_of_text_and_translation_are_counted(translator: Translator):
    _, finished = await translate(translator, "the man is eating food")
    assert finished.usage.prompt_tokens >= 5
    assert finished.usage.completion_tokens >= 2


async def test_lines_are_translated_one_by_one_and_keep_their_breaks(translator: Translator):
    first, _ = await translate(translator, TEXTS[0])
    second, _ = await translate(translator, TEXTS[1])
    both, _ = await translate(translator, f"  {TEXTS[0]}\n\n{TEXTS[1]}\n")
    assert both == f"{first}\n\n{second}"


@pytest.mark.parametrize(("source", "target"), [("en", "xx"), ("klingon", "fr")])
async def test_unknown_language_is_refused_with_the_list(translator: Translator, source: str, target: str):
    with pytest.raises(Refused, match="must be one of af, am, ar"):
        await translate(translator, "food", target, source)


@pytest.mark.parametrize(
    ("language", "codes", "code"),
    [
        ("en", ("en", "fr"), "en"),
        ("EN-us", ("en", "fr"), "en"),
        ("English", ("en", "fr"), "en"),
        ("french", ("eng_Latn", "fra_Latn"), "fra_Latn"),
        ("fra", ("en", "fr"), "fr"),
        ("eng_Latn", ("en", "fr"), "en"),
        ("spa", ("spa",), "spa"),
        ("es", ("spa",), "spa"),
        ("pt_BR", ("pt_BR", "pt"), "pt_BR"),
        ("xx", ("en",), None),
        ("", ("en",), None),
    ],
)
async def test_language_is_found_by_code_and_name(language: str, codes: tuple[str, ...], code: str | None):
    assert find_code(language, codes) == code


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("One. Two.", [("One. Two.", "")]),
        ("One.\n\nTwo.", [("One.", "\n\n"), ("Two.", "")]),
        ("A long one. Then two. Three", [("A long one.", " "), ("Then two.", " "), ("Three", "")]),
        ("長い文です。次の文。", [("長い文です。次の文。", "")]),
        ("x" * 30, [("x" * 12, ""), ("x" * 12, ""), ("x" * 6, "")]),
        ("one two three four", [("one two", " "), ("three four", "")]),
    ],
)
async def test_text_is_split_at_lines_sentences_and_spaces(text: str, pieces: list[tuple[str, str]]):
    found = split_text(text, 12)
    assert found == pieces
    assert "".join(piece.text + piece.space for piece in found) == text


def apertium_folder(folder: Path) -> Path:
    config = {"model_type": "apertium", "architectures": ["Apertium"], "pair": "eng-spa"}
    (folder / "config.json").write_text(json.dumps(config | {"debian_packages": ["apertium-eng-spa"]}))
    return folder


async def test_missing_program_is_reported_with_its_packages(
    zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="apt-get install apertium apertium-eng-spa"):
        load_in_worker(apertium_folder(tmp_path), "cpu")


async def test_program_translates_between_the_languages_of_its_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The program is a script that behaves like `apertium`: it lists its pairs, and translates by upper case."""
    program = tmp_path / "bin/apertium"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nif [ "$1" = -l ]; then echo eng-spa; else [ "$2" = eng-spa ] && tr a-z A-Z; fi\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    model = load_in_worker(apertium_folder(tmp_path), "cpu")
    assert (model.info.source_langs, model.info.target_langs) == (("eng",), ("spa",))
    assert [output.text for output in model.run([TextPart("a house", "eng", "spa")])] == ["A HOUSE"]


async def test_model_of_another_type_does_not_load(zygote: Zygote, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ModelLoadError, match="translation models are"):
        await load(load_request(zygote, tmp_path))
