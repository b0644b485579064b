"""System prompts that change the answer, and plain system prompts (short to several hundred tokens) that do not."""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

from spark.generator import fact_table as table
from spark.generator.dialogue import Dialogue, Message, Source, assistant, system, user
from spark.generator.facts import draw_fact
from spark.words import NAMES

_RULES: dict[str, tuple[str, ...]] = {
    "capitals": ("Answer in capitals.", "Always answer in capital letters.", "Write all answers in upper case.", "Use only capital letters.", "Reply in capitals."),
    "word": ("Answer with one word.", "Always answer with one word.", "Use only one word.", "Reply with a single word.", "One word answers only."),
    "start": ("Start every answer with {m}.", "Begin each answer with {m}.", "Always start with {m}.", "Every reply starts with {m}."),
    "end": ("End every answer with {m}.", "Finish each answer with {m}.", "Always end with {m}.", "Every reply ends with {m}."),
    "name": ("Your name is {n}.", "You are {n}, a friendly assistant.", "You are called {n}.", "Your new name is {n}.", "You are an assistant named {n}."),
}  # fmt: skip
_MARKS = ("Sure", "Well", "Listen", "Okay", "Over", "Hooray", "Indeed", "My friend", "Captain", "Sir")
_ASK_NAME = (
    "What is your name?",
    "Who are you?",
    "What's your name?",
    "Tell me your name.",
    "Do you have a name?",
    "What should I call you?",
    "Introduce yourself.",
)


def make_obedience(source: Source) -> Dialogue:
    """A rule in the system prompt, then a question whose answer must follow it."""
    rule = source.choice(list(_RULES))
    wording = source.pick_phrasing(_RULES[rule])
    before = draw_plain(source, 1) + " " if source.random() < 0.4 else ""
    after = " " + draw_plain(source, 1) if source.random() < 0.3 else ""
    if rule == "name":
        name = source.choice(NAMES)
        return _make(source, before + wording.format(n=name) + after, source.choice(_ASK_NAME), f"I am {name}.")
    if rule in ("capitals", "word"):
        country = source.choice(list(table.CAPITALS))
        city = table.CAPITALS[country]
        question = source.choice(
            ("What is the capital of {x}?", "Name the capital of {x}.", "Which city is the capital of {x}?")
        ).format(x=country)
        answer = city if rule == "word" else city.upper()
        return _make(source, before + wording + after, question, answer)
    question, answer = draw_fact(source)
    mark = source.choice(_MARKS)
    answer = f"{mark}. {answer}" if rule == "start" else f"{answer} {mark}."
    return _make(source, before + wording.format(m=mark) + after, question, answer)


def _make(source: Source, rule: str, question: str, answer: str) -> Dialogue:
    messages: list[Message] = [system(rule), user(question), assistant(answer)]
    return Dialogue("obey", messages, [], source.used_new_phrasing, can_join=False)


_PLAIN = (
    "You are a helpful assistant.", "You are a friendly assistant.", "You are a helpful AI assistant.", "You are an assistant.",
    "You are Spark.", "You are a chatbot.", "You are a polite assistant.", "You are an expert.", "You help people.", "Be helpful.",
    "Be brief.", "Be polite.", "Be honest.", "Be friendly.", "Answer briefly.", "Answer the question.", "Answer clearly.", "Keep it short.",
    "Always be kind to the user.", "Think before you answer.", "If you do not know something, say so.", "Never make things up.",
    "Do not be rude.", "Do not use bad words.", "Do not give medical advice.", "Do not talk about politics.", "Respect the user.",
    "The user may ask about many things.", "You work for a small company.", "You work for a library.", "You answer questions of customers.",
    "Our shop sells books, lamps and chairs.", "Our office is open from Monday to Friday.", "The company was founded in 1998.",
    "Customers can return a product within 30 days.", "Shipping takes three to five days.", "We accept cash and cards.",
    "Use simple words.", "Use short sentences.", "Write in English.", "Do not repeat the question.", "Do not add a list of links.",
    "Stay calm when the user is angry.", "Ask for more detail when a question is not clear.", "Protect private data.",
    "Never share a password.", "Follow the rules of this conversation.", "The rules below are important.", "Read them with care.",
    "The assistant is patient and careful.", "The assistant never lies.", "The assistant likes to help.", "You have no access to the internet.",
    "You can not see pictures.", "You can not open files.", "Do not promise anything that you can not do.", "You are running on Hearth.",
    "This conversation may be recorded.", "The current version is 2.4.1.", "Today is a good day.", "You are part of a test.",
    "When the user says hello, greet the user.", "When the user says thanks, be glad.", "Prices include tax.", "Support is free.",
)  # fmt: skip


def draw_plain(source: Source, count: int) -> str:
    """A system prompt of `count` sentences that asks for nothing special."""
    sentences = source.sample(_PLAIN, min(count, len(_PLAIN)))
    return " ".join(sentences)
