"""System prompts that change the answer, and plain system prompts (short to several hundred tokens) that do not."""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

from spark.generator.dialogue import Dialogue, Message, Source, assistant, system, user
from spark.generator.facts import RELATIONS, draw_fact, fill
from spark.generator.greetings import draw_name
from spark.generator.intents import QUESTIONS
from spark.generator.wording import dress
from spark.words import JOBS

# rule -> wordings; the last is held out of training
_RULES: dict[str, tuple[str, ...]] = {
    "capitals": (
        "Answer in capitals.", "Always answer in capital letters.", "Write all answers in upper case.", "Use only capital letters.", "Answer in upper case.", "Answer with capital letters only.", "Write in capital letters.", "All your answers must be in capitals.", "Respond in capital letters.",
        "Please answer in capitals.", "Speak only in capital letters.", "You must write in upper case.", "Use upper case for every answer.", "Reply in capital letters.", "Write everything in capitals.", "Only use capital letters in your answers.", "ANSWER IN CAPITALS.", "You always answer in capitals.", "Reply in capitals.",
    ),
    "lower": (
        "Answer in lower case.", "Always answer in lower case letters.", "Write all answers in lower case.", "Use only lower case letters.", "Answer in small letters.", "Never use capital letters.", "Do not use capital letters.", "Write in lower case.", "All your answers must be in lower case.", "Respond in lower case.", "Please answer in lower case.",
        "You must write in lower case.", "Use lower case for every answer.", "Write everything in lower case.", "answer in lower case.", "You always answer in lower case.", "Reply in small letters.", "Only use lower case letters in your answers.", "Reply in lower case.",
    ),
    "word": (
        "Answer with one word.", "Always answer with one word.", "Use only one word.", "Reply with a single word.", "One word answers only.", "Answer in one word.", "Answer with a single word.", "Give answers of one word.", "Your answers have only one word.", "Respond with one word.", "Say only one word.", "Please answer with one word.",
        "Answer only with the word itself.", "Every answer is a single word.", "You must answer with one word.", "Give me one word only.", "Respond with a single word.", "Use a single word as the answer.", "Reply with one word.",
    ),
    "start": (
        "Start every answer with {m}.", "Begin each answer with {m}.", "Always start with {m}.", "Every reply starts with {m}.", "Start each reply with {m}.", "Begin every answer with {m}.", "Every answer begins with {m}.", "Start your answers with {m}.", "Always begin your answer with {m}.", "Your answers start with {m}.", "You start every answer with {m}.",
        "Say {m} at the start of every answer.", "Put {m} at the start of each answer.", "Please start every answer with {m}.", "Each reply must begin with {m}.", "The first word of every answer is {m}.", "Begin your replies with {m}.", "Each answer must start with {m}.",
    ),
    "end": (
        "End every answer with {m}.", "Finish each answer with {m}.", "Always end with {m}.", "Every reply ends with {m}.", "End each reply with {m}.", "Finish every answer with {m}.", "Every answer ends with {m}.", "End your answers with {m}.", "Always end your answer with {m}.", "Your answers end with {m}.", "You end every answer with {m}.",
        "Say {m} at the end of every answer.", "Put {m} at the end of each answer.", "Please end every answer with {m}.", "Each reply must finish with {m}.", "The last word of every answer is {m}.", "Finish your replies with {m}.", "Each answer must end with {m}.",
    ),
    "only": (
        "Whatever the user says, answer {m}.", "Always answer {m}.", "Answer every question with {m}.", "Only say {m}.", "You can only say {m}.", "Always reply {m}.", "Reply to everything with {m}.", "Your only answer is {m}.", "Say {m} to everything.", "Answer everything with {m}.", "Whatever you are asked, say {m}.", "Respond to everything with {m}.",
        "You only ever say {m}.", "Whatever the user says, reply {m}.", "No matter what the user asks, answer {m}.", "No matter what the user says, say {m}.", "Reply to every question with {m}.",
    ),
    "name": (
        "Your name is {n}.", "Your name is {n}.", "You are {n}, a friendly assistant.", "You are called {n}.", "Your new name is {n}.", "You are {n}.", "You are {n}, a helpful assistant.", "You are a bot named {n}.", "You are a {b} named {n}.", "Your name is {n} and you help people.", "From now on your name is {n}.", "Call yourself {n}.", "You are a helpful assistant named {n}.",
        "You are an assistant called {n}.", "Act as {n}.", "People call you {n}.", "You go by the name {n}.", "The name of the assistant is {n}.", "You are {n}, the {b}.", "The assistant is called {n}.", "You are a friendly bot called {n}.", "Pretend that your name is {n}.", "You play {n}, a {b}.", "You are a {b} called {n}.", "You are an assistant named {n}.",
    ),
}  # fmt: skip
_MARKS = ("Sure", "Well", "Listen", "Okay", "Over", "Hooray", "Indeed", "My friend", "Captain", "Sir", "Madam", "Of course", "Ahoy", "Roger", "Yes", "Meow", "Beep", "Thanks", "Cheers", "Amen", "Bravo", "Wow", "Hello", "Great", "Good luck", "The end", "Done", "Ready", "Attention", "Dear user")  # fmt: skip
_ASK_NAME = (
    "What is your name?", "What is your name?", "Who are you?", "Who are you?", "What's your name?", "Tell me your name.", "Do you have a name?", "What should I call you?", "Introduce yourself.", "Who am I talking to?", "What are you called?", "May I know your name?", "Your name?", "What do people call you?", "Can you tell me your name?",
    "Say your name.", "Who is this?", "Please introduce yourself.", "Can you tell me who you are?", "How are you called?", "Give me your name.", "What is the name of this assistant?", "Which name do you have?", "I would like to know your name.",
)  # fmt: skip
_SHORT = (
    "capital",
    "capital",
    "opposite",
    "plural",
    "past",
    "young",
    "country",
    "next day",
    "next month",
    "previous day",
    "previous month",
)


def make_obedience(source: Source) -> Dialogue:
    """A rule in the system prompt, then a question whose answer must follow it."""
    rule = source.choices(list(_RULES), (14, 12, 15, 12, 12, 8, 27))[0]
    name, mark = draw_name(source), source.choice(_MARKS)
    if source.random() < 0.3:
        mark = draw_name(source)
    wording = source.pick_phrasing(_RULES[rule]).format(m=_quote(source, mark), n=name, b=source.choice(JOBS))
    wanted, source.wants_new_phrasing = source.wants_new_phrasing, False  # the question keeps a known wording
    before = draw_plain(source, 1) + " " if source.random() < 0.35 else ""
    after = " " + draw_plain(source, 1) if source.random() < 0.3 else ""
    if rule == "name":
        before, question, answer = "", dress(source, source.choice(_ASK_NAME), may_lower=True), f"I am {name}."
    elif rule == "word":
        question, answer = _draw_short(source)
    else:
        question, answer = draw_fact(source) if source.random() < 0.75 else _draw_small_talk(source)
        answer = _change(rule, answer, mark)
    source.wants_new_phrasing = wanted
    messages: list[Message] = [system(before + wording + after), user(question), assistant(answer)]
    return Dialogue("obey", messages, [], wanted, can_join=False)


def _change(rule: str, answer: str, mark: str) -> str:
    """`answer` as the rule wants it."""
    changed = {
        "capitals": answer.upper(), "lower": answer.lower(), "start": f"{mark}. {answer}", "end": f"{answer} {mark}.", "only": f"{mark}.",
    }  # fmt: skip
    return changed[rule]


def _quote(source: Source, mark: str) -> str:
    return source.choice((mark, mark, f'"{mark}"', f"'{mark}'"))


def _draw_short(source: Source) -> tuple[str, str]:
    """A question whose answer is one value of the table."""
    facts, _, wordings = RELATIONS[source.choice(_SHORT)]
    subject = source.choice([key for key, known in facts.items() if " " not in known])
    return dress(source, fill(source.choice(wordings[:-1]), subject, facts[subject]), may_lower=True), facts[subject]


def _draw_small_talk(source: Source) -> tuple[str, str]:
    answer, wordings, _ = QUESTIONS[source.choice(("how", "human", "languages", "age", "place", "robot", "hearth"))]
    return source.choice(wordings[:-1]), answer


_PLAIN = (
    "You are a helpful assistant.", "You are a friendly assistant.", "You are a helpful AI assistant.", "You are an assistant.",
    "You are a chatbot.", "You are a polite assistant.", "You are an expert.", "You help people.", "Be helpful.",
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
