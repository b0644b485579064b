"""Tokenizers from GGUF headers: the ids equal those in the published tests of the vocabularies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Vocabulary

from engine.checkpoints.gguf_file import GgufError, GgufFile
from engine.checkpoints.gguf_tokenizer import gguf_tokenizer
from engine.text.tokenizer import Tokenizer, TokenizerUnusable

_BETWEEN = "\n__ggml_vocab_test__\n"


@pytest.mark.parametrize("name", ["gpt-2", "phi-3"])
def test_the_strings_of_a_published_vocabulary_give_its_expected_ids(
    name: str, test_data: Path, tmp_path: Path
) -> None:
    folder = test_data / "tokenizers" / "gguf_vocab"
    shutil.copy(folder / f"ggml-vocab-{name}.gguf", tmp_path / "model.gguf")
    tokenizer = Tokenizer(tmp_path)
    texts = (folder / f"ggml-vocab-{name}.gguf.inp").read_text().split(_BETWEEN)
    expected = (folder / f"ggml-vocab-{name}.gguf.out").read_text().split("\n")
    assert len(texts) == len(expected) == 47
    leading = tokenizer.encode("") if name == "phi-3" else []
    for each, line in zip(texts, expected, strict=True):
        token_ids = tokenizer.encode(each)
        assert token_ids == [*leading, *map(int, line.split())]
        assert tokenizer.decode(token_ids[len(leading) :]).removeprefix(" ") == each.removeprefix(" ")


def test_unknown_tokenizer_kind_is_rejected_with_a_remedy(test_data: Path, tmp_path: Path) -> None:
    shutil.copy(test_data / "tokenizers" / "gguf_vocab" / "ggml-vocab-bert-bge.gguf", tmp_path / "model.gguf")
    with pytest.raises(TokenizerUnusable, match=r"tokenizer\.ggml\.model='bert' is not supported .*tokenizer\.json"):
        Tokenizer(tmp_path)


def made(architecture: str = "llama", **keys: Any) -> GgufFile:
    metadata = {"general.architecture": architecture}
    metadata |= {f"tokenizer.{name.replace('__', '.')}": value for name, value in keys.items()}
    return GgufFile(Path("m.gguf"), metadata, {})


PIECES = ["<unk>", "<s>", "</s>", "<0x41>", "▁", "a", "b", "ab", "▁ab", "<tool>", "c", "ca"]
KINDS = [2, 3, 3, 6, 1, 1, 1, 1, 1, 4, 1, 5]
SCORES = [0.0, 0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -5.0, -4.0, 0.0, -6.0, -0.5]
PAIRS = {"ggml__model": "llama", "ggml__tokens": PIECES, "ggml__token_type": KINDS, "ggml__scores": SCORES}


def vocabulary(file: GgufFile) -> Vocabulary:
    definition, _ = gguf_tokenizer(file)
    return Vocabulary.from_str(json.dumps(definition))


def test_pairs_merge_by_score_and_only_into_plain_tokens() -> None:
    tokens = vocabulary(made(**PAIRS)).encode("ab abca</s><tool>A<unk").tokens
    assert tokens[:6] == ["▁ab", "▁ab", "c", "a", "</s>", "<tool>"]
    assert "<0x41>" in tokens
    assert "ca" not in tokens


def test_gemma_puts_no_space_before_a_text_and_keeps_runs_of_spaces() -> None:
    pieces = ["<unk>", "<bos>", "▁", "  ", "a", "▁a", "\n", "\n\n"]
    file = made("gemma2", ggml__model="llama", ggml__tokens=pieces, ggml__token_type=[2, 3, 1, 4, 1, 1, 1, 4],
                ggml__scores=[0.0] * 8)  # fmt: skip
    encoded = vocabulary(file).encode("a  a\n\na")
    assert encoded.tokens == ["a", "▁▁", "a", "\n\n", "a"]
    assert vocabulary(file).decode(encoded.ids) == "a  a\n\na"


@pytest.mark.parametrize(("architecture", "tokens"), [("gemma3", ["ab", "c"]), ("llama", ["a", "bc"])])
def test_gemma_merges_in_the_order_of_its_vocabulary_and_others_by_score(architecture: str, tokens: list[str]) -> None:
    pieces = ["<unk>", "<bos>", "a", "b", "c", "ab", "bc"]
    file = made(architecture, ggml__model="llama", ggml__tokens=pieces, ggml__token_type=[2, 3, 1, 1, 1, 1, 1],
                ggml__scores=[0.0, 0.0, -1.0, -1.0, -1.0, -5.0, -2.0], ggml__add_space_prefix=False)  # fmt: skip
    assert vocabulary(file).encode("abc").tokens == tokens


def test_special_tokens_template_and_text_prefix_are_read() -> None:
    _, config = gguf_tokenizer(made(**PAIRS, ggml__bos_token_id=1, ggml__eos_token_id=2, chat_template="{{ x }}"))
    assert config == {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "chat_template": "{{ x }}"}
    _, config = gguf_tokenizer(made(**PAIRS, ggml__add_bos_token=False))
    assert config == {"add_bos_token": False}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ggml__tokens": []}, "tokens is missing"),
        ({"ggml__tokens": [1, 2]}, "tokens is not a list of strings"),
        ({"ggml__token_type": [1]}, "token_type is not a list of 12 numbers"),
        ({"ggml__scores": None}, "scores is missing"),
        ({"ggml__scores": ["x"] * 12}, "scores is not a list of 12 numbers"),
        ({"ggml__bos_token_id": 12}, "bos_token_id=12 is not an id of the 12 tokens"),
        ({"ggml__eos_token_id": -1}, "eos_token_id=-1"),
        ({"ggml__model": "rwkv"}, "model='rwkv' is not supported"),
        ({"ggml__model": "gpt2", "ggml__pre": "chameleon"}, "pre='chameleon' is not supported"),
        ({"ggml__model": "gpt2"}, "merges is missing"),
        ({"ggml__model": "gpt2", "ggml__merges": ["a b c"]}, "merges is missing or has an entry that is not a pair"),
    ],
)
def test_a_vocabulary_that_says_too_little_is_refused_by_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(GgufError, match=message):
        gguf_tokenizer(made(**(PAIRS | change)))
