"""Sums and differences with the carry written out, single digits, and the small multiplication table."""

from spark.generator.dialogue import Dialogue, Source, ask

_WORDINGS = (
    "What is {e}?", "What's {e}?", "{e}", "{e} =", "{e}?", "Calculate {e}.", "Compute {e}.", "How much is {e}?",
    "Tell me {e}.", "Please calculate {e}.", "Can you calculate {e}?", "Solve {e}.", "What does {e} make?",
    "What is the result of {e}?", "I need {e}.", "Work out {e}.", "Give me the result of {e}.",
)  # fmt: skip
_ADD = (
    "Add {a} and {b}.",
    "What is {a} plus {b}?",
    "What is the sum of {a} and {b}?",
    "{a} plus {b}",
    "How much is {a} plus {b}?",
)


def make_sum(source: Source) -> Dialogue:
    """Two operands below 100; the answer shows the work where there is some."""
    draw = source.random()
    if draw < 0.08:
        first, second = source.randrange(11), source.randrange(11)
        text = f"{first} x {second} = {first * second}."
        return ask("product", source, _say(source, first, second, "x"), text)
    first, second = source.randrange(100), source.randrange(100)
    if draw < 0.30:
        first, second = source.randrange(10), source.randrange(10)
    if draw > 0.85:
        first, second = max(first, second), min(first, second)
        return ask("difference", source, _say(source, first, second, "-"), work_difference(first, second))
    return ask("sum", source, _say(source, first, second, "+"), work_sum(first, second))


def _say(source: Source, first: int, second: int, sign: str) -> str:
    if sign == "+" and not source.wants_new_phrasing and source.random() < 0.25:
        return source.choice(_ADD).format(a=first, b=second)
    blank = "" if source.random() < 0.2 else " "
    return source.pick_phrasing(_WORDINGS).format(e=f"{first}{blank}{sign}{blank}{second}")


def work_sum(first: int, second: int) -> str:
    """ "47 + 38: 7 + 8 = 15, carry 1; 4 + 3 + 1 = 8. Answer: 85."""
    if first < 10 and second < 10:
        return f"{first} + {second} = {first + second}."
    ones = first % 10 + second % 10
    text = f"{first} + {second}: {first % 10} + {second % 10} = {ones}"
    tens = f"{first // 10} + {second // 10}"
    if ones >= 10:
        text += f", carry 1; {tens} + 1 = {first // 10 + second // 10 + 1}."
    else:
        text += f"; {tens} = {first // 10 + second // 10}."
    return f"{text} Answer: {first + second}."


def work_difference(first: int, second: int) -> str:
    """ "52 - 38: 12 - 8 = 4, borrow 1; 5 - 3 - 1 = 1. Answer: 14."""
    if first < 10:
        return f"{first} - {second} = {first - second}."
    ones, other = first % 10, second % 10
    tens = f"{first // 10} - {second // 10}"
    if ones < other:
        text = f"{ones + 10} - {other} = {ones + 10 - other}, borrow 1; {tens} - 1 = {first // 10 - second // 10 - 1}."
    else:
        text = f"{ones} - {other} = {ones - other}; {tens} = {first // 10 - second // 10}."
    return f"{first} - {second}: {text} Answer: {first - second}."
