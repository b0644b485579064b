"""Lists Spark knows: the days of the week, the planets, three kinds of fruit. Each question has one answer."""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

from spark.generator import fact_table as table
from spark.generator.dialogue import Dialogue, Source, ask, join_words, sentence
from spark.generator.wording import dress
from spark.words import MONTHS, WEEKDAYS

_WHOLE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "days": (("the days of the week", "all days of the week", "the seven days of the week"), WEEKDAYS),
    "months": (("the months of the year", "all months of the year", "the twelve months"), MONTHS),
    "seasons": (("the seasons", "the four seasons", "the seasons of the year"), ("spring", "summer", "autumn", "winter")),
    "planets": (("the planets", "all planets", "the eight planets", "the planets of the solar system"), ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune")),
    "rainbow": (("the colors of the rainbow", "the colors of a rainbow", "the seven colors of the rainbow"), ("red", "orange", "yellow", "green", "blue", "indigo", "violet")),
    "continents": (("the continents", "all continents", "the seven continents"), ("Africa", "Antarctica", "Asia", "Australia", "Europe", "North America", "South America")),
    "oceans": (("the oceans", "all oceans", "the five oceans"), ("Atlantic", "Pacific", "Indian", "Arctic", "Southern")),
    "vowels": (("the vowels", "all vowels", "the vowels of the alphabet"), ("A", "E", "I", "O", "U")),
    "senses": (("the senses", "the five senses"), ("sight", "hearing", "smell", "taste", "touch")),
    "primary": (("the primary colors", "the three primary colors"), ("red", "yellow", "blue")),
    "directions": (("the directions of the compass", "the four directions"), ("north", "east", "south", "west")),
    "alphabet": (("the letters of the alphabet", "the alphabet", "all letters of the alphabet"), tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")),
}  # fmt: skip
_WHOLE_FRAMES = (
    "List {x}.", "Name {x}.", "What are {x}?", "Tell me {x}.", "Give me {x}.", "Can you list {x}?", "Please list {x}.", "Can you name {x}?", "Write down {x}.", "I need a list of {x}.", "Say {x}.",
    "Which are {x}?", "Could you list {x}?", "Do you know {x}?", "Show me {x}.", "Give me a list of {x}.", "Make a list of {x}.", "Write {x}.", "Tell me what {x} are.", "Can you give me a list of {x}?", "What are the names of {x}?",
    "I want a list of {x}.", "Can you tell me {x}?", "Could you name {x}?", "Please write down {x}.", "Could you write a list of {x}?",
)  # fmt: skip
_SOME_FRAMES = (
    "Name {n} {x}.", "List {n} {x}.", "Tell me {n} {x}.", "Give me {n} {x}.", "Can you name {n} {x}?", "What are {n} {x}?", "Please name {n} {x}.", "Could you list {n} {x}?", "I need {n} {x}.", "Write down {n} {x}.",
    "Say {n} {x}.", "Do you know {n} {x}?", "Give me the names of {n} {x}.", "Can you give me {n} {x}?", "Tell me the names of {n} {x}.", "Show me {n} {x}.", "Can you list {n} {x}?", "Write the names of {n} {x}.", "Give me a list of {n} {x}.",
    "I want {n} {x}.", "Please list {n} {x}.", "Could you name {n} {x}?", "Name me {n} {x}.", "Could you give me the names of {n} {x}?",
)  # fmt: skip
_COUNTS = {"two": 2, "three": 3, "four": 4, "five": 5, "some": 3, "a few": 3, "2": 2, "3": 3, "4": 4, "5": 5}
_IRREGULAR = {
    "piece of furniture": "pieces of furniture",
    "piece of clothing": "pieces of clothing",
}
_MEMBERS: dict[str, list[str]] = {}
for _thing, _group in table.GROUPS.items():
    _MEMBERS.setdefault(_IRREGULAR.get(_group, _group + "s"), []).append(_thing)
_MEMBERS["countries"] = ["France", "Germany", "Spain", "Italy", "Japan"]
_MEMBERS["capitals"] = ["Paris", "Berlin", "Madrid", "Rome", "Tokyo"]
_GROUPS = [group for group, members in _MEMBERS.items() if group != "planets" and len(members) > 2]


def make_list(source: Source) -> Dialogue:
    """A list as a whole, or the first few members of a group."""
    if source.random() < 0.5:
        names, members = _WHOLE[source.choice(list(_WHOLE))]
        question = source.pick_phrasing(_WHOLE_FRAMES).format(x=source.choice(names))
        return ask("list", source, dress(source, question, may_lower=True), sentence(join_words(members)) + ".")
    group = source.choice(_GROUPS)
    count = source.choice([word for word, number in _COUNTS.items() if number <= len(_MEMBERS[group])])
    question = source.pick_phrasing(_SOME_FRAMES).format(n=count, x=group)
    members = tuple(_MEMBERS[group][: _COUNTS[count]])
    return ask("list", source, dress(source, question, may_lower=True), sentence(join_words(members)) + ".")
