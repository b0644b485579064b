"""Work on words given in the question: copy (its own gate), sort, reverse, first and last, count, capitals, spelling."""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

from spark.generator.dialogue import Dialogue, Source, ask, join_words, sentence
from spark.words import (
    ADJECTIVES,
    ANIMALS,
    CITIES,
    COLORS,
    FOODS,
    JOBS,
    LEXICON,
    NAMES,
    NOUNS,
    OBJECTS,
    PLACES,
    VALUES,
    VERBS,
)

_COPY = (
    "Repeat: {t}", "Repeat after me: {t}", "Say: {t}", "Copy this: {t}", "Please repeat: {t}", "Say this: {t}",
    "Write this again: {t}", "Echo: {t}", "Repeat the following: {t}", "Please copy the following: {t}",
    "Type this: {t}", "Can you repeat this? {t}", "Repeat this text: {t}", "Copy the text: {t}", "Can you say this: {t}",
    "Return the following text unchanged: {t}",
)  # fmt: skip
_SPELLED = ANIMALS + COLORS + NAMES[:80] + FOODS[:60]


def draw_sentence(source: Source) -> str:
    """A plain sentence of random words: grammatical, rarely sensible."""
    pattern = source.choice((
        "the {j} {n} {v} the {m}", "a {j} {n} can {v}", "{p} and {q} {v} in the {l}", "{p} has a {j} {n}",
        "{p} went to {c} with a {n}", "my {n} is {j}", "we {v} and {w} every day", "the {n} is in the {l}",
        "please {v} the {n}", "I like {f} and {g}", "{p} is a {b}", "the {j} {b} likes {f}", "{c} is {j}", "do not {v} the {n}",
    ))  # fmt: skip
    return sentence(pattern.format(
        j=source.choice(ADJECTIVES), n=source.choice(NOUNS), m=source.choice(NOUNS), v=source.choice(VERBS),
        w=source.choice(VERBS), p=source.choice(NAMES), q=source.choice(NAMES), l=source.choice(PLACES),
        c=source.choice(CITIES), f=source.choice(FOODS), g=source.choice(FOODS), b=source.choice(JOBS),
    )) + source.choice((".", ".", "!", ""))  # fmt: skip


def draw_words(source: Source, count: int, separator: str = " ") -> str:
    """Random words; the first is one that is a token without a blank too."""
    return separator.join([source.choice(VALUES), *(source.choice(LEXICON) for _ in range(count - 1))])


def make_copy(source: Source) -> Dialogue:
    """Say this again: words, a sentence, numbers, sometimes in quotation marks."""
    draw = source.random()
    if draw < 0.45:
        text = draw_words(source, source.randrange(1, 9))
    elif draw < 0.6:
        text = draw_words(source, source.randrange(2, 7), ", ")
    elif draw < 0.68:
        text = " ".join(str(source.randrange(10 ** source.randrange(1, 4))) for _ in range(source.randrange(1, 6)))
    else:
        text = draw_sentence(source)
    return ask("copy", source, source.pick_phrasing(_COPY).format(t=text), text)


def make_induction(source: Source) -> Dialogue:
    """Long random lists copied or looked up: for the first phase alone, where attention learns to copy."""
    pool = source.sample(LEXICON + NAMES + CITIES, source.randrange(8, 25))
    pool[0] = source.choice(VALUES)
    draw = source.random()
    if draw < 0.5:
        text = " ".join(pool)
        return ask("induction", source, f"Repeat: {text}", text, can_join=False)
    keys, values = pool[: len(pool) // 2], pool[len(pool) // 2 : len(pool) // 2 * 2]
    listed = ", ".join(f"{key} is {value}" for key, value in zip(keys, values, strict=True))
    chosen = source.sample(range(len(keys)), min(len(keys), 4))
    if draw < 0.8:
        asked = ", ".join(keys[i] for i in chosen)
        answer = ", ".join(f"{keys[i]} is {values[i]}" for i in chosen)
        return ask("induction", source, f"Say what {asked} is: {listed}", answer, can_join=False)
    start = source.randrange(len(pool) - 2)
    text = " ".join(pool)
    return ask("induction", source, f"Go on after {pool[start]}: {text}", " ".join(pool[start + 1 :]), can_join=False)


_LISTS = (ANIMALS, FOODS, OBJECTS, COLORS, PLACES, NAMES, CITIES)
_SORT = (
    "Sort these words: {t}",
    "Sort: {t}",
    "Put these words in alphabetical order: {t}",
    "Order alphabetically: {t}",
    "Sort these words by the alphabet: {t}",
    "Please sort: {t}",
    "Arrange in alphabetical order: {t}",
)
_REVERSE = (
    "Reverse the order of: {t}",
    "Reverse this list: {t}",
    "Say these backwards: {t}",
    "Reverse: {t}",
    "Put these in reverse order: {t}",
    "Turn this list around: {t}",
)
_FIRST = (
    "What is the first word of: {t}",
    "First word of: {t}",
    "Which word comes first: {t}",
    "Give me the first of: {t}",
    "Name the first item: {t}",
    "What comes first here: {t}",
)
_LAST = (
    "What is the last word of: {t}",
    "Last word of: {t}",
    "Which word comes last: {t}",
    "Give me the last of: {t}",
    "Name the last item: {t}",
    "What comes last here: {t}",
)
_COUNT = (
    "How many words are in: {t}",
    "Count the words: {t}",
    "How many items are in: {t}",
    "Count these: {t}",
    "How many words do you see: {t}",
    "What is the number of words in: {t}",
)
_UPPER = (
    "Write in capitals: {t}",
    "Uppercase: {t}",
    "Write in upper case: {t}",
    "Put this in capital letters: {t}",
    "Make this uppercase: {t}",
    "In capitals please: {t}",
)
_SPELL = (
    "Spell {t}.",
    "How do you spell {t}?",
    "Spell the word {t}.",
    "Please spell {t}.",
    "Can you spell {t}?",
    "Which letters are in {t}?",
)
_CONTAINS = (
    "Is {q} in this list: {t}",
    "Does this list contain {q}: {t}",
    "Can you find {q} here: {t}",
    "Look for {q}: {t}",
    "Is there {q} among: {t}",
)


def make_text(source: Source) -> Dialogue:
    """Sort, reverse, first, last, count, contains, capitals, spelling."""
    words = source.sample(source.choice(_LISTS), source.randrange(2, 7))
    text, draw = ", ".join(words), source.random()
    if draw < 0.16:
        words = words[:4]
        question, answer = (
            source.pick_phrasing(_SORT).format(t=", ".join(words)),
            ", ".join(sorted(words, key=str.lower)),
        )
    elif draw < 0.30:
        question, answer = source.pick_phrasing(_REVERSE).format(t=text), ", ".join(words[::-1])
    elif draw < 0.44:
        question, answer = source.pick_phrasing(_FIRST).format(t=text), f"The first is {words[0]}."
    elif draw < 0.58:
        question, answer = source.pick_phrasing(_LAST).format(t=text), f"The last is {words[-1]}."
    elif draw < 0.70:
        question, answer = source.pick_phrasing(_COUNT).format(t=text), f"There are {len(words)}: {join_words(words)}."
    elif draw < 0.82:
        sought = source.choice(words) if source.random() < 0.5 else source.choice(source.choice(_LISTS))
        verdict = f"Yes, {sought} is in the list." if sought in words else f"No, {sought} is not in the list."
        question, answer = source.pick_phrasing(_CONTAINS).format(q=sought, t=text), verdict
    elif draw < 0.91:
        word = source.choice(_SPELLED)
        question, answer = source.pick_phrasing(_UPPER).format(t=word), word.upper()
    else:
        word = source.choice(_SPELLED)
        question, answer = source.pick_phrasing(_SPELL).format(t=word), " ".join(word.upper())
    return ask("text", source, question, answer)
