"""Sums, differences and products with written working, ones first, as on paper.

Two operands below 100 are the gate; longer sums and differences, three operands and products with one digit follow the
same steps. `work_*` is the model's output; every step needs only digits that are close by. Other number tasks are in
`numbers.py`.
"""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

from collections.abc import Callable

from spark.generator.dialogue import Dialogue, Source, ask
from spark.generator.wording import OPENINGS

_ANY = (
    "What is {e}?", "What's {e}?", "{e}", "{e} =", "{e}?", "Calculate {e}.", "Compute {e}.", "How much is {e}?", "{e} = ?",
    "Tell me {e}.", "Please calculate {e}.", "Can you calculate {e}?", "Solve {e}.", "What does {e} make?", "what is {e}",
    "What is the result of {e}?", "I need {e}.", "Work out {e}.", "Find {e}.", "Answer this: {e}", "Do you know {e}?",
)  # fmt: skip
_HELD_OUT = "Give me the result of {e}."
_WORDINGS = {
    "+": (
        "Add {a} and {b}.", "What is {a} plus {b}?", "What is the sum of {a} and {b}?", "{a} plus {b}", "How much is {a} plus {b}?",
        "Add {b} to {a}.", "{a} and {b} together?", "what's {a} plus {b}", "Give me the sum of {a} and {b}.", "Calculate {a} plus {b}.",
    ),
    "-": (
        "What is {a} minus {b}?", "{a} minus {b}", "How much is {a} minus {b}?", "Subtract {b} from {a}.", "Take {b} away from {a}.",
        "What is the difference of {a} and {b}?", "what's {a} minus {b}", "Calculate {a} minus {b}.", "Give me {a} minus {b}.",
    ),
    "x": (
        "What is {a} times {b}?", "{a} times {b}", "How much is {a} times {b}?", "Multiply {a} by {b}.", "{a} multiplied by {b}",
        "What is the product of {a} and {b}?", "what's {a} times {b}", "Calculate {a} times {b}.", "What is {a} * {b}?", "{a}*{b}",
        "Multiply {a} and {b}.", "What is {a} multiplied by {b}?", "Give me {a} times {b}.",
    ),
}  # fmt: skip


def say(source: Source, sign: str, first: int, *others: int) -> str:
    """A question for "first sign second ...": in signs mostly, in words sometimes."""
    if len(others) == 1 and not source.wants_new_phrasing and source.random() < 0.35:
        question = source.choice(_WORDINGS[sign]).format(a=first, b=others[0])
    else:
        blank = "" if source.random() < 0.2 else " "
        expression = f"{blank}{sign}{blank}".join(str(number) for number in (first, *others))
        question = source.pick_phrasing((*_ANY, _HELD_OUT)).format(e=expression)
    return source.choice(OPENINGS) + question if source.random() < 0.1 else question


def work_sum(first: int, second: int) -> str:
    """ "47 + 38: 7 + 8 = 15, carry 1; 4 + 3 + 1 = 8. Answer: 85." """
    if first < 10 and second < 10:
        return f"{first} + {second} = {first + second}."
    one, other, carry, steps = first, second, 0, []
    while one or other or carry:
        total = one % 10 + other % 10 + carry
        step = f"{one % 10} + {other % 10}" + (" + 1" if carry else "") + f" = {total}"
        one, other, carry = one // 10, other // 10, total // 10
        if not (one or other):
            steps.append(step)  # the last column keeps all its digits
            break
        steps.append(step + (", carry 1" if carry else ""))
    return f"{first} + {second}: {'; '.join(steps)}. Answer: {first + second}."


def work_difference(first: int, second: int) -> str:
    """ "52 - 38: 2 - 8 borrow, 12 - 8 = 4; 5 - 1 = 4, 4 - 3 = 1. Answer: 14." `second` is not above `first`."""
    if first < 10:
        return f"{first} - {second} = {first - second}."
    one, other, has_borrowed, steps = first, second, False, []
    while one:
        top, below = one % 10, other % 10
        step = f"{top} - 1 = {top - 1}, " if has_borrowed and top else ""
        if has_borrowed and not top:
            step = "0 - 1 borrow, 10 - 1 = 9, "
        digit = (top - has_borrowed) % 10
        has_borrowed = top - has_borrowed < below
        if has_borrowed and digit < below:
            step += f"{digit} - {below} borrow, {digit + 10} - {below} = {digit + 10 - below}"
        else:
            step += f"{digit} - {below} = {digit - below}"
        steps.append(step)
        one, other = one // 10, other // 10
    return f"{first} - {second}: {'; '.join(steps)}. Answer: {first - second}."


def work_product(first: int, second: int) -> str:
    """ "47 x 6: 7 x 6 = 42, carry 4; 4 x 6 = 24, 24 + 4 = 28. Answer: 282." One operand is at most 10."""
    if first <= 10 and second <= 10:
        return f"{first} x {second} = {first * second}."
    long, short = max(first, second), min(first, second)
    if short == 10:
        return f"{first} x {second} = {first * second}."
    ones, tens = long % 10 * short, long // 10 * short
    text = f"{first} x {second}: {long % 10} x {short} = {ones}"
    if ones >= 10:
        text += f", carry {ones // 10}; {long // 10} x {short} = {tens}, {tens} + {ones // 10} = {tens + ones // 10}."
    else:
        text += f"; {long // 10} x {short} = {tens}."
    return f"{text} Answer: {first * second}."


def make_plus(source: Source) -> Dialogue:
    """Two operands below 100."""
    limit = 10 if source.random() < 0.2 else 100
    first, second = source.randrange(limit), source.randrange(limit)
    return ask("sum", source, say(source, "+", first, second), work_sum(first, second))


def make_long_sum(source: Source) -> Dialogue:
    """Three digits and two or three, or three operands of one digit."""
    if source.random() < 0.35:
        first, second, third = (source.randrange(10) for _ in range(3))
        both = first + second
        answer = f"{first} + {second} = {both}; {both} + {third} = {both + third}. Answer: {both + third}."
        return ask("sum_long", source, say(source, "+", first, second, third), answer)
    first, second = source.randrange(100, 1000), source.randrange(10, source.choice((100, 1000)))
    if source.random() < 0.3:
        first, second = second, first
    return ask("sum_long", source, say(source, "+", first, second), work_sum(first, second))


def make_difference(source: Source) -> Dialogue:
    """Two operands below 100, the larger first; one digit seldom."""
    limit = 10 if source.random() < 0.15 else 100
    pair = source.randrange(limit), source.randrange(limit)
    return ask("difference", source, say(source, "-", max(pair), min(pair)), work_difference(max(pair), min(pair)))


def make_long_difference(source: Source) -> Dialogue:
    """Three digits less two or three."""
    pair = source.randrange(100, 1000), source.randrange(10, source.choice((100, 1000)))
    answer = work_difference(max(pair), min(pair))
    return ask("difference_long", source, say(source, "-", max(pair), min(pair)), answer)


def make_product(source: Source) -> Dialogue:
    """The table up to 10 x 10."""
    first, second = source.randrange(11), source.randrange(11)
    if source.random() < 0.5:
        first, second = source.randrange(2, 10), source.randrange(2, 10)
    return ask("product", source, say(source, "x", first, second), work_product(first, second))


def make_long_product(source: Source) -> Dialogue:
    """Two digits times one."""
    pair = [source.randrange(11, 100), source.randrange(2, 11)]
    if source.random() < 0.3:
        pair.reverse()
    return ask("product_long", source, say(source, "x", *pair), work_product(*pair))


SUM_KINDS: dict[Callable[[Source], Dialogue], float] = {
    make_plus: 42, make_difference: 24, make_product: 20, make_long_sum: 5, make_long_difference: 4, make_long_product: 5,
}  # fmt: skip


def make_sum(source: Source) -> Dialogue:
    """One of all kinds of this module."""
    return source.choices(list(SUM_KINDS), list(SUM_KINDS.values()))[0](source)
