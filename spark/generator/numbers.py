"""Number tasks other than sums: comparing, counting on, even and odd, lists of numbers, number words, word problems.

All answers follow from the numbers in the question. Word problems with two numbers use the working of `sums.py`.
"""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

from collections.abc import Callable

from spark.generator.dialogue import Dialogue, Source, ask
from spark.generator.sums import work_difference, work_product, work_sum
from spark.generator.wording import dress
from spark.words import ANIMALS, FOODS, NAMES, OBJECTS

_WHICH = {
    "larger": (
        "Which is larger, {a} or {b}?", "What is larger, {a} or {b}?", "Which number is larger: {a} or {b}?", "Which is bigger, {a} or {b}?", "Is {a} or {b} larger?",
        "{a} or {b}: which is larger?", "Which is greater, {a} or {b}?", "Which number is bigger, {a} or {b}?", "What is more, {a} or {b}?", "Which is more, {a} or {b}?",
        "Tell me the larger number: {a} or {b}", "Say the bigger one: {a} or {b}", "Compare {a} and {b}: which is larger?", "Which number is greater: {a} or {b}?",
        "Which of {a} and {b} is larger?", "Of {a} and {b}, which number is the greater one?",
    ),
    "smaller": (
        "Which is smaller, {a} or {b}?", "What is smaller, {a} or {b}?", "Which number is smaller: {a} or {b}?", "Which is less, {a} or {b}?", "Is {a} or {b} smaller?",
        "{a} or {b}: which is smaller?", "Which number is less, {a} or {b}?", "What is less, {a} or {b}?", "Tell me the smaller number: {a} or {b}", "Say the smaller one: {a} or {b}",
        "Compare {a} and {b}: which is smaller?", "Which of {a} and {b} is smaller?", "Of {a} and {b}, which number is the smaller one?",
    ),
}  # fmt: skip
_IS = {
    "greater": (
        "Is {a} greater than {b}?", "Is {a} larger than {b}?", "Is {a} more than {b}?", "Is {a} bigger than {b}?", "Is {a} > {b}?", "Is the number {a} greater than {b}?",
        "Would you say {a} is more than {b}?", "Tell me if {a} is greater than {b}.", "True or false: {a} is greater than {b}", "Is it right that {a} is larger than {b}?",
    ),
    "less": (
        "Is {a} less than {b}?", "Is {a} smaller than {b}?", "Is {a} < {b}?", "Is the number {a} less than {b}?", "Would you say {a} is less than {b}?",
        "Tell me if {a} is less than {b}.", "True or false: {a} is less than {b}", "Is it right that {a} is smaller than {b}?",
    ),
}  # fmt: skip
_AFTER = {
    "after": (
        "What number comes after {a}?", "Which number comes after {a}?", "What comes after {a}?", "What is the next number after {a}?", "Next number after {a}?", "What follows {a}?",
        "Which number follows {a}?", "Count one up from {a}.", "Say the number after {a}.", "What is one more than {a}?", "Tell me the number that comes after {a}.",
        "Which number is next after {a}?", "Name the number that follows {a}.",
    ),
    "before": (
        "What number comes before {a}?", "Which number comes before {a}?", "What comes before {a}?", "What is the number before {a}?", "Number before {a}?", "Say the number before {a}.",
        "Count one down from {a}.", "What is one less than {a}?", "Tell me the number that comes before {a}.", "Which number is just before {a}?", "What is the previous number of {a}?",
        "Name the number that comes just before {a}.",
    ),
}  # fmt: skip
_COUNT = (
    "Count from {a} to {b}.", "Count from {a} up to {b}.", "Count from {a} to {b}, please.", "count from {a} to {b}", "Please count from {a} to {b}.", "Can you count from {a} to {b}?",
    "List the numbers from {a} to {b}.", "Write the numbers from {a} to {b}.", "Say the numbers from {a} to {b}.", "Give me all numbers from {a} to {b}.", "Numbers from {a} to {b}?",
    "Start at {a} and count to {b}.", "Which numbers go from {a} to {b}?", "Name all the numbers from {a} to {b}.",
)  # fmt: skip
_EVEN = (
    "Is {a} even or odd?", "Is {a} odd or even?", "Even or odd: {a}", "Is the number {a} even or odd?", "{a}: even or odd?", "Tell me if {a} is even or odd.", "Odd or even? {a}",
    "Is {a} an even number or an odd number?", "Is {a} an odd or an even number?", "Say if {a} is odd or even.", "Check if {a} is even or odd.", "Would you call {a} even or odd?",
)  # fmt: skip
_EXTREME = {
    "largest": (
        "What is the largest of {t}?", "Which is the largest: {t}", "Find the largest number: {t}", "Largest number: {t}", "What is the maximum of {t}?", "Maximum of {t}",
        "Which number is the largest: {t}", "Which is the biggest number: {t}", "max of {t}", "Tell me the largest of these numbers: {t}", "Pick the largest number: {t}",
        "What is the biggest of these numbers: {t}", "Find the maximum: {t}", "Which of these numbers is the largest? {t}",
    ),
    "smallest": (
        "What is the smallest of {t}?", "Which is the smallest: {t}", "Find the smallest number: {t}", "Smallest number: {t}", "What is the minimum of {t}?", "Minimum of {t}",
        "Which number is the smallest: {t}", "min of {t}", "Tell me the smallest of these numbers: {t}", "Pick the smallest number: {t}", "Find the minimum: {t}",
        "Which of these numbers is the smallest? {t}",
    ),
}  # fmt: skip
_SORT = (
    "Sort these numbers: {t}", "Sort the numbers {t}.", "Put these numbers in order: {t}", "Order these numbers: {t}", "Sort from smallest to largest: {t}", "Please sort these numbers: {t}",
    "Arrange these numbers: {t}", "Sort this list of numbers: {t}", "Can you sort these numbers? {t}", "Order from small to large: {t}", "Put these numbers in order from small to large: {t}",
)  # fmt: skip
_TO_WORDS = (
    "Write {a} in words.", "Write the number {a} in words.", "{a} in words", "How do you write {a} in words?", "Say {a} in words.", "What is {a} in words?", "Spell out {a}.",
    "Write {a} as words.", "Spell out the number {a}.", "Put {a} into words.", "{a} in words, please.", "How do you say {a} in words?", "Turn {a} into words.", "Write out the number {a} in words.",
)  # fmt: skip
_TO_DIGITS = (
    "Write {a} in digits.", "Write {a} as a number.", "{a} in digits", "What number is {a}?", "Write {a} with digits.", "How do you write {a} in digits?", "What is {a} in digits?",
    "Which number is {a}?", "Turn {a} into digits.", "{a} as a number, please.", "Give me {a} in digits.",
)  # fmt: skip
_DOUBLE = (
    "Double {a}.", "What is double {a}?", "What is twice {a}?", "Twice {a}?", "What is the double of {a}?", "Please double {a}.", "How much is double {a}?", "double {a}",
    "Double the number {a}.", "How much is twice {a}?", "Can you double {a}?",
)  # fmt: skip
_HALF = (
    "What is half of {a}?", "Half of {a}?", "Halve {a}.", "How much is half of {a}?", "half of {a}", "What is {a} divided by 2?", "Give me half of {a}.", "What is the half of {a}?",
    "Please halve {a}.", "Tell me half of {a}.",
)  # fmt: skip
# (story, sign): {n} and {m} are people, {t} things, {a} and {b} the numbers
_STORIES = (
    ("I have {a} {t} and get {b} more. How many {t} do I have?", "+"), ("{n} has {a} {t} and buys {b} more. How many {t} does {n} have?", "+"),
    ("{n} has {a} {t} and {m} has {b} {t}. How many {t} do they have together?", "+"), ("There are {a} {t} on the table and {b} {t} in the box. How many {t} are there?", "+"),
    ("I buy {a} {t} today and {b} {t} tomorrow. How many {t} do I buy?", "+"), ("{n} finds {a} {t}, then {b} more. How many {t} is that?", "+"),
    ("I had {a} {t}. {n} gave me {b} more. How many do I have now?", "+"), ("I have {a} {t} and lose {b}. How many {t} are left?", "-"),
    ("{n} has {a} {t} and gives {b} to {m}. How many {t} does {n} have left?", "-"), ("There are {a} {t}. I take {b} away. How many are left?", "-"),
    ("{n} had {a} {t} and sold {b}. How many {t} are left?", "-"), ("I had {a} {t} and used {b}. How many {t} do I have now?", "-"),
    ("There were {a} {t} in the shop and {b} were sold. How many {t} are left?", "-"), ("I have {a} boxes with {b} {t} each. How many {t} do I have?", "x"),
    ("{n} buys {a} bags of {b} {t} each. How many {t} is that?", "x"), ("There are {a} rows with {b} {t} in each row. How many {t} are there?", "x"),
    ("{n} owns {a} {t} and receives {b} more. How many {t} does {n} have now?", "+"),
)  # fmt: skip
_COUNTED = tuple(word for word in ANIMALS + OBJECTS + FOODS if word[-1] in "tknrpdlgem" and word not in (
    "fish", "mouse", "sheep", "deer", "moose", "bread", "butter", "cream", "ham", "bacon", "pork", "milk", "jam", "corn", "rice",
    "salt", "cereal", "oatmeal", "broccoli", "juice", "water", "lemonade", "cheese", "honey", "garlic", "goose", "chicken", "pasta", "spinach", "celery", "beef", "lettuce", "shrimp", "paper", "sugar", "coffee", "soap", "thread", "chocolate", "toast", "knife", "shelf", "salmon",
))  # fmt: skip
_ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
_TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()


def name_number(number: int) -> str:
    """ "forty-seven", "two hundred and five"; `number` below 1000."""
    if number >= 100:
        rest = f" and {name_number(number % 100)}" if number % 100 else ""
        return f"{_ONES[number // 100]} hundred{rest}"
    if number < 20:
        return _ONES[number]
    return _TENS[number // 10] + (f"-{_ONES[number % 10]}" if number % 10 else "")


def _draw(source: Source) -> int:
    """Mostly two digits, sometimes one or three."""
    return source.randrange(source.choice((10, 100, 100, 100, 1000)))


def _draw_pair(source: Source) -> tuple[int, int]:
    first, second = _draw(source), _draw(source)
    while first == second:
        second = _draw(source)
    return first, second


def make_comparison(source: Source) -> Dialogue:
    """Compare two numbers: name the larger or smaller one, or answer yes or no."""
    first, second = _draw_pair(source)
    if source.random() < 0.5:
        sought = source.choice(list(_WHICH))
        found, other = (
            (max(first, second), min(first, second)) if sought == "larger" else (min(first, second), max(first, second))
        )
        question = source.pick_phrasing(_WHICH[sought]).format(a=first, b=second)
        return ask("number_compare", source, dress(source, question), f"{found} is {sought} than {other}.")
    sought = source.choice(list(_IS))
    truth = "greater" if first > second else "less"
    question = source.pick_phrasing(_IS[sought]).format(a=first, b=second)
    says = (
        ("True" if truth == sought else "False") if question.startswith("True") else "Yes" if truth == sought else "No"
    )
    return ask("number_compare", source, dress(source, question), f"{says}, {first} is {truth} than {second}.")


def make_neighbor(source: Source) -> Dialogue:
    """The next or the previous number."""
    side, number = source.choice(list(_AFTER)), _draw(source) + 1
    question = source.pick_phrasing(_AFTER[side]).format(a=number)
    return ask("number_next", source, dress(source, question), str(number + 1 if side == "after" else number - 1))


def make_counting(source: Source) -> Dialogue:
    """Every number from a to b."""
    first = 1 if source.random() < 0.4 else source.randrange(source.choice((20, 100)))
    last = first + source.randrange(2, 12)
    question = source.pick_phrasing(_COUNT).format(a=first, b=last)
    return ask("number_count", source, dress(source, question), ", ".join(str(i) for i in range(first, last + 1)))


def make_parity(source: Source) -> Dialogue:
    number = _draw(source)
    question = source.pick_phrasing(_EVEN).format(a=number)
    return ask("number_even", source, dress(source, question), f"{number} is {'odd' if number % 2 else 'even'}.")


def make_extreme(source: Source) -> Dialogue:
    """The largest or smallest of a list; the work compares the best so far with the next."""
    sought = source.choice(list(_EXTREME))
    numbers = source.sample(range(source.choice((20, 100, 100, 1000))), source.randrange(3, 5))
    better = max if sought == "largest" else min
    best, steps = numbers[0], []
    for number in numbers[1:]:
        chosen = better(best, number)
        steps.append(f"{best} or {number}: {chosen}")
        best = chosen
    question = source.pick_phrasing(_EXTREME[sought]).format(t=", ".join(map(str, numbers)))
    return ask("number_extreme", source, dress(source, question), f"{'; '.join(steps)}. The {sought} is {best}.")


def make_number_sort(source: Source) -> Dialogue:
    """Two to four numbers below 100, from small to large."""
    numbers = source.sample(range(source.choice((10, 100))), source.randrange(2, 5))
    question = source.pick_phrasing(_SORT).format(t=", ".join(map(str, numbers)))
    return ask("number_sort", source, dress(source, question), ", ".join(map(str, sorted(numbers))))


def make_number_words(source: Source) -> Dialogue:
    """Digits to words and words to digits."""
    number = source.randrange(source.choice((20, 100, 100, 1000)))
    if source.random() < 0.6:
        question = source.pick_phrasing(_TO_WORDS).format(a=number)
        return ask("number_words", source, dress(source, question), name_number(number))
    question = source.pick_phrasing(_TO_DIGITS).format(a=name_number(number))
    return ask("number_words", source, dress(source, question), str(number))


def make_double(source: Source) -> Dialogue:
    """Twice a number below 100, as a sum; half of an even one."""
    if source.random() < 0.5:
        number = source.randrange(1, 100)
        question = source.pick_phrasing(_DOUBLE).format(a=number)
        return ask("number_double", source, dress(source, question), work_sum(number, number))
    number = source.randrange(2, 101, 2)
    question = source.pick_phrasing(_HALF).format(a=number)
    return ask("number_double", source, dress(source, question), f"Half of {number} is {number // 2}.")


def make_number_story(source: Source) -> Dialogue:
    """A story with two numbers; the answer is the work and the number of things."""
    story = source.pick_phrasing(tuple(story_text for story_text, _ in _STORIES))
    sign = dict(_STORIES)[story]
    limit = source.choice((10, 20, 50))
    first, second = source.randrange(2, limit), source.randrange(2, limit)
    if sign == "-":
        first, second = max(first, second) + 1, min(first, second)
    if sign == "x":
        first, second = source.randrange(2, 11), source.randrange(2, 11)
    name, other = source.sample(NAMES, 2)
    things = source.choice(_COUNTED) + "s"
    work = {"+": work_sum, "-": work_difference, "x": work_product}[sign](first, second).partition(" Answer")[0]
    result = {"+": first + second, "-": first - second, "x": first * second}[sign]
    unit = things if result != 1 else things[:-1]
    question = story.format(n=name, m=other, t=things, a=first, b=second)
    return ask("number_story", source, question, f"{work} Answer: {result} {unit}.")


NUMBER_KINDS: dict[Callable[[Source], Dialogue], float] = {
    make_comparison: 16, make_neighbor: 10, make_counting: 9, make_parity: 9, make_extreme: 10, make_number_sort: 7,
    make_number_words: 12, make_double: 9, make_number_story: 18,
}  # fmt: skip


def make_number(source: Source) -> Dialogue:
    """One of all kinds of work on numbers."""
    return source.choices(list(NUMBER_KINDS), list(NUMBER_KINDS.values()))[0](source)
