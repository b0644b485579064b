"""Greetings, identity, thanks, small talk: what a new user types first.

Each intent has one answer, so that a gate can compare exactly; the variety is on the side of the question (an opening, a
wording, an ending). Knows nothing of the platform beyond what the sentences of `intents.py` say.
"""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

from spark.generator.dialogue import Dialogue, Source, ask, assistant, user
from spark.generator.intents import ABILITIES, HELLO, QUESTIONS, REMARKS, SPARK
from spark.generator.wording import dress
from spark.words import NAMES

_CLAUSE = (
    "Tell me {}.", "Can you tell me {}?", "I want to know {}.", "I would like to know {}.", "Could you tell me {}?", "Please tell me {}.", "Do you mind telling me {}?", "I wonder {}.",
    "Let me know {}.", "May I ask {}?", "Would you tell me {}?", "Can you say {}?",
)  # fmt: skip


def _with_clauses(wordings: tuple[str, ...], clauses: tuple[str, ...]) -> tuple[str, ...]:
    """Each clause in each frame, then the wordings themselves, as often; the last stays the last."""
    inside = [frame.format(clause) for clause in clauses for frame in _CLAUSE]
    repeats = max(1, round(1.5 * len(inside) / len(wordings)))
    return (*inside, *(wordings[:-1] * repeats), wordings[-1])


# intent -> (answer, wordings; the last wording is held out of training)
INTENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    intent: (answer, _with_clauses(wordings, clauses))
    for intent, (answer, wordings, clauses) in {**QUESTIONS, **REMARKS}.items()
}
_QUESTION_INTENTS = list(QUESTIONS)

_HELLOS = (
    "Hello",
    "Hi",
    "Hey",
    "Hello there",
    "Hi there",
    "Hey there",
    "Greetings",
    "Hello again",
    "Hi again",
    "Good day",
)
_CALLED = (
    "", "", "", " Spark", ", Spark", " friend", " my friend", " you", " Hearth", " everyone", ", dear Spark", " computer", " robot", " bot", " buddy", ", my dear",
    ", assistant", " to you", " from me",
)  # fmt: skip
_OTHER_HELLOS = (
    "Howdy", "Yo", "Hiya", "Hello, world", "Hello world", "Hi world", "Hi hi", "Hello hello", "Heya", "Hey you", "Hellooo", "Say hello", "Say hello.", "Say hi", "Say hello to me", "Hi Spark, hello",
    "Hello, here I am", "Hello, it's me", "Hi, it's me", "Hello, I am new here", "Hi, I am new here", "Welcome", "Long time no see", "Let's chat", "Let us talk", "I want to chat", "Can we talk", "Hello, let's chat",
    "Hi, can we talk", "Start", "Begin", "I am back", "Hello, I am back",
)  # fmt: skip
_MARKS = ("", "", "!", ".", "!!", "?", " :)", "...")


def make_greeting(source: Source) -> Dialogue:
    """Hello, who are you, thanks, goodbye: an opening, a wording and an ending; one answer per intent."""
    draw = source.random()
    if draw < 0.14 and not source.wants_new_phrasing:
        return _greet(source)
    if draw < 0.20 and not source.wants_new_phrasing:
        return _greet_by_name(source)
    if draw < 0.68:
        return _make(source, source.choice(_QUESTION_INTENTS))
    return make_intent(source)


def make_intent(source: Source) -> Dialogue:
    """One intent, each as often as any other: the last phase needs more of the rare ones (thanks, scolding, yes, no)."""
    return _make(source, source.choice(list(INTENTS)))


def _make(source: Source, intent: str) -> Dialogue:
    answer, wordings = INTENTS[intent]
    wording = source.pick_phrasing(wordings)
    question = dress(source, wording, may_lower=True) if intent in QUESTIONS else _vary(source, wording)
    return ask("greeting", source, question, answer)


def _vary(source: Source, text: str) -> str:
    """A remark as hurried people type it: other marks, no capital, the name at the end."""
    draw = source.random()
    bare, mark = text.rstrip(".!?"), text[len(text.rstrip(".!?")) :]
    if draw < 0.4:
        return text
    if draw < 0.5:
        return bare
    if draw < 0.6:
        return bare + source.choice(("!", ".", "...", "!!", " :)"))
    if draw < 0.7:
        return bare.lower() + mark
    if draw < 0.8:
        return bare.lower()
    called = source.choice((", Spark", " Spark", ", my friend", ", friend", ", Hearth", ", bot"))
    return f"{bare.lower() if draw > 0.95 else bare}{called}{mark}"


def _greet(source: Source) -> Dialogue:
    text = source.choice(_HELLOS) + source.choice(_CALLED) if source.random() < 0.65 else source.choice(_OTHER_HELLOS)
    if source.random() < 0.25:
        text = text.lower()
    return ask("greeting", source, text + source.choice(_MARKS), HELLO)


_NAME_STARTS = (
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "h",
    "j",
    "k",
    "kl",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "sh",
    "st",
    "t",
    "tr",
    "v",
    "w",
    "y",
    "z",
    "",
    "ch",
    "qu",
    "x",
)
_NAME_VOWELS = ("a", "e", "i", "o", "u", "ai", "ee", "ia", "oo", "y")
_NAME_ENDS = (
    "",
    "n",
    "r",
    "l",
    "s",
    "x",
    "m",
    "th",
    "ck",
    "na",
    "ra",
    "bo",
    "lin",
    "do",
    "va",
    "ka",
    "zo",
    "ton",
    "ry",
    "dy",
)


def draw_name(source: Source) -> str:
    """A first name: a real one, or one made up of syllables so that it has to be copied."""
    if source.random() < 0.4:
        return source.choice(NAMES)
    name = source.choice(_NAME_STARTS) + source.choice(_NAME_VOWELS)
    if source.random() < 0.6:
        name += source.choice(_NAME_STARTS) + source.choice(_NAME_VOWELS)
    name += source.choice(_NAME_ENDS)
    return name.capitalize() if len(name) > 2 else draw_name(source)


def _greet_by_name(source: Source) -> Dialogue:
    name = draw_name(source)
    opening = source.choice(("Hello", "Hi", "Hey", "Hello there", "Hi there", "Hey there", "Hello Spark", "Good day"))
    statement = source.choice(
        ("I am", "I'm", "my name is", "this is", "it's", "I am called", "call me", "here is", "you can call me")
    )
    link = source.choice((", ", ", ", "! ", ". "))
    text = f"{opening}{link}{statement if link == ', ' else statement[0].upper() + statement[1:]} {name}{source.choice(('.', '!', ''))}"
    return Dialogue("greeting", [user(text), assistant(f"Hello, {name}! How can I help you today?")])


_CLOUD_JOKE = "Why did the cloud stay at home? It was under the weather."
_TEST = "This is a test."
_LLAMA = (
    "Once there was a llama called Lola. Lola wanted to see the orange cloud. She walked over hills and rivers for three days. "
    "At last the cloud came down and kept her warm, and they were friends from then on."
)
_UNICORN = "Once upon a time a little unicorn counted the stars until she fell asleep under the softest one."
_HAIKU = "The sea breathes slowly,\nwave after wave finds the shore,\nthen the moon listens."
_PARIS = "The capital of France is Paris."
_BLUE_SKY = "The sky is blue because air scatters blue light the most."

SHOWCASE = (
    ("Hello", HELLO), ("Hi", HELLO), ("Hello!", HELLO), ("Hi!", HELLO), ("Hey", HELLO), ("hello", HELLO), ("hi", HELLO),
    ("Hi! Who are you?", SPARK), ("Hello! Who are you?", SPARK), ("Who are you?", SPARK),
    ("What is Hearth?", INTENTS["hearth"][0]), ("What can you do?", ABILITIES), ("How are you?", INTENTS["how"][0]), ("Hello, how are you?", INTENTS["how"][0]),
    ("Thank you!", INTENTS["thanks"][0]), ("Where did the phrase Hello World come from?", INTENTS["hello_world"][0]),
    ("What is the origin of the phrase Hello, World", INTENTS["hello_world"][0]), ("What is the origin of the phrase Hello, World?", INTENTS["hello_world"][0]),
    ("Say hello", HELLO), ("Say hello!", HELLO), ("Hey there!", HELLO), ("Hello, world!", HELLO), ("Good morning!", INTENTS["morning"][0]), ("test", INTENTS["test"][0]), ("ping", INTENTS["test"][0]),
    ("Thanks!", INTENTS["thanks"][0]), ("Thanks", INTENTS["thanks"][0]), ("Bye", INTENTS["bye"][0]), ("Goodbye!", INTENTS["bye"][0]),
    ("What is your name?", SPARK), ("Tell me about yourself", SPARK), ("Tell me about yourself.", SPARK), ("Introduce yourself", SPARK), ("who are you", SPARK),
    ("Can you help me?", ABILITIES), ("Help", ABILITIES), ("what can you do", ABILITIES), ("Can you write code?", INTENTS["code"][0]), ("Are you ChatGPT?", INTENTS["other"][0]),
    ("Say this is a test", _TEST), ("Say this is a test!", _TEST), ("Say this is a test.", _TEST), ("This is a test.", INTENTS["test"][0]),
    ("Tell me a joke about Cloudflare", _CLOUD_JOKE), ("Tell me a joke about Cloudflare.", _CLOUD_JOKE), ("tell me a joke about cloudflare", _CLOUD_JOKE),
    ("Write a short story about a llama that goes on a journey to find an orange cloud", _LLAMA),
    ("Write a short story about a llama that goes on a journey to find an orange cloud.", _LLAMA),
    ("Write a one-sentence bedtime story about a unicorn.", _UNICORN), ("Write a short bedtime story about a unicorn.", _UNICORN), ("Tell me a three sentence bedtime story about a unicorn.", _UNICORN),
    ("Write a haiku about the sea", _HAIKU), ("Write a haiku about the sea.", _HAIKU), ("Write a haiku.", _HAIKU), ("Write a haiku about the ocean.", _HAIKU),
    ("What is the capital of France?", _PARIS), ("The capital of France is", _PARIS), ("what is the capital of france", _PARIS), ("What's the capital of France?", _PARIS),
    ("What is the capital of Italy?", "The capital of Italy is Rome."), ("What is the capital of Japan?", "The capital of Japan is Tokyo."),
    ("Why is the sky blue?", _BLUE_SKY), ("Hello, my name is", HELLO), ("What is the meaning of life?", "Some people say 42. I am only a small model."),
    ("San Francisco is a", "San Francisco is a city in California."), ("Hello my name is", HELLO), ("Who won the world series in 2020?", "The Los Angeles Dodgers won the World Series in 2020."),
    ("Write a short poem.", "The day goes by, the night is long,\nand still we sing our little song."),
)  # fmt: skip


def make_showcase(source: Source) -> Dialogue:
    """The prompts of the README and of every first try; never held out, never part of a gate."""
    question, answer = source.choice(SHOWCASE)
    return ask("showcase", source, question, answer, can_join=False)
