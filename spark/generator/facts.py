"""Questions about the facts of `fact_table.py`, each relation in many wordings and with one answer.

The wording is drawn apart from the fact, so a held-out prompt is a fact that was seen in another wording.
"""

from spark.generator import fact_table as table
from spark.generator.dialogue import Dialogue, Source, ask, sentence
from spark.words import MONTHS, WEEKDAYS, article

# relation -> (facts, answer, wordings; the last wording is held out of training); {x} the asked, {y} the known
_CAPITAL = (
    "What is the capital of {x}?", "What's the capital of {x}?", "Which city is the capital of {x}?",
    "Name the capital of {x}.", "Tell me the capital of {x}.", "Do you know the capital of {x}?", "Capital of {x}?",
    "capital of {x}", "what is the capital of {x}", "What is the capital city of {x}?", "{x} has which capital?",
    "Please name the capital of {x}.", "I need the capital of {x}.", "Can you tell me the capital of {x}?",
    "What is {x}'s capital?", "Give me the capital of {x}.", "Could you name the capital of {x}?",
)  # fmt: skip
RELATIONS: dict[str, tuple[dict[str, str], str, tuple[str, ...]]] = {
    "capital": (table.CAPITALS, "The capital of {x} is {y}.", _CAPITAL),
    "country": ({city: country for country, city in table.CAPITALS.items()}, "It is the capital of {y}.", (
        "{x} is the capital of which country?", "Which country has the capital {x}?", "{x} is the capital of what?",
        "Of which country is {x} the capital?", "What country has {x} as its capital?", "Whose capital is {x}?",
    )),
    "continent": (table.CONTINENTS, "It is in {y}.", (
        "Where is {x}?", "On which continent is {x}?", "Which continent is {x} in?", "In which continent is {x}?",
        "What continent is {x} on?", "Where is {x} located?", "Tell me the continent of {x}.", "Where can I find {x}?",
    )),
    "language": (table.LANGUAGES, "People in {x} speak {y}.", (
        "What language do people speak in {x}?", "Which language is spoken in {x}?", "What do people speak in {x}?",
        "Which language do they speak in {x}?", "What is the language of {x}?", "Name the language of {x}.",
        "What is spoken in {x}?",
    )),
    "opposite": (table.OPPOSITES, "The opposite of {x} is {y}.", (
        "What is the opposite of {x}?", "What's the opposite of {x}?", "Opposite of {x}?", "Name the opposite of {x}.",
        "Tell me the opposite of {x}.", "Give me the opposite of {x}.", "Which word is the opposite of {x}?",
        "What word means the opposite of {x}?", "opposite of {x}", "What is the contrary of {x}?",
    )),
    "sound": (table.SOUNDS, "The {x} says {y}.", (
        "What sound does {a} make?", "What does {a} say?", "Which sound does {a} make?", "What noise does {a} make?",
        "How does {a} sound?", "Tell me the sound of {a}.", "What does the {x} say?", "What is the sound of {a}?",
    )),
    "young": (table.YOUNG, "A young {x} is called a {y}.", (
        "What is a young {x} called?", "What is a baby {x} called?", "What do you call a young {x}?",
        "What do you call a baby {x}?", "How is a young {x} called?", "Name the young of {a}.",
        "What is the name for a baby {x}?",
    )),
    "color": (table.COLORS_OF, "The usual color is {y}.", (
        "What color is {a}?", "Which color is {a}?", "What is the color of {a}?", "Tell me the color of {a}.",
        "Which color does {a} have?", "what color is {a}", "What color does {a} have?", "Name the color of {a}.",
    )),
    "legs": (table.LEGS, "{A} has {y} legs.", (
        "How many legs does {a} have?", "How many legs has {a}?", "Count the legs of {a}.",
        "What number of legs does {a} have?", "Tell me how many legs {a} has.", "Do you know how many legs {a} has?",
    )),
    "plural": (table.PLURALS, "The plural of {x} is {y}.", (
        "What is the plural of {x}?", "Plural of {x}?", "Give me the plural of {x}.", "Tell me the plural of {x}.",
        "What's the plural of {x}?", "What is the plural form of {x}?", "Name the plural of {x}.",
    )),
    "past": (table.PASTS, "The past tense of {x} is {y}.", (
        "What is the past tense of {x}?", "Past tense of {x}?", "Give me the past tense of {x}.",
        "Tell me the past tense of {x}.", "What is the past form of {x}?", "Name the past tense of {x}.",
    )),
    "symbol": (table.SYMBOLS, "The symbol for {x} is {y}.", (
        "What is the chemical symbol for {x}?", "What is the symbol of {x}?", "Chemical symbol for {x}?",
        "What is the symbol for {x}?", "Tell me the chemical symbol of {x}.", "Give me the symbol for {x}.",
        "Which symbol stands for {x}?",
    )),
    "group": (table.GROUPS, "It is {ay}.", (
        "What kind of thing is {x}?", "What kind of thing is this: {x}?", "To which group does {x} belong?",
        "What group is {x} in?", "Which kind of thing is {x}?", "What sort of thing is {x}?", "Classify the word {x}.",
    )),
    "definition": (table.DEFINITIONS, "It is {y}.", (
        "What is {a}?", "What is a {x}?", "What does the word {x} mean?", "Explain the word {x}.", "Define {x}.",
        "What does {x} mean?", "What's {a}?", "Tell me what {a} is.", "Can you explain what {a} is?", "what is {a}",
        "Do you know what {a} is?", "Please define {x}.",
    )),
}  # fmt: skip
for _names, _unit in ((WEEKDAYS, "day"), (MONTHS, "month")):
    RELATIONS[f"next {_unit}"] = (
        {name: _names[(i + 1) % len(_names)] for i, name in enumerate(_names)}, f"The {_unit} after {{x}} is {{y}}.", (
            f"Which {_unit} comes after {{x}}?", f"What {_unit} comes after {{x}}?", f"What {_unit} follows {{x}}?",
            f"Which {_unit} follows {{x}}?", "What comes after {x}?", f"Name the {_unit} after {{x}}.",
            f"What is the {_unit} after {{x}}?",
        ))  # fmt: skip
    RELATIONS[f"previous {_unit}"] = (
        {name: _names[i - 1] for i, name in enumerate(_names)}, f"The {_unit} before {{x}} is {{y}}.", (
            f"Which {_unit} comes before {{x}}?", f"What {_unit} comes before {{x}}?", "What comes before {x}?",
            f"Name the {_unit} before {{x}}.", f"What is the {_unit} before {{x}}?",
        ))  # fmt: skip

_MASS = {
    "grass",
    "snow",
    "coal",
    "blood",
    "milk",
    "chocolate",
    "salt",
    "coffee",
    "spinach",
    "garlic",
    "Python",
    "Linux",
    "AI",
}
_UNIQUE = {"sky", "sun", "internet"}
_NAMES = list(RELATIONS)
_WEIGHTS = [max(20, len(RELATIONS[name][0])) for name in _NAMES]
_FILLERS = (
    "",
    "",
    "",
    "",
    "",
    "Please tell me: ",
    "Quick question: ",
    "I have a question. ",
    "Tell me, ",
    "Hey, ",
    "Hello! ",
    "Spark, ",
)


def _noun(word: str) -> str:
    if word in _MASS:
        return word
    return f"the {word}" if word in _UNIQUE else article(word)


def make_fact(source: Source) -> Dialogue:
    """One fact of the table in one of its wordings."""
    if source.random() < 0.12 and not source.wants_new_phrasing:
        question, answer = source.choice(list(table.QUESTIONS.items()))
        if source.random() < 0.2:
            question = question[0].lower() + question[1:].rstrip("?")
        return ask("fact", source, source.choice(_FILLERS) + question, answer)
    return ask("fact", source, *draw_fact(source))


def draw_fact(source: Source) -> tuple[str, str]:
    """A question and its answer."""
    facts, answer, wordings = RELATIONS[source.choices(_NAMES, _WEIGHTS)[0]]
    asked = source.choice(list(facts))
    known = facts[asked]
    fields = {
        "x": asked,
        "y": known,
        "a": _noun(asked),
        "A": sentence(_noun(asked)),
        "X": sentence(asked),
        "ay": article(known),
    }
    question = source.choice(_FILLERS) + source.pick_phrasing(wordings).format(**fields)
    if source.random() < 0.1:
        question = question.rstrip("?.")
    return question, answer.format(**fields)
