"""An expression that looks ahead, said without: found in the same texts as by Python's `re`, and what ranks compile."""

from __future__ import annotations

import itertools
import json
import random
import re
import time

import pytest

from engine.protocol.output_format import Constraint
from engine.structured.closing import find_close
from engine.structured.compile import ConstraintRefused, compile_matcher, words_of
from engine.structured.look_ahead import in_parts, without_look_ahead
from engine.structured.token_view import TokenView, read_token_view
from tests.engine.structured.speaker import SPARK

TEXTS = ["".join(signs) for size in range(6) for signs in itertools.product("ab.\n", repeat=size)]
_CODE = re.compile(r"\\x\{([0-9a-f]+)\}")


class Writer:
    """Writes expressions at random, most of which look ahead."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def pattern(self) -> str:
        body, dice = self.alternatives(2), self.dice
        if "|" in body:
            return dice.choice([body, f"^(?:{body})$"])
        return dice.choice(["^", "^", ""]) + body + dice.choice(["", "$"])

    def alternatives(self, depth: int) -> str:
        return "|".join(self.sequence(depth) for _ in range(self.dice.choice([1, 1, 2])))

    def sequence(self, depth: int) -> str:
        return "".join(self.part(depth) for _ in range(self.dice.randint(1, 3)))

    def part(self, depth: int) -> str:
        dice = self.dice
        kind = dice.random() if depth else 1
        if kind < 0.3:
            return f"({dice.choice(['?=', '?!'])}{self.alternatives(depth - 1)}{dice.choice(['', '$'])})"
        if kind < 0.4:
            return f"({dice.choice(['', '?:'])}{self.alternatives(depth - 1)})"
        if kind < 0.5:
            plain = "|".join("".join(dice.choices(["a", "b", "."], k=dice.randint(1, 2))) for _ in range(2))
            return f"(?:{plain})" + dice.choice(["*", "+", "?", "{1,2}", "{2}", "*?"])
        sign = dice.choice(["a", "b", ".", "[ab]", "[^a]", r"\.", r"\w", r"\W", r"\n", r"[^\n]", r"\s"])
        return sign + dice.choice(["", "", "", "*", "+", "?", "{2}", "{1,}", "{0,2}"])


def as_python(pattern: str) -> re.Pattern[str]:
    spelled = _CODE.sub(lambda code: "\\n" if code[1] == "a" else re.escape(chr(int(code[1], 16))), pattern)
    return re.compile(spelled.replace("$", r"\Z"), re.ASCII)


@pytest.mark.parametrize("seed", range(2))
def test_it_is_found_in_the_same_texts(seed: int) -> None:
    writer, num_said = Writer(seed), 0
    for _ in range(120):
        pattern = writer.pattern()
        plain = without_look_ahead(pattern)
        if plain is not None:
            num_said += 1
            told, meant = as_python(plain), as_python(pattern)
            for text in (*TEXTS[:22], *writer.dice.sample(TEXTS, 60)):
                assert bool(told.search(text)) == bool(meant.search(text)), (pattern, plain, text)
    assert num_said > 90


NAMES = r"^(?!(?:admin|root)$)[a-z]{3,20}$"
NUMBER = r"^(?!000|666)[0-8][0-9]{2}-(?!00)[0-9]{2}-(?!0000)[0-9]{4}$"
PASSWORD = r"^(?=.*[A-Z])(?=.*\d)(?!.*[^A-Za-z\d!])(?!.*!!).{8,64}$"
CASES = [  # what people write; texts that meet it, texts that do not
    (r"^(?!\s*$).+", ["a", " a", "\u00e9"], ["", " ", "\t \u00a0"]),
    (NAMES, ["roots", "adm", "adminx"], ["root", "admin", "ab"]),
    (NUMBER, ["123-45-6789", "899-01-0001"], ["000-45-6789", "666-45-6789", "123-00-6789", "123-45-0000"]),
    (PASSWORD, ["Abcdefg1", "A1!bcdefgh!"], ["abcdefg1", "Abcdefgh", "Abcdefg 1", "A1!!bcdef", "Abc1"]),
    (r"(?!foo)f.o", ["fao", "xfxox", "foofzo"], ["foo", "fo"]),
    (r"^(?!.*(?:--|__))[a-z_-]+$|^(?!x)[0-9x]$", ["a-b_c", "7"], ["a--b", "a__b", "y7"]),
    (r"^https?://(?!localhost)[a-z.]+$", ["http://a.b", "https://local"], ["http://localhost", "https://localhosts"]),
    (r"^((?!fo+|ba).)*$", ["", "f", "xfb"], ["afo", "ba", "f\nx"]),
    (r"^(?:(?!x).)+$", ["a"], ["", "x", "ax"]),
    (r"^(?=.{2,4}$)(?![0-9]+$)\w+$", ["ab", "1a2"], ["a", "12", "abcde"]),
]  # fmt: skip


@pytest.fixture(scope="module")
def view() -> TokenView:
    return read_token_view(SPARK, 4096, (2,))


def accepts(constraint: Constraint, view: TokenView, text: str) -> bool:
    matcher = compile_matcher(constraint, view)
    token_ids = view.tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


@pytest.mark.parametrize(("pattern", "good", "bad"), CASES)
def test_texts_of_a_schema_are_held_to_it(view: TokenView, pattern: str, good: list[str], bad: list[str]) -> None:
    demand = Constraint("json_schema", json.dumps({"type": "string", "pattern": pattern}))
    assert find_close(compile_matcher(demand, view), view, words_of(demand)) is not None
    for text in good + bad:
        assert accepts(demand, view, json.dumps(text, ensure_ascii=False)) == (text in good), text
        assert (re.search(pattern, text) is not None) == (text in good), text


@pytest.mark.parametrize(("pattern", "good", "bad"), [case for case in CASES if case[0].startswith("^")])
def test_whole_answers_are_held_to_it(view: TokenView, pattern: str, good: list[str], bad: list[str]) -> None:
    demand = Constraint("regex", pattern if "$|" not in pattern else pattern.replace("$|^", "|"))
    for text in good + bad:
        assert accepts(demand, view, text) == (text in good), text


def test_names_of_members_are_held_to_it(view: TokenView) -> None:
    numbers = {"type": "object", "additionalProperties": {"type": "integer"}}
    named = Constraint("json_schema", json.dumps(numbers | {"propertyNames": {"pattern": "^(?!_)[a-z_]+$"}}))
    assert [accepts(named, view, text) for text in ('{"a_": 1}', '{"_a": 1}')] == [True, False]


UNSAID = [
    r"^(?!.*(.)\1)", r"^((?!foo)..)*$", r"^((?!o*).)*$", r"^((?!a)(b).)*$",
    r"(?<!a)b(?!c)", r"^(?!a)\bx", r"^(?!\p{L})x", r"^(?!a)[a-z]{1,500}(?!b)",
    r"^a(?=b)c", r"^(?!" + "x" * 600 + ")a", r"^(?!.*a.{40}).(?!.*b.{40})", r"^(?!a", r"^(?!a){2}b",
    "^(?!" + "(" * 200 + "a" + ")" * 200 + ")",
]  # fmt: skip


@pytest.mark.parametrize("pattern", UNSAID)
def test_what_cannot_be_said_briefly_is_refused(view: TokenView, pattern: str) -> None:
    started = time.process_time()
    assert without_look_ahead(pattern) is None or not pattern.startswith("^(?!a)[")
    in_parts(pattern)
    assert time.process_time() - started < 0.5
    for kind, text in (("json_schema", json.dumps({"type": "string", "pattern": pattern})), ("regex", pattern)):
        with pytest.raises(ConstraintRefused):
            compile_matcher(Constraint(kind, text), view)  # type: ignore[arg-type]
