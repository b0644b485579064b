"""Questions outside Spark's knowledge: many frames over the whole vocabulary, one honest answer.

Includes near misses: questions in the wordings of facts about things that are not in the table.
"""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

from spark.generator import fact_table as table
from spark.generator.dialogue import Dialogue, Source, ask, sentence
from spark.generator.facts import RELATIONS, fill
from spark.generator.greetings import draw_name
from spark.generator.wording import dress
from spark.words import (
    ABSTRACT,
    ADJECTIVES,
    ANIMALS,
    CITIES,
    FOODS,
    JOBS,
    LEXICON,
    MORE,
    NAMES,
    NOUNS,
    OBJECTS,
    PLACES,
    VERBS,
)

ANSWER = "I am a small demo model and do not know that."
_FRAMES = (
    "How does a {n} {v} the {m}?", "Why do people {v} {x}?", "Who invented the {n}?", "When was the {n} invented?", "Write a program that can {v} {x}.", "Write a Python function to {v} a {x}.", "Explain the theory of {x}.", "Explain how {x} and {y} are related.", "What will the {x} be tomorrow?",
    "What is the history of {x}?", "Compare {x} and {y}.", "Write an essay about {x} and {y}.", "Translate the word {x} into French.", "What is the {j} {x} in {c}?", "How can I {v} my {n} without a {m}?", "Who is the {b} of {c}?", "What happened in {c} in {d}?", "How many {x} are there in {c}?", "What should I {v} in {c}?",
    "Which {n} is the best for {x}?", "Summarize the book about {x}.", "What is the weather in {c}?", "What time is it?", "What is the date today?", "Why is the {x} so {j}?", "Give me a recipe with {f} and {g}.", "How do I become a {b}?", "What do you think about {x}?", "Is {x} better than {y}?", "Can you {v} my {n}?", "Who won the {x} in {d}?",
    "Imagine you are a {b}. How would you {v} the {x}?", "Draft an email to a {b} about {x}.", "Give me five ideas for {x}.", "What are the benefits of {x}?", "How would you explain {x} to a {b}?", "Describe the {j} {x} of {c}.", "Prove that {x} is {j}.", "What is the population of {c}?", "Where can I buy a {j} {n}?",
    "Book a flight to {c}.", "Order a {n} for me.", "Solve this riddle about {x} and {y}.", "What did {p} do in {c}?", "Tell me the news about {x}.", "How much does a {n} cost in {c}?", "Which {x} did {p} {v}?", "What is the difference between {x} and {y}?", "How long does it take to {v} {x}?",
    "Create a table of {x} by {y}.", "Help me to {v} my {x}.", "What causes {x}?", "Is it {j} to {v} {x}?", "Who wrote the book about {x}?", "Who is {p} {s}?", "Analyze the {x} of {y}.", "Rewrite this text about {x} in the style of a {b}.", "What would happen if {x} could {v}?", "Why did the {x} {v} in {d}?", "Do my homework on {x}.", "Design a {x} for {y}.",
    # money and shopping
    "How much money is in my account?", "What is my {x} balance?", "Pay my {x} bill.", "Transfer {k} dollars to {p}.", "When is my {x} bill due?", "How much did I spend on {x} last month?", "Is my {x} card blocked?", "What is the exchange rate of the {x}?", "What is the price of {n} stock?", "Should I invest in {x}?", "How do I save money for a {n}?",
    "What is the interest rate on a {x} loan?", "How can I improve my credit score?", "What are my taxes for {d}?", "Can I return the {n} that I bought?", "Where is my package with the {n}?", "Is the {n} on sale?", "Find me a cheap {n}.", "Compare the prices of a {n} and a {m}.", "How much should I tip for {f}?", "What is the salary of a {b} in {c}?", "I lost my {x} card, what should I do?",
    # travel and daily life
    "Plan a trip to {c} for {k} days.", "Find me a hotel in {c}.", "How do I get from {c} to {e}?", "How far is {c} from {e}?", "What is the best way to travel to {c}?", "Do I need a visa for {c}?", "What can I see in {c}?", "Which restaurant in {c} has the best {f}?", "When does the train to {c} leave?", "Is there traffic on the way to the {l}?",
    "How late is the {l} open?", "Where is the nearest {l}?", "Is my flight to {c} on time?", "What should I pack for {c}?", "What is the time in {c}?", "Will it rain in {c} tomorrow?", "How warm is it in {c}?", "Set an alarm for {k}.", "Call {p}.", "Send a message to {p} about the {n}.", "Turn on the {n}.", "Play some {x} music.", "What is on my calendar?", "Remind me to {v} the {n} tomorrow.",
    "How do I clean a {n}?", "How can I fix a broken {n}?", "Why does my {n} make a strange noise?", "My {n} does not work. What can I do?", "How do I remove {f} from a {n}?", "How often should I {v} my {n}?", "How can I change the oil in my {n}?", "What is the best {n} for a {b}?", "What do I need to {v} a {n}?", "What should I wear to a {x}?", "What gift should I buy for {p}?", "How do I tell {p} about the {x}?",
    # health, sports, food
    "Why does my {x} hurt?", "Is {f} healthy?", "How many calories are in {f}?", "What vitamins are in {f}?", "What should I do against {x}?", "How much {f} should I eat every day?", "How can I sleep better?", "Can I eat {f} and {g} together?", "How do I lose weight with {f}?", "What are the signs of {x}?", "Which exercise is good for the {x}?", "How do I train for a {x}?",
    "Who won the game yesterday?", "Who won the cup in {d}?", "What was the score of the {x} game?", "When does {c} play next?", "Who is the best player of {c}?", "What are the rules of {x}?", "How many goals did {p} score?", "How do I cook {f}?", "How long do I bake {f}?", "Can I use {f} instead of {g}?", "What can I cook with {f} and {g}?", "What is a good dinner with {f}?", "How do you make {f} soup?", "Does {f} go bad?", "What wine goes with {f}?",
    # code, science, mathematics in words
    "Write a function that finds the {j} {x} in a list.", "How do I sort a list in Python?", "Write a SQL query for all {x} in {c}.", "What does this code do: print({x})", "Fix the bug in my {x} code.", "How do I install {x} on Linux?", "Implement a {x} in C++.", "Write HTML for a page about {x}.", "Write a regular expression for {x}.", "What is the complexity of the {x} algorithm?", "Explain the {x} pattern with code.", "How does a {n} work?", "How do {x} and {y} work together?",
    "Explain {x} physics.", "Explain quantum {x}.", "What is the {x} theorem?", "Explain how {x} works in simple words.", "What is the mass of the {x}?", "How old is the {x}?", "How many {x} exist?", "Why is {x} important?", "How does {x} affect {y}?", "What is the chemical structure of {x}?", "Solve the equation {k}x + {h} = {i}.", "What is the derivative of x to the power of {k}?", "What is the square root of {d}?", "Find the area of a {n} with sides {k} and {h}.",
    "{p} has {k} {n}s and gives {h} to {q}. How many does {p} have left?", "If a {n} costs {k} dollars, how much do {h} of them cost?", "A train leaves {c} at {k}. When does it reach {e}?", "{p} is twice as old as {q}. How old is {q} in {k} years?", "What is the probability that {p} draws a {j} {n}?", "How many ways are there to {v} {k} {n}s?", "In a race you pass the second person. Where are you now?", "What is f({k}) if f(x) = {h}x + {i}?",
    # writing, roles, long requests
    "Write a letter to {p} about {x}.", "Write a speech about {x} for a {b}.", "Write a blog post about my trip to {c}.", "Write a review of the {j} {n}.", "Summarize this article: {X} and {y} {v} the {n}.", "Improve this sentence: {p} {v} the {n} {j}.", "Correct the grammar: {p} {v} a {x} yesterday.", "Translate into Spanish: {p} and the {j} {n}.", "How do you say {x} in Japanese?", "What is {x} in German?", "Write an advertisement for a {j} {n}.", "Write a song about {x} and {y}.",
    "Act as a {b} and explain {x}.", "Pretend to be a {b}. What do you say about {x}?", "You are now a {b}. Give me advice about my {n}.", "Let's play a game about {x}.", "Play the role of a {b} who likes {x}.", "I want you to act as a {b}. My first question is about {x}.", "Talk like a {b} about {x}.", "Give me three arguments for and against {x}.", "Debate with me about {x}.", "Make a plan for my {x} with {k} steps.", "Create a schedule for a {b}.", "Suggest a name for my {n} shop.", "Write a slogan for {x}.", "Outline a report on {x} and {y}.",
    "I am writing a report about {x}. Which points should I cover? Please give examples.", "My {b} says that {x} is {j}. I do not agree. How should I answer?", "I want to {v} a {n} but I have no {m}. What are my options? Explain each of them.", "Read the text and answer. {p} went to {c} to {v} a {n}. Why did {p} go there?", "Given the following data, find the {j} {x}: {k}, {h}, {i}.", "You are given a list of {x}. Find the {j} one and explain your steps.", "Consider a {j} {n} and a {m}. Which would you choose, and why?",
    "Write a short scene between a {b} and a {a}. Use at least {k} lines.", "Who is the president of {c}?", "Who is the king of {c}?", "Who was {p} {s}?", "When did the war of {c} end?", "When was {p} {s} born?", "Who directed the movie about {x}?", "Which actor plays the {b} in the movie {X}?", "What is the plot of {X} and {y}?", "What do {a}s eat?", "How long does a {a} live?", "How fast is a {a}?", "How do I train my {a}?", "Why does my {a} {v} the {n}?", "What does the {j} {n} tell us about {x}?", "Is there life on {x}?",
    "Should I {v} or {w}?", "Should {x} be allowed?", "What is your opinion on {x}?", "Do you believe in {x}?", "What is love?", "What is the best {x} in the world?", "Who is the most famous {b}?", "Tell me something about {x}.", "Tell me about {c}.", "Tell me about the history of {c}.", "What do you know about {x}?", "I need information about {x}.", "Give me facts about {x}.", "How can {x} help a {b}?", "What makes a good {b}?", "Why is {c} famous?", "How did {x} begin?", "When will {x} end?",
    "Can you help me with my {x}?", "Find the {x} of the {n}.", "Recommend a book about {x}.", "Which movie should I watch?", "Show me a picture of a {a}.", "Draw a {j} {n}.", "Open the {n}.", "Where did I put my {n}?", "How many {n}s do I have?", "Did {p} call me today?", "What is the phone number of the {l}?", "Give me the address of the {l} in {c}.", "What is the meaning of the {j} {x}?", "What is the reason for the {j} {x}?", "How do I explain {x} and {y} to {p}?",
    "Explain {x} to me like I am five.", "Which {x} should a {b} {v}?", "Can you explain the history of {x} and {y}?",
)  # fmt: skip
_ADDED = (
    "Please explain.", "Be brief.", "Give an example.", "Answer in detail.", "Think step by step.", "Explain your answer.", "Use simple words.", "Give me {k} examples.", "Write at least {h} words.", "I need it for a {b}.",
    "My {b} asked me.", "Start with the {j} part.", "Do not use the word {y}.", "Show your work.", "It is for my {x}.", "I have to know it before {d}.", "Make it {j}.", "Then compare it with {y}.",
)  # fmt: skip
_FAR_COUNTRIES = (
    "Bhutan", "Brunei", "Burundi", "Botswana", "Namibia", "Mozambique", "Malawi", "Togo", "Benin", "Gabon", "Chad", "Niger", "Guinea", "Liberia", "Eritrea", "Somalia", "Djibouti", "Yemen", "Bahrain", "Kazakhstan", "Uzbekistan",
    "Turkmenistan", "Tajikistan", "Kyrgyzstan", "Azerbaijan", "Moldova", "Kosovo", "Andorra", "Liechtenstein", "San Marino", "Honduras", "Nicaragua", "Belize", "Guyana", "Suriname", "Haiti", "Barbados", "Samoa", "Tonga", "Vanuatu", "Palau", "Maldives",
)  # fmt: skip
_KNOWN = {name for relation in RELATIONS.values() for name in relation[0]}
_UNKNOWN_WORDS = tuple(word for word in LEXICON if word not in _KNOWN)
_UNKNOWN_NOUNS = tuple(word for word in ANIMALS + OBJECTS + FOODS if word not in _KNOWN)
_NEAR = (
    "capital",
    "capital",
    "language",
    "opposite",
    "author",
    "author",
    "symbol",
    "young",
    "sound",
    "definition",
    "continent",
    "country",
)


def make_refusal(source: Source) -> Dialogue:
    """A question that no other kind could answer."""
    if source.random() < 0.2 and not source.wants_new_phrasing:
        return ask("refusal", source, dress(source, _near_miss(source), may_lower=True), ANSWER)
    fields = _fields(source)
    question = sentence(source.pick_phrasing(_FRAMES).format(**fields))
    if source.random() < 0.2:
        question += " " + source.choice(_ADDED).format(**fields)
    elif source.random() < 0.1:
        question += " " + sentence(source.choice(_FRAMES[:-1]).format(**_fields(source)))
    return ask("refusal", source, dress(source, question, may_lower=True), ANSWER)


def _fields(source: Source) -> dict[str, str]:
    wide = LEXICON if source.random() < 0.5 else ABSTRACT + MORE
    one, two = source.choice(wide), source.choice(wide)
    return {
        "n": source.choice(NOUNS), "m": source.choice(NOUNS), "v": source.choice(VERBS), "w": source.choice(VERBS), "x": one, "X": sentence(one), "y": two, "j": source.choice(ADJECTIVES),
        "b": source.choice(JOBS), "c": source.choice(CITIES), "e": source.choice(CITIES), "p": source.choice(NAMES), "q": source.choice(NAMES), "d": str(source.randrange(1500, 2030)),
        "s": source.choice(PLACES).title(), "l": source.choice(PLACES), "f": source.choice(FOODS), "g": source.choice(FOODS), "a": source.choice(ANIMALS),
        "k": str(source.randrange(2, 30)), "h": str(source.randrange(2, 200)), "i": str(source.randrange(2, 100)),
    }  # fmt: skip


def _near_miss(source: Source) -> str:
    """A question in the wording of a fact about something that is not in the table."""
    relation = source.choice(_NEAR)
    wordings = RELATIONS[relation][2]
    asked = source.choice(_UNKNOWN_WORDS)
    if relation in ("capital", "language", "continent"):
        asked = (
            source.choice(_FAR_COUNTRIES)
            if source.random() < 0.3
            else draw_name(source) + source.choice(("", "", "", "land", "stan", "ia"))
        )
    elif relation == "country":
        asked = draw_name(source)
    elif relation == "author":
        asked = f"{source.choice(('The ', '', 'My ', 'A '))}{source.choice(ADJECTIVES).title()} {source.choice(ABSTRACT).title()}"
    elif relation in ("young", "sound"):
        asked = source.choice([animal for animal in ANIMALS if animal not in RELATIONS[relation][0]])
    elif relation == "definition":
        asked = source.choice(_UNKNOWN_NOUNS)
    facts = RELATIONS[relation][0]
    while asked in facts or asked in table.CAPITALS or (relation == "country" and asked in CITIES):
        asked = draw_name(source)
    return fill(source.choice(wordings[:-1]), asked, "nothing")
