"""Values that answers copy: made-up names, dates, clock times, addresses, file names, amounts.

Half of the names are composed of syllables, so that no list can be learnt in place of copying. Knows no dialogue.
"""
# ruff: noqa: E501 - a table reads better with one entry per line

from collections.abc import Callable
from typing import Any

from spark.generator.dialogue import Source
from spark.words import (
    ADJECTIVES,
    ANIMALS,
    CITIES,
    COLORS,
    FOODS,
    JOBS,
    LEXICON,
    MONTHS,
    NAMES,
    NOUNS,
    OBJECTS,
    PLACES,
    VALUES,
    WEEKDAYS,
)

_ONSETS = ("b", "br", "c", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "kr", "l", "m", "n", "p", "pl", "qu", "r", "s", "st", "t", "tr", "v", "w", "x", "y", "z")  # fmt: skip
_VOWELS = ("a", "e", "i", "o", "u", "a", "e", "i", "o", "u", "a", "e", "i", "o", "u", "ai", "ee", "ia", "oo", "ou")
_CODAS = ("", "", "", "l", "n", "r", "s", "k", "m", "nd", "th", "rt", "x", "sh")
SKIES = ("sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "clear", "stormy", "partly cloudy", "light rain")
LANGUAGES = (
    "French",
    "German",
    "Spanish",
    "Italian",
    "Dutch",
    "Polish",
    "Greek",
    "Turkish",
    "Japanese",
    "Korean",
    "Swedish",
    "Danish",
    "Arabic",
    "Hindi",
    "Latin",
    "Czech",
)
CURRENCIES = (
    "USD",
    "EUR",
    "GBP",
    "JPY",
    "CHF",
    "SEK",
    "INR",
    "CAD",
    "AUD",
    "PLN",
    "dollars",
    "euros",
    "pounds",
    "yen",
    "francs",
    "rupees",
    "pesos",
)
EVENTS = (
    "meeting",
    "party",
    "exam",
    "trip",
    "concert",
    "wedding",
    "dinner",
    "lesson",
    "match",
    "visit",
    "picnic",
    "workshop",
    "parade",
    "interview",
    "lunch",
    "call",
)
ROOMS = (
    "kitchen",
    "bedroom",
    "bathroom",
    "living room",
    "dining room",
    "hall",
    "garage",
    "attic",
    "cellar",
    "office",
    "library",
    "garden",
    "shop",
    "school",
    "cafe",
    "hotel",
    "barn",
    "studio",
    "lobby",
    "nursery",
    "balcony",
    "corridor",
    "workshop",
    "basement",
    "pantry",
    "guest room",
    "porch",
    "stable",
    "museum",
    "theater",
    "tower",
    "bakery",
    "hallway",
    "front",
    "back",
)
_LIKE_MEASURES = (
    ("miles", "kilometers", "meters", "feet", "inches", "yards"),
    ("grams", "kilograms", "pounds", "ounces"),
    ("liters", "gallons", "cups", "pints"),
    ("hours", "minutes", "seconds", "days", "weeks"),
)
_ENDINGS = ("com", "org", "net", "io", "de")


def draw_made(source: Source) -> str:
    """A made-up word of two or three syllables, in small letters."""
    count = source.choices((1, 2, 3), (1, 6, 2))[0]
    syllables = (source.choice(_ONSETS) + source.choice(_VOWELS) for _ in range(count))
    return "".join(syllables) + source.choice(("l", "n", "r", "s", "k", "m") if count == 1 else _CODAS)


def draw_name(source: Source) -> str:
    """A first name, often followed by a second one, sometimes made up."""
    first = source.choice(NAMES) if source.random() < 0.7 else draw_made(source).title()
    draw = source.random()
    if draw < 0.75:
        return first
    return f"{first} {draw_made(source).title() if draw < 0.9 else source.choice(NOUNS).title()}"


def draw_first_name(source: Source) -> str:
    return source.choice(NAMES) if source.random() < 0.75 else draw_made(source).title()


def draw_city(source: Source) -> str:
    draw = source.random()
    if draw < 0.7:
        return source.choice(CITIES)
    if draw < 0.9:
        return draw_made(source).title()
    return (
        source.choice(("New ", "San ", "Port ", "Saint ", "Old ", "North ", "Lake ", "Fort "))
        + draw_made(source).title()
    )


def draw_text(source: Source) -> str:
    """One to five plain words."""
    draw = source.random()
    if draw < 0.35:
        return source.choice((
            "see you at {n}", "I am late", "happy birthday", "call me back", "the {o} is ready", "dinner is at {n}", "buy {f} and {g}", "I will be there",
            "the {e} starts at {n}", "bring the {o}", "good luck", "where are you", "feed the {a}", "I found the {o}", "we are at the {p}",
        )).format(n=source.randrange(1, 13), o=source.choice(OBJECTS), f=source.choice(FOODS), g=source.choice(FOODS), e=source.choice(EVENTS), a=source.choice(NOUNS), p=source.choice(PLACES))  # fmt: skip
    words = [source.choice(VALUES), *(source.choice(LEXICON) for _ in range(source.randrange(4)))]
    return " ".join(words)


def draw_title(source: Source) -> str:
    """A name of a song, film or house: one to three words with capitals."""
    words = [source.choice(ADJECTIVES), source.choice(NOUNS), draw_made(source)]
    count = source.choices((1, 2, 3), (3, 5, 1))[0]
    return " ".join(word.title() for word in (words[:2] if count == 2 else source.sample(words, count)))


def draw_date(source: Source) -> str:
    month, day = source.randrange(12), source.randrange(1, 29)
    draw = source.random()
    if draw < 0.4:
        return f"{source.randrange(2024, 2031)}-{month + 1:02d}-{day:02d}"
    return f"{MONTHS[month]} {day}" if draw < 0.8 else f"{day} {MONTHS[month]}"


def draw_clock(source: Source) -> str:
    hour, minute = source.randrange(24), source.randrange(60)
    draw = source.random()
    if draw < 0.6:
        return f"{hour:02d}:{minute:02d}"
    return f"{hour % 12 + 1}:{minute:02d}" if draw < 0.8 else f"{hour % 12 + 1} {source.choice(('am', 'pm'))}"


def draw_email(source: Source) -> str:
    user = source.choice((source.choice(NAMES).lower(), draw_made(source)))
    if source.random() < 0.3:
        user += source.choice((".", "_", "")) + source.choice((draw_made(source), str(source.randrange(100))))
    return f"{user}@{source.choice((draw_made(source), 'example', source.choice(NOUNS)))}.{source.choice(_ENDINGS)}"


def draw_code(source: Source) -> str:
    letters = "".join(source.choice("ABCDEFGHKLMNPQRSTUVWXYZ") for _ in range(source.randrange(1, 4)))
    return letters + source.choice(("", "-")) + str(source.randrange(10 ** source.randrange(2, 6)))


def draw_amount(source: Source) -> int | float:
    draw = source.random()
    if draw < 0.6:
        return source.randrange(1, 10 ** source.randrange(2, 5))
    return (source.randrange(1000) * 10 + source.randrange(1, 10)) / source.choice((10, 100))


def draw_item(source: Source) -> str:
    draw = source.random()
    if draw < 0.6:
        return source.choice(OBJECTS + FOODS)
    return f"{source.choice(COLORS + ADJECTIVES)} {source.choice(OBJECTS)}" if draw < 0.85 else draw_made(source)


def draw_file(source: Source) -> str:
    return source.choice((source.choice(LEXICON), draw_made(source), source.choice(NOUNS) + "_" + str(source.randrange(100)))) + source.choice((".txt", ".md", ".csv", ".json", ".pdf", ".log"))  # fmt: skip


def draw_symbol(source: Source) -> str:
    return "".join(source.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(source.randrange(3, 5)))


DRAWS: dict[str, Callable[[Source], Any]] = {
    "city": draw_city, "person": draw_name, "first": draw_first_name, "text": draw_text, "title": draw_title, "date": draw_date, "clock": draw_clock,
    "email": draw_email, "code": draw_code, "amount": draw_amount, "item": draw_item, "file": draw_file, "symbol": draw_symbol,
    "made": draw_made, "made_name": lambda s: draw_made(s).title(), "day": lambda s: s.choice(WEEKDAYS), "color": lambda s: s.choice(COLORS),
    "room": lambda s: s.choice(ROOMS), "thing": lambda s: s.choice(OBJECTS), "price": lambda s: s.randrange(1, 1000), "animal": lambda s: s.choice(ANIMALS), "place": lambda s: s.choice(PLACES), "picture": lambda s: s.choice((draw_made(s), s.choice(NOUNS))) + s.choice((".png", ".jpg")), "food": lambda s: s.choice(FOODS), "job": lambda s: s.choice(JOBS), "event": lambda s: s.choice(EVENTS),
    "language": lambda s: s.choice(LANGUAGES), "currency": lambda s: s.choice(CURRENCIES), "measure": lambda s: draw_measures(s)[0],
    "number": lambda s: s.randrange(10 ** s.randrange(1, 5)), "minutes": lambda s: s.randrange(2, 181), "count": lambda s: s.randrange(2, 13), "percent": lambda s: s.randrange(1, 100),
    "degrees": lambda s: s.randrange(-9, 39), "room_degrees": lambda s: s.randrange(12, 30), "phone": lambda s: f"{s.randrange(100, 1000)}-{s.randrange(10000):04d}",
    "sky": lambda s: s.choice(SKIES), "month": lambda s: s.choice(MONTHS), "true": lambda _s: True,
    "age": lambda s: s.randrange(5, 100), "year": lambda s: s.randrange(1930, 2027), "word": lambda s: s.choice(LEXICON),
}  # fmt: skip


def draw_measures(source: Source) -> list[str]:
    """Two units of one quantity."""
    return source.sample(source.choice(_LIKE_MEASURES), 2)


def draw_value(source: Source, kind: str) -> Any:
    """A value of the named kind; "a|b" is one of the named words."""
    return source.choice(kind.split("|")) if "|" in kind else DRAWS[kind](source)
