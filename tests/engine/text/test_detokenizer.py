"""Detokenization yields the same whole characters for every split of the ids; stop strings are found across pieces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Vocabulary

from engine.text.detokenizer import Detokenizer, StopStringFinder, TokenBytes, UnsupportedTokenizer
from engine.text.tokenizer import Tokenizer
from tests.engine.text.vocabularies import EVERY, conversing, definition_of, tokenizer_in

TEXT = "Hello, na\u00efve caf\u00e9 \u2615 \u65e5\u672c\u8a9e \U0001f600\U0001f469\u200d\U0001f680 x   y\n\n\tz "


_loaded: dict[str, tuple[Tokenizer, Vocabulary]] = {}


@pytest.fixture(params=EVERY)
def both(request: pytest.FixtureRequest, test_data: Path) -> tuple[Tokenizer, Vocabulary]:
    """Return the project's tokenizer and the reference library's tokenizer for one vocabulary."""
    if request.param not in _loaded:
        definition = definition_of(request.param, test_data) | {"truncation": None, "padding": None}
        _loaded[request.param] = conversing(request.param, test_data)[0], Vocabulary.from_str(json.dumps(definition))
    return _loaded[request.param]


@pytest.fixture
def stories(test_data: Path) -> Tokenizer:
    return tokenizer_in(test_data / "models/stories260K")


def pieces(values: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    edges = sorted({0, len(values), *(cut % (len(values) + 1) for cut in cuts)})
    return [values[start:end] for start, end in pairwise(edges)]


@given(seeds=st.lists(st.integers(0, 2**31), max_size=40), cuts=st.lists(st.integers(0, 100), max_size=12))
def test_every_split_of_the_ids_yields_the_same_text(
    both: tuple[Tokenizer, Vocabulary], seeds: list[int], cuts: list[int]
) -> None:
    """The ids include words, bytes, control tokens, added tokens and unknown ids."""
    tokenizer, library = both
    size = library.get_vocab_size()
    added = sorted(library.get_added_tokens_decoder())
    token_ids = [added[seed % len(added)] if seed % 5 == 0 else seed % (size + 3) for seed in seeds]
    marks = [token.content for token in library.get_added_tokens_decoder().values()][:3]
    for make in (tokenizer.detokenizer, lambda: tokenizer.detokenizer(starts_text=False, show=marks)):
        whole = make().push(token_ids)
        parts = make()
        assert "".join(parts.push(piece) for piece in pieces(token_ids, cuts)) == whole
        one_by_one = make()
        assert "".join(one_by_one.push((token_id,)) for token_id in token_ids) == whole


@given(seeds=st.lists(st.integers(0, 2**31), max_size=20))
def test_ids_of_whole_characters_decode_as_in_the_reference_library(
    both: tuple[Tokenizer, Vocabulary], seeds: list[int]
) -> None:
    tokenizer, library = both
    token_ids = [seed % library.get_vocab_size() for seed in seeds]
    expected = library.decode(token_ids, skip_special_tokens=True)
    if "\ufffd" not in expected:
        assert tokenizer.decode(token_ids) == expected


@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"), max_size=60))
def test_no_piece_of_text_ends_inside_a_character(both: tuple[Tokenizer, Vocabulary], text: str) -> None:
    tokenizer, library = both
    detokenizer = tokenizer.detokenizer()
    assert "\ufffd" not in "".join(detokenizer.push((i,)) for i in library.encode(text).ids)


def test_encoded_text_decodes_as_in_the_reference_library(both: tuple[Tokenizer, Vocabulary]) -> None:
    tokenizer, library = both
    for text in (TEXT, " two  spaces", "", "<s>x</s>", "It's. Don't, he said: 'no' !", "  <think> a"):
        token_ids = library.encode(text).ids
        assert tokenizer.decode(token_ids) == library.decode(token_ids)


def test_the_leading_space_of_a_continuation_is_kept(stories: Tokenizer) -> None:
    """SentencePiece adds a space before a text; in a continuation the space is part of the text."""
    token_ids = stories.encode("was a girl")[1:]
    assert stories.detokenizer(starts_text=False).push(token_ids) == " was a girl"
    assert stories.detokenizer().push(token_ids) == "was a girl"


def test_an_id_outside_the_vocabulary_decodes_to_nothing(stories: Tokenizer) -> None:
    assert stories.decode([100_000, -1, 1 << 40]) == ""


def test_an_unknown_decoder_is_rejected() -> None:
    vocabulary = Vocabulary.from_str('{"version":"1.0","model":{"type":"BPE","vocab":{},"merges":[]}}')
    for decoder in (None, {"type": "CTC"}, {"type": "Replace", "pattern": {"Regex": "x"}, "content": ""}):
        with pytest.raises(UnsupportedTokenizer):
            TokenBytes(vocabulary, decoder, {})


def test_metaspace_decodes_to_spaces() -> None:
    vocabulary = Vocabulary.from_str(
        '{"version":"1.0","model":{"type":"BPE","vocab":{"▁a":0,"▁b":1,"<0xE2>":2},"merges":[]}}'
    )
    decoder = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}
    assert Detokenizer(TokenBytes(vocabulary, decoder, {})).push([0, 1]) == "a b"


@given(
    text=st.text("ab<|", max_size=30),
    stops=st.lists(st.text("ab<|", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 100), max_size=8),
)
def test_stop_strings_are_found_for_every_split_of_the_text(text: str, stops: list[str], cuts: list[int]) -> None:
    finder = StopStringFinder(stops)
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    released = "".join(finder.push(text[start:end]) for start, end in pairwise(edges))
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert finder.is_stopped == bool(ends)
    assert released + finder.flush() == (text[: min(ends)[1]] if ends else text)


@pytest.mark.parametrize("stop", ["x", "ab", "aab", "</s>", "\n\nuser:", "aaaa"])
def test_no_part_of_a_stop_string_is_returned(stop: str) -> None:
    """The text is split once at every position, and into single characters."""
    text = f"so {stop} on"
    pieces = [(text[:cut], text[cut:]) for cut in range(len(text) + 1)]
    for parts in (*pieces, tuple(text)):
        finder = StopStringFinder([stop])
        assert "".join(map(finder.push, parts)) == "so "
        assert finder.is_stopped


def test_text_that_cannot_become_a_stop_string_is_not_held_back() -> None:
    finder = StopStringFinder(["\n\nuser:"])
    assert finder.push("Hello\n") == "Hello"
    assert finder.push("\nu") == ""
    assert finder.push("nder") == "\n\nunder"
    assert finder.push("\n\nuser: x") == ""
    assert finder.is_stopped
    assert finder.push("more") == "" == finder.flush()
