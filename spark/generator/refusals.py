"""Questions outside what Spark knows: many frames over the whole vocabulary, one honest answer."""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

from spark.generator.dialogue import Dialogue, Source, ask
from spark.words import ABSTRACT, ADJECTIVES, CITIES, JOBS, LEXICON, MORE, NAMES, NOUNS, PLACES, VERBS

ANSWER = "I am a small demo model and do not know that."
_FRAMES = (
    "How does a {n} {v} the {m}?", "Why do people {v} {x}?", "Who invented the {n}?", "When was the {n} invented?", "Write a program that can {v} {x}.",
    "Write a Python function to {v} a {x}.", "Explain the theory of {x}.", "Explain how {x} and {y} are related.", "What will the {x} be tomorrow?",
    "What is the history of {x}?", "Compare {x} and {y}.", "Write an essay about {x} and {y}.", "Translate the word {x} into French.", "What is the {j} {x} in {c}?",
    "How can I {v} my {n} without a {m}?", "Who is the {b} of {c}?", "What happened in {c} in {d}?", "How many {x} are there in {c}?", "What should I {v} in {c}?",
    "Which {n} is the best for {x}?", "Summarize the book about {x}.", "What is the weather in {c}?", "What time is it?", "What is the date today?", "Why is the {x} so {j}?",
    "Give me a recipe with {x} and {y}.", "How do I become a {b}?", "What do you think about {x}?", "Is {x} better than {y}?", "Can you {v} my {n}?", "Who won the {x} in {d}?",
    "Imagine you are a {b}. How would you {v} the {x}?", "Draft an email to a {b} about {x}.", "Give me five ideas for {x}.", "What are the benefits of {x}?",
    "How would you explain {x} to a {b}?", "Describe the {j} {x} of {c}.", "Prove that {x} is {j}.", "What is the population of {c}?", "Where can I buy a {j} {n}?",
    "Book a flight to {c}.", "Order a {n} for me.", "What is the meaning of the {j} {x}?", "Solve this riddle about {x} and {y}.", "What did {p} do in {c}?",
    "Tell me the news about {x}.", "How much does a {n} cost in {c}?", "Which {x} did {p} {v}?", "What is the difference between {x} and {y}?", "How long does it take to {v} {x}?",
    "Create a table of {x} by {y}.", "Help me to {v} my {x}.", "What causes {x}?", "Is it {j} to {v} {x}?", "Who wrote the book about {x}?", "Who is {p} {s}?", "Analyze the {x} of {y}.",
    "Rewrite this text about {x} in the style of a {b}.", "What would happen if {x} could {v}?", "Why did the {x} {v} in {d}?", "Do my homework on {x}.", "Design a {x} for {y}.",
)  # fmt: skip


def make_refusal(source: Source) -> Dialogue:
    """A question that no other kind could answer."""
    wide = LEXICON if source.random() < 0.5 else ABSTRACT + MORE
    question = source.pick_phrasing(_FRAMES).format(
        n=source.choice(NOUNS), m=source.choice(NOUNS), v=source.choice(VERBS), x=source.choice(wide), y=source.choice(wide), j=source.choice(ADJECTIVES),
        b=source.choice(JOBS), c=source.choice(CITIES), p=source.choice(NAMES), d=source.randrange(1500, 2030), s=source.choice(PLACES).title(),
    )  # fmt: skip
    if source.random() < 0.2:
        question += " " + source.choice(
            ("Please explain.", "Be brief.", "Give an example.", "Answer in detail.", "Think step by step.")
        )
    return ask("refusal", source, question, ANSWER)
