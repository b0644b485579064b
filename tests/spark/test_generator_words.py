"""Laws of copying, work on words and on numbers, and labels: every answer is computed again from its question."""

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from spark.generator import labels, letters, numbers, opinions, sums, text, topics
from spark.generator.dialogue import Dialogue, Source

Kind = Callable[[Source], Dialogue]
KINDS: tuple[Kind, ...] = (
    text.make_copy, *text.TEXT_KINDS, *sums.SUM_KINDS, *numbers.NUMBER_KINDS, labels.make_sentiment, topics.make_topic,
)  # fmt: skip


def draw(kind: Kind, count: int = 400, wants_new: bool = False) -> Iterator[tuple[str, str, Dialogue]]:
    source = Source(f"test-{kind.__name__}")
    for _ in range(count):
        source.wants_new_phrasing, source.used_new_phrasing = wants_new, False
        dialogue = kind(source)
        yield str(dialogue.prompt[-1]["content"]), dialogue.answer, dialogue


def read_numbers(question: str) -> list[int]:
    return [int(found) for found in re.findall(r"\d+", question)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_kind_is_the_same_for_the_same_seed_and_short(kind: Kind) -> None:
    """Same seed, same text; answers have no blanks at their ends; no dialogue is long; no slot stays open."""
    first, again = list(draw(kind, 150)), list(draw(kind, 150))
    assert first == again
    for question, response, _ in first:
        assert response == response.strip() != ""
        assert len(question) + len(response) < 420
        assert kind is text.make_copy or not re.search(r"\{\w\}", question)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_kind_has_a_wording_that_training_never_shows(kind: Kind) -> None:
    """Asked for the held-out wording every kind uses it; else never."""
    assert all(dialogue.is_new_phrasing for _, _, dialogue in draw(kind, 50, wants_new=True))
    assert not any(dialogue.is_new_phrasing for _, _, dialogue in draw(kind, 50))


def test_a_copy_is_verbatim() -> None:
    """The answer stands in the question, character for character, and all sorts of characters occur."""
    seen = ""
    for question, response, _ in draw(text.make_copy, 3000):
        assert response in question
        assert not (response[0] == response[-1] and response[0] in "\"'")
        seen += response
    assert set("éüñß@{}=<>/\\\"'0123456789.,;:!?€") <= set(seen)
    assert re.search(r"[a-z][A-Z]", seen)


@pytest.mark.parametrize(
    ("kind", "sign"),
    [
        (sums.make_plus, "+"), (sums.make_long_sum, "+"), (sums.make_difference, "-"), (sums.make_long_difference, "-"),
        (sums.make_product, "x"), (sums.make_long_product, "x"),
    ],
)  # fmt: skip
def test_the_result_and_every_step_of_a_sum_are_right(kind: Kind, sign: str) -> None:
    """Computed again from the numbers of the question; each written step is true by itself."""
    for question, response, _ in draw(kind, 2000):
        given = read_numbers(question)
        result = sum(given)
        if sign == "-":
            result = max(given) - min(given)
        elif sign == "x":
            result = given[0] * given[1]
        assert int(response.rstrip(".").split(" ")[-1]) == result, question
        check_steps(response)


def check_steps(answer: str) -> None:
    for left, value in re.findall(r"((?:\d+ [-+x] )+\d+) = (\d+)", answer):
        assert eval(left.replace("x", "*")) == int(value), answer  # digits and signs only
    assert " = -" not in answer


def test_the_work_of_all_small_differences_and_products_ends_in_the_result() -> None:
    """Borrow and carry are right for every pair, also over a zero."""
    for first in (*range(100), 100, 302, 500, 801, 999):
        for second in range(first + 1):
            response = sums.work_difference(first, second)
            assert response.endswith(f" {first - second}.")
            check_steps(response)
    for first in range(100):
        for second in range(11):
            check_steps(sums.work_product(first, second))
            assert sums.work_product(first, second).endswith(f" {first * second}.")


def read_list(question: str, pool: frozenset[str]) -> list[str]:
    return [word for word in re.findall(r"[\w-]+", question) if word in pool]


POOL = frozenset(word for listed in text._LISTS for word in listed) - {"order", "number", "list"}


@pytest.mark.parametrize("kind", [text.make_sort, text.make_reverse, text.make_count], ids=lambda kind: kind.__name__)
def test_lists_are_sorted_reversed_and_counted(kind: Kind) -> None:
    """The result equals what Python makes of the words in the question."""
    for question, response, dialogue in draw(kind):
        words = read_list(question, POOL)
        if dialogue.kind == "text_sort":
            assert response.endswith(f"Answer: {', '.join(sorted(words, key=str.lower))}.")
            assert len({word[0].lower() for word in words}) == len(words)
        elif dialogue.kind == "text_reverse":
            assert response.split(", ") == words[::-1]
        else:
            assert response.endswith(f"There are {len(words)}.")


def test_item_is_the_requested_one() -> None:
    """First, last and n-th."""
    for question, response, _ in draw(text.make_item):
        words = read_list(question, POOL)
        found = re.search(r"The (\w+) is (\S+)\.$", response)
        assert found is not None
        name, word = found.groups()
        assert re.search(name, question, re.IGNORECASE)
        assert word == words[-1 if name == "last" else text.ORDINALS.index(name)]


def test_replacing_removing_and_appending_change_one_word() -> None:
    """Removed words were in the question's line, and added words were requested."""
    for kind in (text.make_replace, text.make_remove, text.make_append):
        for question, response, _ in draw(kind):
            said = re.findall(r"\w+", question)
            assert all(word in said for word in re.findall(r"\w+", response)), question


def test_contains_tells_the_truth() -> None:
    """Yes exactly where the sought word stands among the listed."""
    for question, response, _ in draw(text.make_contains):
        sought = response.split()[1]
        assert response.startswith("Yes") == (len(re.findall(rf"\b{sought}\b", question)) == 2), question


def test_letters_are_those_of_the_word() -> None:
    """Spelling, counts, first and last letters, the longest word."""
    for question, response, _ in draw(letters.make_spelling):
        assert response.replace(" ", "").lower() in question.lower()
    for question, response, _ in draw(letters.make_letter_count):
        word = next(w for w in letters.SPELLED if re.search(rf"\b{w}\b", question) and w.lower() == spelled(response))
        if response.endswith("letters."):
            assert response.endswith(f" {word} has {len(word)} letters.")
        else:
            drawn = [c for c in re.findall(r"\b([a-z])\b", question) if c not in ("s", "t") or f" {c}" in question]
            assert any(response.endswith(f"Answer: {word.lower().count(letter)}.") for letter in drawn), question
    for _, response, _ in draw(letters.make_first_letter):
        name, word, letter = re.findall(r"The (\w+) letter of (\w+) is (\w)", response)[0]
        assert word[0 if name == "first" else -1].upper() == letter
    for _, response, _ in draw(letters.make_longest):
        lengths = {word: int(length) for word, length in re.findall(r"(\w+) (\d)", response)}
        assert all(len(word) == length for word, length in lengths.items())
        assert response.endswith(f"The longest is {max(lengths, key=len)}.")


def spelled(answer: str) -> str:
    return "".join(re.findall(r"\b[A-Z]\b", answer.partition(".")[0])).lower()


def test_comparisons_and_extremes_are_true() -> None:
    """Larger, smaller, yes, no, even, odd, the largest and the smallest."""
    for question, response, _ in draw(numbers.make_comparison, 1000):
        first, second = read_numbers(response)
        assert sorted(read_numbers(question)) == sorted((first, second))
        assert (first > second) == bool(re.search("larger|greater", response))
        if response.startswith(("Yes", "No", "True", "False")):
            asks_greater = not re.search("less|smaller|<", question)
            assert response.startswith(("Yes", "True")) == (asks_greater == (first > second)), question
    for question, response, _ in draw(numbers.make_extreme):
        best = max if re.search("largest|biggest|max", question, re.IGNORECASE) else min
        assert response.endswith(f" is {best(read_numbers(question))}.")
    for question, response, _ in draw(numbers.make_parity):
        assert response == f"{read_numbers(question)[0]} is {'odd' if read_numbers(question)[0] % 2 else 'even'}."


def test_counting_sorting_and_neighbors_are_right() -> None:
    """Computed again from the question."""
    for question, response, _ in draw(numbers.make_counting):
        counted = read_numbers(response)
        assert [counted[0], counted[-1]] == read_numbers(question)
        assert all(after - before == 1 for before, after in pairwise(counted))
    for question, response, _ in draw(numbers.make_number_sort):
        assert read_numbers(response) == sorted(read_numbers(question))
    for question, response, _ in draw(numbers.make_neighbor):
        goes_up = not re.search("before|down|less|previous", question)
        assert int(response) - read_numbers(question)[0] == (1 if goes_up else -1), question
    for question, response, _ in draw(numbers.make_double):
        given = read_numbers(question)[0]
        result = read_numbers(response)[-1]
        assert result == (given // 2 if response.startswith("Half") else given * 2)


def test_number_words_name_every_number_once() -> None:
    """Names below 1000 are all different and read as English does."""
    assert len({numbers.name_number(i) for i in range(1000)}) == 1000
    assert numbers.name_number(47) == "forty-seven"
    assert numbers.name_number(305) == "three hundred and five"
    assert numbers.name_number(110) == "one hundred and ten"


def test_a_story_counts_its_things() -> None:
    """The work is true and ends in the number of things."""
    for question, response, _ in draw(numbers.make_number_story, 800):
        first, second = read_numbers(question)
        sign = response.partition(":")[0].split(" ")[1]
        result = {"+": first + second, "-": first - second, "x": first * second}[sign]
        assert re.search(rf"Answer: {result} \w+\.$", response), question
        check_steps(response)


def test_neutral_is_used_only_if_the_question_allows_it() -> None:
    """A question that names two labels gets one of the two; open ones get all three."""
    seen = set()
    for question, response, _ in draw(labels.make_sentiment, 3000):
        names_two = re.search("positive (or|or a) negative", question, re.IGNORECASE) and "neutral" not in question
        assert response in (("positive", "negative") if names_two else ("positive", "negative", "neutral"))
        seen.add((bool(names_two), response))
    assert len(seen) == 5


def test_no_word_or_clause_judges_both_ways() -> None:
    """The lists of the two labels share no entry, and are wide."""
    for table in (opinions.ADJECTIVES, opinions.VERBS, opinions.SAYINGS):
        assert not set(table["positive"]) & set(table["negative"])
    for label in ("positive", "negative"):
        entries = sum(len(table[label]) for table in (opinions.ADJECTIVES, opinions.VERBS, opinions.SAYINGS))
        assert entries > 290


def test_the_clause_after_but_decides() -> None:
    """If two clauses disagree, the last one has the label. The test uses the same word lists as the generator."""
    source = Source("contrast")
    for _ in range(300):
        opinion = labels._draw_contrast(source, "film", "positive")
        last = re.split(r"[ .,-]+(?:but|However|however) ", opinion)[-1]
        assert not any(last == saying for saying in opinions.SAYINGS["negative"]), opinion
        assert not any(last in (verb, f"it {verb}") for verb in opinions.VERBS["negative"]), opinion


def test_a_topic_is_that_of_its_words() -> None:
    """No word has two topics; the label's words stand in the text; listed labels contain it."""
    every = [word for listed in topics.TOPICS.values() for word in listed]
    assert sorted(set(every)) == sorted(every)
    for question, response, _ in draw(topics.make_topic, 1500):
        said = set(re.findall(r"\w+", question.lower()))
        assert said & {word.lower() for word in topics.TOPICS[response]}, question
        listed = [label for label in topics.TOPICS if re.search(rf"\b{label}(,| or|[:?.])", question)]
        assert len(listed) < 2 or response in listed
