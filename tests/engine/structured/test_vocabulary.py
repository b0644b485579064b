"""The vocabulary as llguidance sees it: token ids, control tokens, end tokens, and models with more or fewer rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from engine.protocol.output_format import Constraint
from engine.structured.compile import compile_matcher
from engine.structured.vocabulary import read_vocabulary
from tests.engine.structured.spark_engine import SPARK


def ids_allowed(mask: bytes) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")).tolist())


def test_control_tokens_are_not_text_even_if_the_file_does_not_mark_them_special() -> None:
    vocabulary = read_vocabulary(SPARK, 4096, (0, 2))
    call = [vocabulary.control_ids["<tool_call>"]]
    assert vocabulary.tokenizer.is_special_token(call[0])
    anything = compile_matcher(Constraint("regex", "(?s:.*)"), vocabulary)
    assert call[0] not in ids_allowed(anything.compute_bitmask())
    spelled = compile_matcher(Constraint("choice", '["<tool_call>"]'), vocabulary)
    assert call[0] not in ids_allowed(spelled.compute_bitmask())
    assert spelled.consume_tokens(vocabulary.tokenizer.tokenize_str("<tool_call>"))
    assert spelled.is_stopped()


@pytest.mark.parametrize(
    "grammar",
    [
        "start: <tool_call>",
        "start: <[3]>",
        '// <nothing>\nstart: <tool_call> # "',
        "start: A <tool_call>\nA: /(<x>)?/",
        'start: "<tool_call>"? <tool_call>',
    ],
)
def test_grammar_names_control_tokens_outside_strings_patterns_and_comments(grammar: str) -> None:
    vocabulary = read_vocabulary(SPARK, 4096, (0, 2))
    matcher = compile_matcher(Constraint("grammar", grammar), vocabulary)
    assert matcher.consume_token(3)
    assert matcher.is_accepting()


@pytest.mark.parametrize("vocab_size", [4096, 4097, 4224, 5000])
def test_ids_unknown_to_the_tokenizer_are_never_allowed(vocab_size: int) -> None:
    vocabulary = read_vocabulary(SPARK, vocab_size, (0, 2))
    assert vocabulary.num_tokens == vocab_size
    allowed = ids_allowed(compile_matcher(Constraint("regex", "(?s:.*)"), vocabulary).compute_bitmask())
    assert len(allowed) > 3900
    assert max(allowed) < 4096


def test_mask_covers_all_tokenizer_ids_if_the_model_has_fewer_rows() -> None:
    assert read_vocabulary(SPARK, 4000, (2,)).num_tokens == 4096


def test_end_tokens_are_allowed_only_where_the_text_matches() -> None:
    vocabulary = read_vocabulary(SPARK, 4096, (0, 2))
    matcher = compile_matcher(Constraint("regex", "ab(cd)?"), vocabulary)
    for text, is_match in [("", False), ("ab", True), ("abc", False), ("abcd", True)]:
        matcher.reset()
        matcher.consume_tokens(vocabulary.tokenizer.greedy_tokenize(text))
        assert ({0, 2} <= ids_allowed(matcher.compute_bitmask())) is is_match
        assert bool({0, 2} & ids_allowed(matcher.compute_bitmask())) is is_match


@pytest.mark.parametrize("name", ["gpt2", "phi-3", "gpt-neox-20b"])
def test_byte_level_and_sentencepiece_tokenizers_write_json(test_data: Path, name: str) -> None:
    vocabulary = read_vocabulary(test_data / "tokenizers" / name, 0, (0,))
    matcher = compile_matcher(Constraint("json_schema", json.dumps({"enum": ["é x", "z"]})), vocabulary)
    token_ids = vocabulary.tokenizer.greedy_tokenize('"é x"')
    assert matcher.consume_tokens(token_ids)
    assert matcher.is_stopped()


def test_gguf_vocabulary_is_read(test_data: Path, tmp_path: Path) -> None:
    shutil.copy(test_data / "tokenizers/gguf_vocab/ggml-vocab-gpt-2.gguf", tmp_path / "m.gguf")
    vocabulary = read_vocabulary(tmp_path, 0, (0,))
    matcher = compile_matcher(Constraint("json_schema", json.dumps({"enum": ["a b", "z"]})), vocabulary)
    assert matcher.consume_tokens(vocabulary.tokenizer.greedy_tokenize('"a b"'))
    assert matcher.is_stopped()


def test_token_named_only_in_tokenizer_config_is_a_control_token(test_data: Path, tmp_path: Path) -> None:
    shutil.copy(test_data / "tokenizers/gpt2/tokenizer.json", tmp_path)
    added = {"50257": {"content": "<|assistant|>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    assert read_vocabulary(tmp_path, 0, (0,)).control_ids["<|assistant|>"] == 50257


def test_damaged_tokenizer_file_raises_a_documented_error(tmp_path: Path) -> None:
    for text in ("", "{}", "[]", '{"model": {"vocab": {}}}'):
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises((ValueError, KeyError, TypeError)):
            read_vocabulary(tmp_path, 10, (0,))
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="is missing"):
        read_vocabulary(tmp_path, 10, (0,))
