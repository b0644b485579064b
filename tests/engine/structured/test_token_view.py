"""The tokenizer as matchers see it: ids, controls, end tokens, and vocabularies of other sizes than the tokenizer's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from engine.protocol.output_format import Constraint
from engine.structured.compile import compile_matcher
from engine.structured.token_view import Tail, _tail, read_token_view
from tests.engine.structured.speaker import SPARK


def ids_allowed(mask: bytes) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")).tolist())


def test_control_tokens_are_no_text_even_where_the_file_does_not_call_them_special() -> None:
    view = read_token_view(SPARK, 4096, (0, 2))
    call = [view.control_ids["<tool_call>"]]
    assert view.tokenizer.is_special_token(call[0])
    anything = compile_matcher(Constraint("regex", "(?s:.*)"), view)
    assert call[0] not in ids_allowed(anything.compute_bitmask())
    spelled = compile_matcher(Constraint("choice", '["<tool_call>"]'), view)
    assert call[0] not in ids_allowed(spelled.compute_bitmask())
    assert spelled.consume_tokens(view.tokenizer.tokenize_str("<tool_call>"))
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
def test_a_grammar_s_control_token_is_the_token_and_its_strings_are_text(grammar: str) -> None:
    view = read_token_view(SPARK, 4096, (0, 2))
    matcher = compile_matcher(Constraint("grammar", grammar), view)
    assert matcher.consume_token(3)
    assert matcher.is_accepting()


@pytest.mark.parametrize("vocab_size", [4096, 4097, 4224, 5000])
def test_ids_beyond_the_tokenizer_are_never_allowed(vocab_size: int) -> None:
    view = read_token_view(SPARK, vocab_size, (0, 2))
    assert view.num_tokens == vocab_size
    allowed = ids_allowed(compile_matcher(Constraint("regex", "(?s:.*)"), view).compute_bitmask())
    assert len(allowed) > 3900
    assert max(allowed) < 4096


def test_a_model_with_fewer_rows_than_the_tokenizer_has_ids_keeps_all_bits() -> None:
    assert read_token_view(SPARK, 4000, (2,)).num_tokens == 4096


def test_end_tokens_are_allowed_exactly_where_the_text_matches() -> None:
    view = read_token_view(SPARK, 4096, (0, 2))
    matcher = compile_matcher(Constraint("regex", "ab(cd)?"), view)
    for said, is_match in [("", False), ("ab", True), ("abc", False), ("abcd", True)]:
        matcher.reset()
        matcher.consume_tokens(view.tokenizer.greedy_tokenize(said))
        assert ({0, 2} <= ids_allowed(matcher.compute_bitmask())) is is_match
        assert bool({0, 2} & ids_allowed(matcher.compute_bitmask())) is is_match


def test_every_byte_that_has_a_token_of_its_own_is_known_by_it() -> None:
    view = read_token_view(SPARK, 4096, (0, 2))
    assert np.count_nonzero(view.byte_ids >= 0) > 240
    for byte in b'{}[]",:09az':
        assert view.tokenizer.decode_bytes([int(view.byte_ids[byte])]) == bytes([byte])


@pytest.mark.parametrize(
    ("text", "tail"),
    [
        (b'{"', Tail.QUOTE),
        (b'"', Tail.QUOTE),
        (b'",', Tail.NEXT),
        (b'x":', Tail.NEXT),
        (b'"}', Tail.BEHIND),
        (b'"}],', Tail.NEXT),
        (b'", ', Tail.UNKNOWN),
        (b'","', Tail.UNKNOWN),
        (b'\\",', Tail.UNKNOWN),
        (b",", Tail.COMMA),
        (b'""', Tail.UNKNOWN),
        (b'\\"', Tail.UNKNOWN),
        (b"", Tail.UNKNOWN),
        (b" 1", Tail.WORD),
        (b", ", Tail.SIGN),
        ("é".encode(), Tail.SIGN),
    ],
)
def test_a_token_s_tail_says_whether_a_string_may_have_begun(text: bytes, tail: int) -> None:
    assert _tail(text, is_text=True) == tail
    assert _tail(text, is_text=False) == Tail.UNKNOWN


@pytest.mark.parametrize("name", ["gpt2", "phi-3", "gpt-neox-20b"])
def test_tokenizers_of_other_families_write_json(test_data: Path, name: str) -> None:
    """Byte-level and sentencepiece vocabularies alike."""
    view = read_token_view(test_data / "tokenizers" / name, 0, (0,))
    matcher = compile_matcher(Constraint("json_schema", json.dumps({"enum": ["é x", "z"]})), view)
    token_ids = view.tokenizer.greedy_tokenize('"é x"')
    assert matcher.consume_tokens(token_ids)
    assert matcher.is_stopped()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("models/stories260K/tokenizer.model", "tokenizer.model"),
        ("tokenizers/gguf_vocab/ggml-vocab-gpt-2.gguf", "m.gguf"),
    ],
)
def test_folders_without_a_tokenizer_json_are_read_as_their_text_is(
    test_data: Path, tmp_path: Path, source: str, name: str
) -> None:
    shutil.copy(test_data / source, tmp_path / name)
    view = read_token_view(tmp_path, 0, (0,))
    matcher = compile_matcher(Constraint("json_schema", json.dumps({"enum": ["a b", "z"]})), view)
    assert matcher.consume_tokens(view.tokenizer.greedy_tokenize('"a b"'))
    assert matcher.is_stopped()


def test_a_token_that_only_the_configuration_names_is_a_control(test_data: Path, tmp_path: Path) -> None:
    """As it is where text is encoded: `<|assistant|>` of the files' own choosing."""
    shutil.copy(test_data / "tokenizers/gpt2/tokenizer.json", tmp_path)
    added = {"50257": {"content": "<|assistant|>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    assert read_token_view(tmp_path, 0, (0,)).control_ids["<|assistant|>"] == 50257


def test_a_damaged_file_is_an_error_of_a_known_kind(tmp_path: Path) -> None:
    for text in ("", "{}", "[]", '{"model": {"vocab": {}}}'):
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises((ValueError, KeyError, TypeError)):
            read_token_view(tmp_path, 10, (0,))
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="is missing"):
        read_token_view(tmp_path, 10, (0,))
