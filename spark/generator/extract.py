"""Extraction: a sentence in, the asked fields as one line of JSON out."""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

import json

from spark.generator.dialogue import Dialogue, Source, ask
from spark.words import CITIES, COLORS, FOODS, JOBS, NAMES, OBJECTS, WEEKDAYS

# fields, sentences
_FORMS = (
    (
        ("name", "age"),
        (
            "{name} is {age} years old.",
            "{name} turned {age} today.",
            "My friend {name} is {age}.",
            "At {age}, {name} is the oldest.",
        ),
    ),
    (
        ("name", "city"),
        (
            "{name} lives in {city}.",
            "{name} is from {city}.",
            "In {city} there is a person called {name}.",
            "{name} moved to {city}.",
        ),
    ),
    (
        ("name", "job"),
        (
            "{name} works as a {job}.",
            "{name} is a {job}.",
            "The {job} is called {name}.",
            "Our {job}, {name}, is here.",
        ),
    ),
    (
        ("name", "age", "city"),
        (
            "{name} is {age} and lives in {city}.",
            "{name} from {city} is {age} years old.",
            "I am {name}, {age}, from {city}.",
        ),
    ),
    (
        ("item", "price"),
        (
            "The {item} costs {price} dollars.",
            "I paid {price} dollars for the {item}.",
            "One {item} for {price} dollars.",
        ),
    ),
    (
        ("item", "quantity"),
        ("I bought {quantity} of the {item}.", "We need {quantity} times {item}.", "Order {quantity} x {item}."),
    ),
    (("item", "color"), ("The {item} is {color}.", "I have a {color} {item}.", "She sold the {color} {item}.")),
    (
        ("city", "day"),
        ("We meet in {city} on {day}.", "On {day} I fly to {city}.", "The train to {city} leaves on {day}."),
    ),
    (("name", "food"), ("{name} likes {food}.", "{name} ordered {food}.", "{food} is what {name} wants.")),
)
_ASK = (
    "Extract {f} as JSON: {t}", "Give me {f} as JSON: {t}", "Return {f} as JSON. {t}", "{t} Extract {f} as JSON.",
    "Find {f} and answer in JSON: {t}", "Write {f} as JSON: {t}", "Turn this into JSON with {f}: {t}", "As JSON with {f}: {t}",
    "JSON ({f}): {t}", "Extract the fields {f} from this text as JSON: {t}", "Convert to JSON with the keys {f}: {t}",
)  # fmt: skip


def make_extraction(source: Source) -> Dialogue:
    """Two or three fields of a sentence as JSON."""
    fields, sentences = source.choice(_FORMS)
    known = {
        "name": source.choice(NAMES), "age": source.randrange(5, 100), "city": source.choice(CITIES), "job": source.choice(JOBS),
        "item": source.choice(OBJECTS), "price": source.randrange(1, 500), "quantity": source.randrange(2, 50),
        "color": source.choice(COLORS), "day": source.choice(WEEKDAYS), "food": source.choice(FOODS),
    }  # fmt: skip
    named = " and ".join(fields) if len(fields) == 2 else ", ".join(fields[:-1]) + " and " + fields[-1]
    question = source.pick_phrasing(_ASK).format(f=named, t=source.choice(sentences).format(**known))
    return ask("extract", source, question, json.dumps({key: known[key] for key in fields}))
