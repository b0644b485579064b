"""Letters inside words: spelling, capitals, counting letters, the first letter, the longest word.

A model sees words as tokens and has to learn by heart how each is written; so these kinds keep to a few hundred words.
"""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

from spark.generator.dialogue import Dialogue, Source, ask
from spark.generator.wording import OPENINGS, dress
from spark.words import ANIMALS, CITIES, COLORS, FOODS, NAMES, OBJECTS, VALUES

SPELLED: tuple[str, ...] = tuple(dict.fromkeys(ANIMALS + COLORS + NAMES[:80] + FOODS + OBJECTS[:60] + CITIES[:30]))
_SHORT = tuple(word for word in SPELLED if len(word) <= 8)
_SPELL = (
    "Spell {t}.", "How do you spell {t}?", "Spell the word {t}.", "Please spell {t}.", "Can you spell {t}?", "spell {t}",
    "Spell: {t}", "How is {t} spelled?", "What is the spelling of {t}?", "Spell {t} for me.", "Write {t} letter by letter.",
    "Say the letters of {t}.", "Give me the letters of {t}.", "How do I spell {t}?", "List the letters of {t}.",
    "Which letters does {t} have?", "Tell me how to spell {t}.", "Which letters are in {t}?",
)  # fmt: skip
_CASES = {
    "upper": (
        "Write in capitals: {t}", "Uppercase: {t}", "Write in upper case: {t}", "Put this in capital letters: {t}", "Capital letters: {t}",
        "Make this uppercase: {t}", "Convert to upper case: {t}", "Write {t} in capitals.", "Write {t} in capital letters.", "{t} in capital letters, please.",
        "Turn this into capital letters: {t}", "Change to uppercase: {t}", "All caps: {t}", "Write {t} in all caps.", "In capitals please: {t}",
    ),
    "lower": (
        "Write in lower case: {t}", "Lowercase: {t}", "Make this lowercase: {t}", "Put this in small letters: {t}", "Convert to lower case: {t}",
        "Write {t} in lower case.", "Write {t} in small letters.", "Change to lowercase: {t}", "{t} in small letters, please.", "Turn this into lower case: {t}",
        "Small letters: {t}", "Write without capital letters: {t}", "In small letters please: {t}",
    ),
    "title": (
        "Capitalize each word: {t}", "Capitalize: {t}", "Give each word a capital letter: {t}", "Title case: {t}", "Start every word with a capital: {t}",
        "Capitalise every word: {t}", "Write in title case: {t}", "Put a capital at the start of each word: {t}", "Convert to title case: {t}", "Begin each word with a capital letter: {t}",
    ),
}  # fmt: skip
_LETTERS = (
    "How many letters are in {t}?", "How many letters does {t} have?", "Count the letters in {t}.", "How many letters has the word {t}?",
    "Number of letters in {t}?", "How long is the word {t}?", "Count the letters of {t}.", "How many letters are there in the word {t}?",
    "Please count the letters in {t}.", "{t}: how many letters?", "Tell me how many letters {t} has.", "Count letters: {t}", "The word {t} has how many letters?",
    "What is the number of letters in {t}?",
)  # fmt: skip
_ONE_LETTER = (
    "How many times is {q} in {t}?", "How many {q} are in {t}?", "How many {q}'s are in {t}?", "Count the letter {q} in {t}.", "How often is {q} in {t}?",
    "How often does {q} appear in {t}?", "How many times does the letter {q} appear in {t}?", "Count {q} in {t}.", "How many letters {q} does {t} have?",
    "How many times do you see {q} in {t}?", "How often is the letter {q} in the word {t}?",
)  # fmt: skip
_FIRST_LETTER = (
    "What is the {o} letter of {t}?", "Which letter does {t} {b} with?", "{t} {b}s with which letter?", "Tell me the {o} letter of {t}.", "{O} letter of {t}?",
    "What letter does {t} {b} with?", "Give me the {o} letter of the word {t}.", "What is the {o} letter in {t}?", "Say the {o} letter of {t}.",
    "Which letter is {o} in {t}?", "Name the {o} letter of {t}.", "In the word {t}, which letter is {o}?",
)  # fmt: skip
_LONGEST = (
    "Which word is the longest: {t}", "Longest word: {t}", "What is the longest word: {t}", "Find the longest word: {t}", "Which is the longest word of: {t}",
    "Name the longest word: {t}", "Which of these words is the longest: {t}", "Which word has the most letters: {t}", "Pick the longest word: {t}",
    "{t}. Which word is the longest?", "Tell me the longest of these words: {t}", "Which one of these words has the most letters? {t}",
)  # fmt: skip


def make_spelling(source: Source) -> Dialogue:
    """A known word, letter by letter."""
    word = source.choice(SPELLED)
    question = source.pick_phrasing(_SPELL).format(t=word)
    return ask("text_spell", source, dress(source, question), " ".join(word.upper()))


def make_case(source: Source) -> Dialogue:
    """Capitals for one word or two, small letters, or a capital at the start of each word."""
    form = source.choice(list(_CASES))
    words = source.sample(
        VALUES if form == "title" else SPELLED, source.choice((1, 1, 2) if form != "title" else (1, 2, 3, 4))
    )
    plain = " ".join(words).lower()
    given = plain if form != "lower" else source.choice((plain.upper(), plain.title()))
    question = source.pick_phrasing(_CASES[form]).format(t=given)
    answer = {"upper": plain.upper(), "lower": plain, "title": plain.title()}[form]
    if source.random() < 0.12:
        question = source.choice(OPENINGS) + question
    return ask("text_case", source, question, answer)


def make_letter_count(source: Source) -> Dialogue:
    """Count all letters, or one letter: each letter is written with its number."""
    word = source.choice(_SHORT)
    if source.random() < 0.6:
        work = ", ".join(f"{i} {letter}" for i, letter in enumerate(word.upper(), 1))
        question = source.pick_phrasing(_LETTERS).format(t=word)
        return ask("text_letters", source, dress(source, question), f"{work}. {word} has {len(word)} letters.")
    letter = source.choice(word.lower()) if source.random() < 0.8 else source.choice("aeiourstln")
    seen, parts = 0, []
    for each in word.lower():
        seen += each == letter
        parts.append(f"{each.upper()} {seen}" if each == letter else each.upper())
    question = source.pick_phrasing(_ONE_LETTER).format(q=letter, t=word)
    return ask("text_letters", source, dress(source, question), f"{', '.join(parts)}. Answer: {seen}.")


def make_first_letter(source: Source) -> Dialogue:
    """The first or the last letter of a word."""
    word, is_first = source.choice(SPELLED), source.random() < 0.6
    name, verb = ("first", "start") if is_first else ("last", "end")
    question = source.pick_phrasing(_FIRST_LETTER).format(t=word, o=name, O=name.capitalize(), b=verb)
    letter = word[0 if is_first else -1].upper()
    return ask("text_letter", source, dress(source, question), f"The {name} letter of {word} is {letter}.")


def make_longest(source: Source) -> Dialogue:
    """The longest of a few words: each with its length, then the one."""
    words: list[str] = []
    while len({len(word) for word in words}) < len(words) or not words:
        words = source.sample(_SHORT, source.randrange(2, 5))
    lengths = ", ".join(f"{word} {len(word)}" for word in words)
    question = source.pick_phrasing(_LONGEST).format(t=", ".join(words))
    if source.random() < 0.12:
        question = source.choice(OPENINGS) + question
    return ask("text_longest", source, question, f"{lengths}. The longest is {max(words, key=len)}.")
