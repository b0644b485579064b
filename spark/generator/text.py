"""Word tasks: copying (its own gate), lists and their order, and single words in a list.

Where a small model has to count or compare, the answer shows the working and ends with the result. Each `make_*`
function is one kind; `make_text` draws among all except copying. Letters inside a word are in `letters.py`.
"""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

from collections.abc import Callable, Sequence

from spark.generator.copying import draw_nonsense, draw_sentence, draw_text, draw_words
from spark.generator.dialogue import Dialogue, Source, ask
from spark.generator.letters import make_case, make_first_letter, make_letter_count, make_longest, make_spelling
from spark.generator.wording import OPENINGS
from spark.words import ANIMALS, CITIES, COLORS, FOODS, JOBS, LEXICON, NAMES, NOUNS, OBJECTS, PLACES, VALUES

__all__ = ["draw_sentence", "draw_words", "make_copy", "make_induction", "make_text"]

_COPY = (
    "Repeat: {t}", "Repeat after me: {t}", "Say: {t}", "Copy this: {t}", "Please repeat: {t}", "Say this: {t}",
    "Write this again: {t}", "Echo: {t}", "Repeat the following: {t}", "Please copy the following: {t}", "Type this: {t}",
    "Can you repeat this? {t}", "Repeat this text: {t}", "Copy the text: {t}", "Can you say this: {t}", "repeat {t}",
    "Repeat exactly: {t}", "Repeat this word for word: {t}", "Copy this line without changes: {t}", "Echo back: {t}",
    "Return this unchanged: {t}", "Output exactly the following: {t}", "Write exactly this: {t}", "Print: {t}",
    'Repeat "{t}"', 'Say "{t}".', 'Copy "{t}" exactly.', 'Please say "{t}" again.', "Repeat this line:\n{t}",
    "Copy the following text:\n\n{t}", "{t}\n\nRepeat the text above.", "{t}\nCopy the line above.", "Give this back to me: {t}",
    "Answer with exactly this text: {t}", "Say it again: {t}", "Return the text as it is: {t}", "Reply with: {t}", "say {t}",
    "Return the following text unchanged: {t}",
)  # fmt: skip


def make_copy(source: Source) -> Dialogue:
    """Say this again: whatever fits in a line, verbatim."""
    text = draw_text(source)
    wording = source.pick_phrasing(_COPY)
    while '"{t}"' in wording and '"' in text:
        text = draw_sentence(source)
    question = wording.format(t=text)
    if not wording.startswith("{t}") and source.random() < 0.12:
        question = source.choice(OPENINGS) + question
    return ask("copy", source, question, text)


def make_induction(source: Source) -> Dialogue:
    """Long random lists copied or looked up: for the first phase alone, where attention learns to copy."""
    pool = source.sample(LEXICON + NAMES + CITIES, source.randrange(8, 25))
    if source.random() < 0.3:
        pool = list(dict.fromkeys(draw_nonsense(source) if source.random() < 0.3 else word for word in pool))
    pool[0] = source.choice(VALUES)
    draw = source.random()
    if draw < 0.5:
        text = " ".join(pool)
        return ask("induction", source, f"Repeat: {text}", text, can_join=False)
    keys, values = pool[: len(pool) // 2], pool[len(pool) // 2 : len(pool) // 2 * 2]
    listed = ", ".join(f"{key} is {value}" for key, value in zip(keys, values, strict=True))
    chosen = source.sample(range(len(keys)), min(len(keys), 4))
    if draw < 0.8:
        wanted_keys = ", ".join(keys[i] for i in chosen)
        answer = ", ".join(f"{keys[i]} is {values[i]}" for i in chosen)
        return ask("induction", source, f"Say what {wanted_keys} is: {listed}", answer, can_join=False)
    start = source.randrange(len(pool) - 2)
    text = " ".join(pool)
    return ask("induction", source, f"Go on after {pool[start]}: {text}", " ".join(pool[start + 1 :]), can_join=False)


_LISTS = (ANIMALS, FOODS, OBJECTS, COLORS, PLACES, NAMES, CITIES, JOBS)
_SORT = (
    "Sort these words: {t}", "Sort: {t}", "Put these words in alphabetical order: {t}", "Order alphabetically: {t}",
    "Sort these words by the alphabet: {t}", "Please sort: {t}", "Sort this list: {t}", "Alphabetical order: {t}",
    "Sort alphabetically: {t}", "Can you sort these words? {t}", "Put this list in alphabetical order: {t}",
    "Sort the words {t}.", "Order these words from A to Z: {t}", "Sort from A to Z: {t}", "List these alphabetically: {t}",
    "Bring these words into alphabetical order: {t}", "Arrange alphabetically: {t}", "Arrange these words from A to Z: {t}",
    "Arrange in alphabetical order: {t}",
)  # fmt: skip
_REVERSE = (
    "Reverse the order of: {t}", "Reverse this list: {t}", "Say these backwards: {t}", "Reverse: {t}", "Reverse the list: {t}",
    "Put these in reverse order: {t}", "Please reverse: {t}", "Write this list backwards: {t}", "List these in reverse: {t}",
    "Give me this list backwards: {t}", "Reverse these words: {t}", "In reverse order: {t}", "Backwards please: {t}",
    "Can you reverse this list? {t}", "Say this list from the end to the start: {t}", "Turn this around: {t}",
    "Turn the order of these words around: {t}", "Repeat in reverse order: {t}", "Turn this list around: {t}",
)  # fmt: skip
_FIRST = (
    "What is the {o} word of: {t}", "{O} word of: {t}", "Which word comes {o}: {t}", "Give me the {o} of: {t}", "{O} item: {t}",
    "What is the {o} word in this list: {t}", "Name the {o} item: {t}", "Tell me the {o} word: {t}", "Which is the {o}: {t}",
    "What is the {o} item in this list? {t}", "Say the {o} word: {t}", "The {o} word, please: {t}", "Pick the {o} one: {t}",
    "Which item is {o} in the list: {t}", "Find the {o} word: {t}", "{t}. Which one is {o}?", "{t}. What is the {o} word?",
    "Which of these is the {o}: {t}", "What comes {o} here: {t}",
)  # fmt: skip
_COUNT = (
    "How many words are in: {t}", "Count the words: {t}", "How many items are in: {t}", "Count these: {t}", "How many are these: {t}",
    "How many words do you see: {t}", "Count: {t}", "How many words are in this list: {t}", "Count the items: {t}", "How long is this list: {t}",
    "Please count: {t}", "Count the items in this list: {t}", "How many things are in this list? {t}", "How many items does this list have: {t}",
    "{t}. How many words is that?", "Number of items: {t}", "Tell me how many words there are: {t}", "What is the number of items: {t}",
    "What is the number of words in: {t}",
)  # fmt: skip
_CONTAINS = (
    "Is {q} in this list: {t}", "Does this list contain {q}: {t}", "Can you find {q} here: {t}", "Look for {q}: {t}",
    "Is {q} in the list? {t}", "Is {q} one of these: {t}", "Does the list have {q}: {t}", "Check for {q} in: {t}", "Do you see {q} here? {t}",
    "Is the word {q} in: {t}", "Is {q} here: {t}", "{t}. Is {q} in this list?", "{t}. Does it contain {q}?", "Find {q} in this list: {t}",
    "Tell me if {q} is in: {t}", "Can you see {q} among these: {t}", "Is {q} among these words: {t}", "Is there {q} among: {t}",
)  # fmt: skip
_JOIN = {
    "commas": (
        "Join with commas: {t}", "Put commas between these words: {t}", "Write with commas: {t}", "Separate these words with commas: {t}",
        "Make a comma list: {t}", "Join these words with commas: {t}", "Add commas: {t}", "Comma separated, please: {t}", "Write these as a list with commas between them: {t}",
    ),
    "dashes": (
        "Join with dashes: {t}", "Put dashes between these words: {t}", "Write with dashes: {t}", "Separate these words with dashes: {t}",
        "Join these words with dashes: {t}", "Add dashes: {t}", "Write these with dashes between them: {t}",
    ),
    "numbers": (
        "Make a numbered list: {t}", "Number these: {t}", "Write as a numbered list: {t}", "Turn this into a numbered list: {t}", "Numbered list of: {t}",
        "List these with numbers: {t}", "Please number these items: {t}", "Give me a numbered list of {t}.", "Put these items in a numbered list: {t}",
    ),
    "bullets": (
        "Make a bullet list: {t}", "Write as bullet points: {t}", "Turn this into a bullet list: {t}", "Bullet list of: {t}", "List these as bullets: {t}",
        "Give me a bullet list of {t}.", "Bullet points, please: {t}", "Write as a list with bullets: {t}", "Put these items in a bullet list: {t}",
    ),
}  # fmt: skip
_REPLACE = (
    "Replace {q} with {r}: {t}", "Replace {q} by {r} in: {t}", "Change {q} to {r}: {t}", "Change {q} to {r} in: {t}", "Write {r} instead of {q}: {t}",
    "Put {r} in place of {q}: {t}", "Use {r} instead of {q}: {t}", "Swap {q} for {r}: {t}", "Please replace {q} with {r}: {t}",
    "Replace the word {q} with {r}: {t}", "Turn {q} into {r}: {t}", "{t}. Replace {q} with {r}.", "{t}. Change {q} to {r}.",
    "Say this with {r} instead of {q}: {t}", "Exchange {q} for {r}: {t}", "Change the word {q} into {r}: {t}",
)  # fmt: skip
_REMOVE = (
    "Remove {q} from: {t}", "Remove {q}: {t}", "Take {q} out of: {t}", "Delete {q} from: {t}", "Leave out {q}: {t}", "Delete the word {q}: {t}",
    "Remove the word {q} from: {t}", "Without {q}: {t}", "Say this without {q}: {t}", "Drop {q} from: {t}", "Please remove {q} from this list: {t}",
    "Take {q} off this list: {t}", "{t}. Remove {q}.", "{t}. Delete {q}.", "Repeat without {q}: {t}", "Cut {q} from: {t}", "Take the word {q} out of this list: {t}",
)  # fmt: skip
_APPEND = (
    "Add {q} to: {t}", "Add {q} to the list: {t}", "Add {q} at the end: {t}", "Append {q}: {t}", "Append {q} to: {t}", "Put {q} at the end of: {t}",
    "Add {q} to this list: {t}", "Please add {q} to: {t}", "Add the word {q} to: {t}", "{t}. Add {q}.", "{t}. Add {q} to this list.", "Append the word {q} to this list: {t}",
    "Extend the list with {q}: {t}", "Put {q} on this list: {t}", "Add the word {q} at the end of this list: {t}",
)  # fmt: skip
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")


def _draw_list(source: Source, least: int, most: int) -> list[str]:
    return source.sample(source.choice(_LISTS), source.randrange(least, most + 1))


def number_items(words: Sequence[str]) -> str:
    """ "1 apple, 2 pear": the work of counting."""
    return ", ".join(f"{i} {word}" for i, word in enumerate(words, 1))


def make_sort(source: Source) -> Dialogue:
    """Words with different first letters; the answer writes each letter, takes them in order, and says the words."""
    found: dict[str, str] = {}
    for word in _draw_list(source, 8, 12):
        found.setdefault(word[0].lower(), word)
    words = list(found.values())[: source.randrange(2, 6)]
    letters = ", ".join(f"{word} {word[0].lower()}" for word in words)
    inorder = sorted(words, key=str.lower)
    taken = ", ".join(f"{word[0].lower()} {word}" for word in inorder)
    question = source.pick_phrasing(_SORT).format(t=", ".join(words))
    return ask("text_sort", source, _open(source, question), f"{letters}: {taken}. Answer: {', '.join(inorder)}.")


def make_reverse(source: Source) -> Dialogue:
    words = _draw_list(source, 2, 6)
    question = source.pick_phrasing(_REVERSE).format(t=", ".join(words))
    return ask("text_reverse", source, _open(source, question), ", ".join(words[::-1]))


def make_item(source: Source) -> Dialogue:
    """The first, last or n-th of a list; the n-th is counted off."""
    words = _draw_list(source, 2, 6)
    draw = source.random()
    place = 0 if draw < 0.35 else len(words) - 1 if draw < 0.7 else source.randrange(1, len(words))
    name = "first" if place == 0 else "last" if draw < 0.7 else ORDINALS[place]
    wording = source.pick_phrasing(_FIRST)
    question = wording.format(o=name, O=name.capitalize(), t=", ".join(words))
    work = "" if name in ("first", "last") else number_items(words[: place + 1]) + ". "
    return ask("text_item", source, _open(source, question), f"{work}The {name} is {words[place]}.")


def make_count(source: Source) -> Dialogue:
    """Count the items of a list: number each, then state the count."""
    words = _draw_list(source, 2, 9)
    question = source.pick_phrasing(_COUNT).format(t=", ".join(words))
    return ask("text_count", source, _open(source, question), f"{number_items(words)}. There are {len(words)}.")


def make_contains(source: Source) -> Dialogue:
    words = _draw_list(source, 2, 6)
    pool = next(listed for listed in _LISTS if set(words) <= set(listed))
    sought = source.choice(words) if source.random() < 0.5 else source.choice(pool)
    verdict = f"Yes, {sought} is in the list." if sought in words else f"No, {sought} is not in the list."
    question = source.pick_phrasing(_CONTAINS).format(q=sought, t=", ".join(words))
    return ask("text_contains", source, _open(source, question), verdict)


def make_join(source: Source) -> Dialogue:
    """Words joined by commas or dashes, or as a numbered or bulleted list."""
    words = _draw_list(source, 2, 6)
    form = source.choice(list(_JOIN))
    given = " ".join(words) if form in ("commas", "dashes") else ", ".join(words)
    question = source.pick_phrasing(_JOIN[form]).format(t=given)
    answer = {
        "commas": ", ".join(words), "dashes": "-".join(words), "bullets": "\n".join(f"- {word}" for word in words),
        "numbers": "\n".join(f"{i}. {word}" for i, word in enumerate(words, 1)),
    }[form]  # fmt: skip
    return ask("text_join", source, _open(source, question), answer)


def _draw_line(source: Source) -> tuple[list[str], str]:
    """Words of a list and what stands between them: a comma, or a blank between random words."""
    if source.random() < 0.5:
        return _draw_list(source, 2, 6), ", "
    return source.sample(NOUNS, source.randrange(3, 7)), " "


def make_replace(source: Source) -> Dialogue:
    words, separator = _draw_line(source)
    old, new = source.choice(words), source.choice([word for word in source.sample(NOUNS, 9) if word not in words])
    question = source.pick_phrasing(_REPLACE).format(q=old, r=new, t=separator.join(words))
    return ask("text_replace", source, _open(source, question), separator.join(new if w == old else w for w in words))


def make_remove(source: Source) -> Dialogue:
    words, separator = _draw_line(source)
    gone = source.choice(words)
    question = source.pick_phrasing(_REMOVE).format(q=gone, t=separator.join(words))
    return ask("text_remove", source, _open(source, question), separator.join(word for word in words if word != gone))


def make_append(source: Source) -> Dialogue:
    words = _draw_list(source, 2, 6)
    added = source.choice([word for word in source.sample(NOUNS, 9) if word not in words])
    question = source.pick_phrasing(_APPEND).format(q=added, t=", ".join(words))
    return ask("text_append", source, _open(source, question), ", ".join([*words, added]))


def _open(source: Source, question: str) -> str:
    """Only an opening, and seldom: what comes after a list would look like part of it."""
    return source.choice(OPENINGS) + question if source.random() < 0.12 else question


TEXT_KINDS: dict[Callable[[Source], Dialogue], float] = {
    make_sort: 14, make_reverse: 9, make_item: 14, make_count: 9, make_contains: 9, make_join: 9, make_replace: 7,
    make_remove: 6, make_append: 5, make_case: 8, make_spelling: 8, make_letter_count: 8, make_first_letter: 4, make_longest: 4,
}  # fmt: skip


def make_text(source: Source) -> Dialogue:
    """One of all kinds of work on words."""
    return source.choices(list(TEXT_KINDS), list(TEXT_KINDS.values()))[0](source)
