"""Sentences of a text that is being generated."""

from __future__ import annotations

import pytest

from gateway.speech.speaker import MAX_SENTENCE_CHARACTERS, take_sentence


@pytest.mark.parametrize(
    ("text", "is_first", "expected"),
    [
        ("Good morning. How", True, ("Good morning.", "How")),
        ("Good morning", True, ("", "Good morning")),
        ("Pi is 3.14 and", False, ("", "Pi is 3.14 and")),
        ("She said “no”. Then", False, ("She said “no”.", "Then")),
        ("First line\nsecond", False, ("First line", "second")),
        ("I can chat a little, answer", True, ("I can chat a little,", "answer")),
        ("I can chat a little, answer", False, ("", "I can chat a little, answer")),
        ("Yes, I", True, ("", "Yes, I")),
    ],
)
def test_sentences_end_at_marks_and_the_first_one_after_a_clause(text: str, is_first: bool, expected: tuple[str, str]):
    assert take_sentence(text, is_first=is_first) == expected


def test_endless_sentences_are_cut_between_words():
    sentence, rest = take_sentence("word " * 100, is_first=False)
    assert sentence.endswith("word")
    assert len(sentence) <= MAX_SENTENCE_CHARACTERS
    assert rest.startswith("word")
