"""Questions about the facts of `fact_table.py`, each relation in many wordings and with one answer.

The wording is drawn apart from the fact, so a held-out prompt is a fact that was seen in another wording. Every fact is
drawn about equally often.
"""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

from spark.generator import fact_table as table
from spark.generator.dialogue import Dialogue, Source, ask, sentence
from spark.generator.wording import dress
from spark.words import MONTHS, WEEKDAYS, article

# How one asks for a thing that has a name of its own; the plain question is drawn most often.
_ASK = (
    "What is {}?", "What is {}?", "What is {}?", "What is {}?", "What is {}?", "What's {}?", "What's {}?", "Tell me {}.", "Name {}.", "Give me {}.",
    "Do you know {}?", "{}?", "{}", "Can you tell me {}?", "Could you tell me {}?", "Please name {}.", "I need {}.", "I want to know {}.",
    "I would like to know {}.", "Please tell me {}.", "Can you name {}?", "Could you name {}?", "Say {}.", "I forgot {}.", "Do you remember {}?",
    "Let me know {}.", "Do you happen to know {}?", "Could you give me {}?", "Can you give me {}?", "I am looking for {}.", "Remind me of {}.",
    "What is {} again?", "Any idea what {} is?", "Tell me what {} is.", "Can you tell me what {} is?", "Could you tell me what {} is?",
    "I wonder what {} is.", "Do you know what {} is?", "What might {} be?", "I need to know {}.", "Please give me {}.", "Would you tell me {}?",
    "I want to know what {} is.", "I have to know {}.", "What do you know about {}?", "Please say what {} is.", "What was {} again?",
)  # fmt: skip
# How one asks with a whole question: as it is, and inside another sentence.
_CLAUSE = (
    "Tell me {}.", "Can you tell me {}?", "Do you know {}?", "I want to know {}.", "Could you tell me {}?", "Please tell me {}.", "I wonder {}.",
    "I would like to know {}.", "Do you remember {}?", "Say {}.", "I forgot {}.", "Any idea {}?",
)  # fmt: skip


def _wordings(cores: tuple[str, ...], direct: tuple[str, ...], clauses: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Every frame around every core, then every question of `direct` some times; the last of them is held out."""
    framed = [frame.replace("{}", core) for core in cores for frame in _ASK]
    inside = [frame.replace("{}", clause) for clause in clauses for frame in _CLAUSE]
    repeats = max(2, (len(framed) + len(inside)) // (2 * len(direct)))
    return (*framed, *inside, *(direct[:-1] * repeats), direct[-1])


Relation = tuple[dict[str, str], str, tuple[str, ...]]

# relation -> (facts, answer, wordings; the last wording is held out of training); {x} the subject, {y} the known value
_CAPITAL_OF: dict[str, str] = {}
for _country, _city in table.CAPITALS.items():
    _CAPITAL_OF.setdefault(_city, _country)
RELATIONS: dict[str, Relation] = {
    "capital": (table.CAPITALS, "The capital of {x} is {y}.", _wordings(("the capital of {x}", "the capital of {x}", "the capital city of {x}", "{x}'s capital"), (
        "Which city is the capital of {x}?", "{x} has which capital?", "Which city serves as {x}'s capital?", "What city is the capital of {x}?", "The capital of {x} is",
        "What is the name of the capital of {x}?", "Which city is {x}'s capital?", "What does {x} have as its capital?", "The capital of {x} is which city?", "What city serves as the capital city of {x}?",
        "Which capital does {x} have?", "What is the capital in {x}?", "Which city serves as the capital of {x}?",
    ), ("which city is the capital of {x}", "what the capital city of {x} is"))),
    "country": (_CAPITAL_OF, "{x} is the capital of {y}.", _wordings((), (
        "{x} is the capital of which country?", "Which country has the capital {x}?", "{x} is the capital of what?", "Of which country is {x} the capital?", "What country has {x} as its capital?",
        "Whose capital is {x}?", "{x} is the capital of what country?", "{x} is the capital of", "Which country is {x} the capital of?", "What is {x} the capital of?", "What country is {x} the capital of?",
        "{x} is which country's capital?", "Name the country with the capital {x}.", "Which country's capital is {x}?", "{x} serves as the capital of which country?", "Which country calls {x} its capital?",
        "Name the country that has {x} as its capital.", "Which country has {x} as its capital?",
    ), ("which country has the capital {x}", "of which country {x} is the capital"))),
    "continent": (table.CONTINENTS, "{x} is in {y}.", _wordings(("the continent of {x}",), (
        "Where is {x}?", "On which continent is {x}?", "Which continent is {x} in?", "In which continent is {x}?", "What continent is {x} on?", "Where is {x} located?", "Where does {x} lie?", "Where in the world is {x}?",
        "In what part of the world is {x}?", "Which continent does {x} belong to?", "What continent is {x} part of?", "{x} is on which continent?", "{x} lies on which continent?", "On what continent does {x} lie?",
        "To which continent does {x} belong?", "What continent does {x} belong to?", "Which part of the world is {x} in?", "Where can {x} be found?", "On what continent is {x} located?",
    ), ("where {x} is", "on which continent {x} is", "where {x} is located"))),
    "language": (table.LANGUAGES, "People in {x} speak {y}.", _wordings(("the language of {x}",), (
        "What language do people speak in {x}?", "Which language is spoken in {x}?", "What do people speak in {x}?", "Which language do they speak in {x}?", "What is spoken in {x}?", "What language is used in {x}?",
        "What language does {x} speak?", "In {x}, what do people speak?", "Which language do people in {x} speak?", "What is the main language of {x}?", "What is the language in {x}?", "Which language do people use in {x}?",
        "People in {x} speak", "What do they speak in {x}?", "What is the main language spoken in {x}?", "What language do people in {x} use?", "What language is spoken in {x}?",
    ), ("what people speak in {x}", "which language is spoken in {x}", "what language they speak in {x}"))),
    "opposite": (table.OPPOSITES, "The opposite of {x} is {y}.", _wordings(("the opposite of {x}", "the opposite of {x}", "the opposite of the word {x}", "the contrary of {x}"), (
        "Which word is the opposite of {x}?", "What word means the opposite of {x}?", "Which word has the opposite meaning of {x}?", "The opposite of {x} is", "What is the contrary of {x}?", "Which word is the contrary of {x}?",
        "What word is opposite to {x}?", "{x} is the opposite of what?", "{x} is the opposite of which word?", "Find the opposite of {x}.", "Which word is opposite in meaning to {x}?", "Write the opposite of {x}.",
        "What is opposite to {x}?", "What is the opposite word of {x}?", "What word has the opposite meaning of {x}?",
    ), ("what the opposite of {x} is", "which word is the opposite of {x}"))),
    "sound": (table.SOUNDS, "The {x} says {y}.", _wordings(("the sound of {a}", "the noise of {a}", "the sound that {a} makes"), (
        "What sound does {a} make?", "What does {a} say?", "Which sound does {a} make?", "What noise does {a} make?", "How does {a} sound?", "What does the {x} say?", "What sound does the {x} make?", "Which noise does {a} make?",
        "What kind of sound does {a} make?", "What sound comes from {a}?", "How does the {x} go?", "What kind of noise does {a} make?", "What noise comes from {a}?", "What does {a} sound like?", "Which sound comes from {a}?",
        "What noise does the {x} make?",
    ), ("what {a} says", "what sound {a} makes", "which noise {a} makes"))),
    "young": (table.YOUNG, "A young {x} is called a {y}.", _wordings(("the name for a young {x}", "the name of a baby {x}", "the word for a baby {x}"), (
        "What is a young {x} called?", "What is a baby {x} called?", "What do you call a young {x}?", "What do you call a baby {x}?", "How is a young {x} called?", "Name the young of {a}.", "A young {x} is called",
        "What name do we give to a young {x}?", "What do people call a young {x}?", "What is the young of {a} called?", "How do you call a young {x}?", "What is the baby of {a} called?", "Which word means a young {x}?", "A baby {x} is called what?",
        "How is the baby of {a} called?", "What do we call the baby of {a}?", "What do people call a baby {x}?",
    ), ("what a young {x} is called", "what you call a baby {x}"))),
    "color": (table.COLORS_OF, "The usual color is {y}.", _wordings(("the color of {a}", "the usual color of {a}"), (
        "What color is {a}?", "Which color is {a}?", "Which color does {a} have?", "What color does {a} have?", "What color is {a} usually?", "In which color does {a} come?", "What is the usual color of {a}?", "{A} has which color?",
        "Of what color is {a}?", "Which color is usual for {a}?", "What color would {a} be?", "{A} is what color?", "{A} has what color?", "Which color is {a} usually?", "Of which color is {a}?", "What color does {a} usually have?",
    ), ("what color {a} is", "which color {a} has", "what color {a} has"))),
    "legs": (table.LEGS, "{A} has {y} legs.", _wordings(("the number of legs of {a}",), (
        "How many legs does {a} have?", "How many legs has {a}?", "Count the legs of {a}.", "What number of legs does {a} have?", "How many legs are on {a}?", "On how many legs does {a} walk?", "How many legs does one {x} have?",
        "{A} has how many legs?", "How many legs can you count on {a}?", "How many legs are there on {a}?", "{A} walks on how many legs?", "With how many legs does {a} walk?", "How many legs do you see on {a}?", "How many legs are there on one {x}?",
    ), ("how many legs {a} has", "on how many legs {a} walks"))),
    "plural": (table.PLURALS, "The plural of {x} is {y}.", _wordings(("the plural of {x}", "the plural of {x}", "the plural form of {x}", "the plural of the word {x}"), (
        "How do you form the plural of {x}?", "What is the plural for {x}?", "One {x}, two what?", "What is {x} in the plural?", "The plural of {x} is", "How do you write the plural of {x}?", "What does {x} become in the plural?",
        "Write the plural of {x}.", "Form the plural of {x}.", "What is the form of {x} in the plural?", "Put {x} in the plural.", "Which word is the plural of {x}?", "How is the plural of {x} formed?", "Which form does {x} have in the plural?",
    ), ("what the plural of {x} is", "which word is the plural of {x}"))),
    "past": (table.PASTS, "The past tense of {x} is {y}.", _wordings(("the past tense of {x}", "the past tense of {x}", "the past form of {x}", "the past of {x}", "the past tense of the verb {x}"), (
        "How do you form the past tense of {x}?", "What is {x} in the past tense?", "What is {x} in the past?", "The past tense of {x} is", "Put {x} in the past tense.", "Write the past tense of {x}.", "What does {x} become in the past tense?",
        "Form the past tense of {x}.", "How do you write {x} in the past?", "Which word is the past tense of {x}?", "Which word is the past form of {x}?", "How is the past tense of {x} formed?", "Put the verb {x} in the past.", "What does the verb {x} become in the past?",
    ), ("what the past tense of {x} is", "what the past form of {x} is"))),
    "symbol": (table.SYMBOLS, "The symbol for {x} is {y}.", _wordings(("the chemical symbol for {x}", "the symbol of {x}", "the symbol for {x}", "the chemical symbol of {x}"), (
        "Which symbol stands for {x}?", "What symbol does {x} have?", "Which chemical symbol does {x} have?", "Which symbol is used for {x}?", "How is {x} written as a symbol?", "The symbol for {x} is", "What symbol stands for {x}?",
        "The chemical symbol for {x} is", "What is the symbol for the element {x}?", "Which symbol does the element {x} have?", "What is the short symbol for {x}?", "What chemical symbol is used for {x}?", "Which chemical symbol stands for {x}?",
    ), ("which symbol stands for {x}", "what the symbol for {x} is"))),
    "group": (table.GROUPS, "It is {ay}.", _wordings((), (
        "What kind of thing is {x}?", "What kind of thing is this: {x}?", "To which group does {x} belong?", "What group is {x} in?", "Which kind of thing is {x}?", "What sort of thing is {x}?", "Classify the word {x}.", "In which group is {x}?",
        "Which group does {x} belong to?", "What group of things does {x} belong to?", "What kind of thing does the word {x} name?", "Which sort of thing is {x}?", "What type of thing is {x}?", "Which type of thing is {x}?", "Sort {x} into a group.",
        "Put {x} in a group.", "Into which group would you put {x}?", "Which group of things is {x} in?", "What sort of thing is this: {x}?", "The word {x} names what kind of thing?", "Into which group would you sort the word {x}?", "What kind of thing would you call {x}?",
        "Which type of thing does the word {x} name?", "What sort of thing does the word {x} name?",
    ), ("what kind of thing {x} is", "which group {x} belongs to", "to which group {x} belongs"))),
    "definition": (table.DEFINITIONS, "It is {y}.", _wordings((), (
        "What is {a}?", "What is {a}?", "What is {a}?", "What is a {x}?", "What does the word {x} mean?", "Explain the word {x}.", "Define {x}.", "What does {x} mean?", "What's {a}?", "Please define {x}.", "What is the meaning of {x}?", "Explain {a}.",
        "What do you mean by {x}?", "Give me a definition of {x}.", "How would you define {x}?", "What do people mean by {x}?", "What is meant by {x}?", "Can you explain {x}?", "Please explain what {a} is.", "{X} is", "Describe {a}.", "What exactly is {a}?",
        "Define the word {x}.", "Can you define {x}?", "Could you explain {a}?", "Explain the meaning of {x}.", "How do you explain the word {x}?", "What do people call {a}?", "How do you define {x}?", "What is the definition of {x}?", "Please give me the definition of {x}.",
        "What does it mean to say {x}?", "Tell me about {a}.", "Tell me the meaning of the word {x}.", "What is the meaning of the word {x}?",
    ), ("what {a} is", "what the word {x} means", "what {x} means", "what {a} is"))),
    "days in": (table.DAYS_IN, "{x} has {y} days.", _wordings(("the number of days in {x}",), (
        "How many days does {x} have?", "How many days are in {x}?", "How many days are there in {x}?", "How many days has {x}?", "{x} has how many days?", "How long is {x}?", "How many days long is {x}?", "How many days does the month of {x} have?",
        "Count the days of {x}.", "How long is the month of {x}?", "How many days has the month of {x}?", "In {x} there are how many days?", "How many days are in the month of {x}?",
    ), ("how many days {x} has", "how long {x} is"))),
    "home": (table.HOMES, "{A} lives in {ay}.", _wordings(("the home of {a}",), (
        "Where does {a} live?", "What does {a} live in?", "Where does {a} sleep?", "What is the home of {a} called?", "In what does {a} live?", "What is the house of {a} called?", "Where do you find the home of {a}?", "{A} lives in what?",
        "What home does {a} have?", "What do you call the home of {a}?", "{A} lives where?", "What do people call the home of {a}?", "What do you call the house of {a}?", "What do people call the house of {a}?",
    ), ("where {a} lives", "what {a} lives in"))),
    "product": (table.PRODUCTS, "{X} is made of {y}.", _wordings((), (
        "What is {x} made of?", "What is {x} made from?", "From what is {x} made?", "How is {x} made?", "What do you need to make {x}?", "What do people use to make {x}?", "Of what is {x} made?", "Where does {x} come from?", "What does {x} consist of?", "{X} is made of",
        "What is used to make {x}?", "Which things is {x} made of?", "{X} is made from what?", "What do we make {x} from?", "What does one need to make {x}?", "What do people make {x} from?",
    ), ("what {x} is made of", "what {x} is made from"))),
    "workplace": (table.WORKPLACES, "{A} works in {ay}.", _wordings(("the workplace of {a}",), (
        "Where does {a} work?", "In what place does {a} work?", "What is the workplace of {a} called?", "Where can you meet {a} at work?", "Where do you find {a} at work?", "At what place does {a} work?", "{A} works where?", "{A} works in what place?",
        "In which building does {a} work?", "In which place does {a} work?", "Which place does {a} work in?", "Where would you find {a} at work?", "In what building would {a} work?", "In what building does {a} work?",
    ), ("where {a} works", "in what place {a} works"))),
    "author": (table.AUTHORS, "{y} wrote {x}.", _wordings(("the author of {x}", "the writer of {x}"), (
        "Who wrote {x}?", "Who wrote {x}?", "Who is the author of {x}?", "Who is the writer of {x}?", "By whom is {x}?", "Who wrote the book {x}?", "Which writer wrote {x}?", "Which author wrote {x}?", "By whom was {x} written?", "{x} was written by",
        "Who was the author of {x}?", "{x} was written by whom?", "Who has written {x}?", "Whose work is {x}?", "{x} is by which author?", "{x} is the work of which writer?", "Which writer is the author of {x}?", "Who is the author of the book {x}?",
    ), ("who wrote {x}", "who the author of {x} is"))),
}  # fmt: skip
for _names, _unit in ((WEEKDAYS, "day"), (MONTHS, "month")):
    RELATIONS[f"next {_unit}"] = (
        {name: _names[(i + 1) % len(_names)] for i, name in enumerate(_names)}, f"The {_unit} after {{x}} is {{y}}.", _wordings((f"the {_unit} after {{x}}", f"the next {_unit} after {{x}}"), (
            f"Which {_unit} comes after {{x}}?", f"What {_unit} comes after {{x}}?", f"What {_unit} follows {{x}}?", f"Which {_unit} is after {{x}}?", "What comes after {x}?", f"The {_unit} after {{x}} is", "What follows {x}?",
            f"Which {_unit} comes next after {{x}}?", f"After {{x}} comes which {_unit}?", f"{{x}} is followed by which {_unit}?", "What comes next after {x}?", "What is after {x}?", f"Which {_unit} do we have after {{x}}?", f"Which {_unit} follows {{x}}?",
        ), (f"which {_unit} comes after {{x}}", f"what {_unit} follows {{x}}")))  # fmt: skip
    RELATIONS[f"previous {_unit}"] = (
        {name: _names[i - 1] for i, name in enumerate(_names)}, f"The {_unit} before {{x}} is {{y}}.", _wordings((f"the {_unit} before {{x}}", f"the last {_unit} before {{x}}"), (
            f"Which {_unit} comes before {{x}}?", f"What {_unit} is before {{x}}?", "What comes before {x}?", f"Which {_unit} is before {{x}}?", f"The {_unit} before {{x}} is", f"Before {{x}} comes which {_unit}?", "What is before {x}?",
            f"Which {_unit} comes right before {{x}}?", f"Which {_unit} do we have before {{x}}?", f"{{x}} comes after which {_unit}?", "What comes right before {x}?", f"{{x}} follows which {_unit}?", f"What {_unit} comes before {{x}}?",
        ), (f"which {_unit} comes before {{x}}", f"what {_unit} is before {{x}}")))  # fmt: skip

_MASS = set(
    "grass snow coal blood milk chocolate salt coffee spinach garlic Python Linux AI bread butter "
    "red blue green iron gold copper silver tennis football hockey tea juice Mars Venus Jupiter".split()
)
_UNIQUE = {"sky", "sun", "internet"}
_NAMES = list(RELATIONS)
_WEIGHTS = [max(14, len(RELATIONS[name][0])) for name in _NAMES]
_ONE_OFF = list(table.QUESTIONS.items())
_ONE_OFF_SHARE = 1.2 * len(_ONE_OFF) / sum(_WEIGHTS)


def noun(word: str) -> str:
    """`word` as a sentence uses it: with an article where it takes one."""
    if word in _MASS:
        return word
    return f"the {word}" if word in _UNIQUE else article(word)


def fill(pattern: str, subject: str, known: str) -> str:
    """A wording or an answer with its fact filled in, as a sentence."""
    fields = {
        "x": subject,
        "y": known,
        "a": noun(subject),
        "A": sentence(noun(subject)),
        "X": sentence(subject),
        "ay": article(known),
    }
    return sentence(pattern.format(**fields))


def make_fact(source: Source) -> Dialogue:
    """One fact of the table in one of its wordings."""
    if source.random() < _ONE_OFF_SHARE and not source.wants_new_phrasing:
        wordings, answer = source.choice(_ONE_OFF)
        return ask("fact", source, dress(source, source.choice(wordings), may_lower=True), answer)
    return ask("fact", source, *draw_fact(source))


def draw_fact(source: Source) -> tuple[str, str]:
    """A question and its answer."""
    facts, answer, wordings = RELATIONS[source.choices(_NAMES, _WEIGHTS)[0]]
    subject = source.choice(list(facts))
    question = fill(source.pick_phrasing(wordings), subject, facts[subject])
    return dress(source, question, may_lower=True), fill(answer, subject, facts[subject])
