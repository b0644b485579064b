"""Memory over turns: the user tells facts about themselves and asks for one of them later.

Answers copy from the conversation; nothing here can be known beforehand.
"""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

from collections.abc import Callable

from spark.generator.dialogue import Dialogue, Message, Source, assistant, user
from spark.words import ANIMALS, CITIES, COLORS, FOODS, JOBS, LEXICON, NAMES, OBJECTS, PLACES, WEEKDAYS

Topic = tuple[str, Callable[[Source], str], tuple[str, ...], tuple[str, ...], str]

# name, value, statements, questions (the last one is held out of training), answer; {k} a second drawn word
_TOPICS: tuple[Topic, ...] = (
    ("name", lambda s: s.choice(NAMES), ("My name is {v}.", "I am {v}.", "I'm {v}.", "Call me {v}.", "You can call me {v}.", "Hi, my name is {v}.", "Hello, I am {v}."),
     ("What is my name?", "What's my name?", "Who am I?", "Do you remember my name?", "Do you know my name?", "Tell me my name.", "what is my name", "Can you repeat my name?"), "Your name is {v}."),
    ("city", lambda s: s.choice(CITIES), ("I live in {v}.", "I am from {v}.", "My home is in {v}.", "I moved to {v}.", "My city is {v}."),
     ("Where do I live?", "Which city do I live in?", "What is my city?", "Where is my home?", "Tell me where I live.", "In which city do I live?"), "You live in {v}."),
    ("job", lambda s: s.choice(JOBS), ("I work as a {v}.", "My job is {v}.", "I am a {v} by trade.", "I earn my money as a {v}."),
     ("What is my job?", "What do I do for work?", "What do I work as?", "Tell me my job.", "Which job do I have?"), "You work as a {v}."),
    ("pet", lambda s: s.choice(NAMES), ("My {k} is called {v}.", "I have a {k} named {v}.", "The name of my {k} is {v}.", "My {k}'s name is {v}."),
     ("What is my {k} called?", "What is the name of my {k}?", "Who is my {k}?", "Tell me the name of my {k}.", "How is my {k} called?"), "Your {k} is called {v}."),
    ("thing", lambda s: s.choice(COLORS), ("My {k} is {v}.", "I have a {v} {k}.", "I bought a {v} {k}.", "The color of my {k} is {v}.", "I painted my {k} {v}."),
     ("What color is my {k}?", "Which color does my {k} have?", "Which color is my {k}?", "Tell me the color of my {k}.", "What is the color of my {k}?"), "Your {k} is {v}."),
    ("where", lambda s: s.choice(PLACES), ("My {k} is in the {v}.", "I left my {k} in the {v}.", "I put the {k} in the {v}.", "The {k} is in the {v}."),
     ("Where is my {k}?", "Where is the {k}?", "Where did I leave the {k}?", "Where can I find my {k}?", "In which place is my {k}?"), "Your {k} is in the {v}."),
    ("food", lambda s: s.choice(FOODS), ("My favorite food is {v}.", "I like {v} most.", "I love to eat {v}.", "I always eat {v}."),
     ("What is my favorite food?", "What do I like to eat?", "Which food do I like?", "Tell me my favorite food.", "What food do I love?"), "Your favorite food is {v}."),
    ("color", lambda s: s.choice(COLORS), ("My favorite color is {v}.", "I like the color {v} best.", "The color I love is {v}."),
     ("What is my favorite color?", "Which color do I like best?", "Which color do I love?", "Tell me my favorite color.", "What color do I like?"), "Your favorite color is {v}."),
    ("day", lambda s: s.choice(WEEKDAYS), ("My {m} is on {v}.", "I have a {m} on {v}.", "The {m} is on {v}.", "Remind me: {m} on {v}."),
     ("When is my {m}?", "On which day is my {m}?", "Which day is the {m}?", "When is the {m}?", "What day is my {m}?"), "Your {m} is on {v}."),
    ("age", lambda s: str(s.randrange(10, 100)), ("I am {v} years old.", "My age is {v}.", "I turned {v} this year."),
     ("How old am I?", "What is my age?", "Do you know how old I am?", "Tell me my age."), "You are {v} years old."),
    ("word", lambda s: s.choice(LEXICON), ("The secret word is {v}.", "Remember the word {v}.", "My password is {v}.", "The magic word is {v}.", "Please remember this word: {v}."),
     ("What is the secret word?", "Which word should you remember?", "What was the word?", "Tell me the secret word.", "Do you remember the word?", "What is my password?", "Which word did I give you?"), "The word is {v}."),
    ("number", lambda s: str(s.randrange(10, 1000)), ("My number is {v}.", "Remember the number {v}.", "The code is {v}.", "My lucky number is {v}.", "Keep the number {v} in mind."),
     ("What is my number?", "Which number should you remember?", "What is the code?", "What was the number?", "Tell me the number.", "Do you remember the number?"), "The number is {v}."),
)  # fmt: skip
_EVENTS = (
    "meeting",
    "party",
    "exam",
    "trip",
    "concert",
    "wedding",
    "birthday",
    "dinner",
    "lesson",
    "test",
    "match",
    "visit",
)
_ACKNOWLEDGE = "Okay, I will remember that."


def make_memory(source: Source) -> Dialogue:
    """One to four told facts, in one message or over turns, then a question (or two) about them."""
    count = source.choices((1, 2, 3, 4), (30, 35, 22, 13))[0]
    told = [_fill(source, topic) for topic in source.sample(_TOPICS, count)]
    asked = source.choice(told)
    if source.random() < 0.4:
        text = " ".join(statement for statement, _, _ in told)
        if source.random() < 0.5:
            return _finish(source, [user(f"{text} {asked[1]}"), assistant(asked[2])])
        return _finish(source, [user(text), assistant(_ACKNOWLEDGE), user(asked[1]), assistant(asked[2])])
    messages: list[Message] = []
    for statement, _, _ in told:
        messages += [user(statement), assistant(_ACKNOWLEDGE)]
    if count > 1 and source.random() < 0.3:
        other = source.choice(told)
        if other is not asked:
            messages += [user(other[1]), assistant(other[2])]
    return _finish(source, [*messages, user(asked[1]), assistant(asked[2])])


def _fill(source: Source, topic: Topic) -> tuple[str, str, str]:
    name, draw, statements, questions, answer = topic
    key = source.choice(ANIMALS if name == "pet" else OBJECTS)
    fields = {"v": draw(source), "k": key, "m": source.choice(_EVENTS)}
    question = source.pick_phrasing(questions)
    return source.choice(statements).format(**fields), question.format(**fields), answer.format(**fields)


def _finish(source: Source, messages: list[Message]) -> Dialogue:
    return Dialogue("memory", messages, [], source.used_new_phrasing)
