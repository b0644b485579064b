"""Ids become the same text for every split of them, whole characters only; stop strings are found across pieces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Vocabulary

from engine.detokenizer import Detokenizer, StopFinder, TokenBytes, UnsupportedTokenizer
from engine.tokenizer import Tokenizer

FOLDERS = ("tokenizers/gpt2", "tokenizers/phi-3", "models/stories260K")
TEXT = "Hello, na\u00efve caf\u00e9 \u2615 \u65e5\u672c\u8a9e \U0001f600\U0001f469\u200d\U0001f680 x   y\n\n\tz "


@cache
def load(folder: Path) -> Tokenizer:
    return Tokenizer(folder)


@cache
def library_of(folder: Path) -> Vocabulary:
    return Vocabulary.from_file(str(folder / "tokenizer.json"))


def pieces(values: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    edges = sorted({0, len(values), *(cut % (len(values) + 1) for cut in cuts)})
    return [values[start:end] for start, end in pairwise(edges)]


@pytest.mark.parametrize("folder", FOLDERS)
@given(seeds=st.lists(st.integers(0, 2**31), max_size=40), cuts=st.lists(st.integers(0, 100), max_size=12))
def test_any_split_of_any_ids_spells_the_same_text(
    test_data: Path, folder: str, seeds: list[int], cuts: list[int]
) -> None:
    tokenizer = load(test_data / folder)
    size = 512 if "stories" in folder else 32000
    token_ids = [seed % size for seed in seeds]
    whole = tokenizer.decode(token_ids)
    detokenizer = tokenizer.detokenizer()
    assert "".join(detokenizer.push(piece) for piece in pieces(token_ids, cuts)) == whole
    for_continuation = tokenizer.detokenizer(is_own_text=False)
    assert "".join(for_continuation.push((i,)) for i in token_ids) in (whole, " " + whole)


@pytest.mark.parametrize("folder", FOLDERS)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"), max_size=60))
def test_no_piece_ends_inside_a_character(test_data: Path, folder: str, text: str) -> None:
    tokenizer = load(test_data / folder)
    token_ids = library_of(test_data / folder).encode(text).ids
    detokenizer = tokenizer.detokenizer()
    assert "\ufffd" not in "".join(detokenizer.push((i,)) for i in token_ids)


@pytest.mark.parametrize("folder", FOLDERS)
def test_text_is_what_the_library_decodes(test_data: Path, folder: str) -> None:
    library = library_of(test_data / folder)
    for text in (TEXT, " two  spaces", "", "<s>x</s>"):
        token_ids = library.encode(text).ids
        assert load(test_data / folder).decode(token_ids) == library.decode(token_ids)


def test_the_space_before_a_continuation_stays(test_data: Path) -> None:
    """SentencePiece puts a space before a text of its own; after a prompt that space is real."""
    tokenizer = load(test_data / "models/stories260K")
    token_ids = tokenizer.encode("was a girl")[1:]
    assert tokenizer.detokenizer(is_own_text=False).push(token_ids) == " was a girl"
    assert tokenizer.detokenizer().push(token_ids) == "was a girl"


def test_an_id_outside_the_vocabulary_spells_nothing(test_data: Path) -> None:
    assert load(test_data / "models/stories260K").decode([100_000]) == ""


def test_a_decoder_that_is_not_known_is_refused() -> None:
    vocabulary = Vocabulary.from_str('{"version":"1.0","model":{"type":"BPE","vocab":{},"merges":[]}}')
    for decoder in (None, {"type": "CTC"}, {"type": "Replace", "pattern": {"Regex": "x"}, "content": ""}):
        with pytest.raises(UnsupportedTokenizer):
            TokenBytes(vocabulary, decoder, {})


def test_metaspace_spells_spaces() -> None:
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
def test_stop_strings_are_found_whatever_the_pieces(text: str, stops: list[str], cuts: list[int]) -> None:
    finder = StopFinder(stops)
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    released = "".join(finder.push(text[start:end]) for start, end in pairwise(edges))
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert finder.is_stopped == bool(ends)
    assert released + finder.flush() == (text[: min(ends)[1]] if ends else text)


@pytest.mark.parametrize("stop", ["x", "ab", "aab", "</s>", "\n\nuser:", "aaaa"])
def test_no_part_of_a_stop_string_is_ever_shown(stop: str) -> None:
    """Cut at every place, and one character at a time."""
    text = f"so {stop} on"
    pieces = [(text[:cut], text[cut:]) for cut in range(len(text) + 1)]
    for parts in (*pieces, tuple(text)):
        finder = StopFinder([stop])
        assert "".join(map(finder.push, parts)) == "so "
        assert finder.is_stopped


def test_text_that_cannot_become_a_stop_string_is_not_held_back() -> None:
    finder = StopFinder(["\n\nuser:"])
    assert finder.push("Hello\n") == "Hello"
    assert finder.push("\nu") == ""
    assert finder.push("nder") == "\n\nunder"
    assert finder.push("\n\nuser: x") == ""
    assert finder.is_stopped
    assert finder.push("more") == "" == finder.flush()
