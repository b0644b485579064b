"""Texts for copy tasks: words, made-up words, sentences, numbers, punctuation, addresses, lines of code.

Tools, memory and JSON depend on copying, so the content is as varied as a line of text can be. No text is wholly quoted
or has a space at an end. Knows no questions.
"""
# ruff: noqa: E501 - a table of patterns reads better with one entry per line

from spark.generator.dialogue import Source, sentence
from spark.words import (
    ADJECTIVES,
    CITIES,
    COMMON,
    FOODS,
    JOBS,
    LEXICON,
    MONTHS,
    NAMES,
    NOUNS,
    PLACES,
    VALUES,
    VERBS,
    WEEKDAYS,
)

_ONSETS = (
    "b c d f g h j k l m n p r s t v w z bl br ch cl cr dr fl fr gl gr kr pl pr sh sk sl sn sp st str th tr tw".split()
)
_VOWELS = "a e i o u a e i o u ai ea ee oo ou ia io".split()
_CODAS = ["", "", "", "", *"b d g k l m n p r s t x ck ll nd ng nt rd rk rn rt ss st th".split()]
_ACCENTED = """café über niño señor straße naïve Zoë José München crème façade piñata Köln garçon año jalapeño Müller größe
mañana Málaga Renée Łódź Århus Chloé fiancée résumé Grüße Bücher Käse schön süß weiß español déjà Noël Genève São João
Göteborg Malmö Søren Ñandú coração élan éclair Weißwurst Fußball Tür für Öl Übung Ärger""".split()
_PATTERNS = (
    "the {j} {n} {v} the {m}", "a {j} {n} can {v}", "{p} and {q} {v} in the {l}", "{p} has a {j} {n}",
    "{p} went to {c} with a {n}", "my {n} is {j}", "we {v} and {w} every day", "the {n} is in the {l}",
    "please {v} the {n}", "I like {f} and {g}", "{p} is a {b}", "the {j} {b} likes {f}", "{c} is {j}", "do not {v} the {n}",
    "{p} said that the {n} was too {j}", "nobody in {c} wants to {v} on {d}", "there are {k} {j} things in the {l}",
    "I can't {v} before {d}", "it's a {j} day for {q}", "{p}'s {n} is {j}", "where did {p} put the {n}", "is the {n} {j} or {i}",
    "in {o} the {b} and the {m} will {v}", "you don't need {k} of them", "{p}, {q} and I {v} at {k} o'clock",
)  # fmt: skip
_LINKS = (
    " and ",
    ", and ",
    ", but ",
    " because ",
    " so ",
    "; ",
    " while ",
    ", then ",
    " - ",
    ", which means ",
    " when ",
)
_CODE = (
    "{x} = {k}", "print({x})", 'print("{w}")', "for {y} in range({k}):", "if {x} > {k}:", "return {x} + {y}", "{x}.{y}({k})",
    "def {x}({y}):", "import {x}", "let {x} = {k};", 'const {x} = "{w}";', "{x}[{k}] = {y}", "SELECT {x} FROM {y} WHERE id = {k};",
    "{x}={k}; {y}=true", "git commit -m '{w}'", "ls -la /home/{x}", "/usr/{x}/{y}.txt", "https://example.com/{x}/{k}",
    "http://{x}.org/?id={k}&q={y}", '{{"{x}": {k}, "{y}": "{w}"}}', "<b>{w}</b>", "#{x} #{y}", "{x}_{y}_{k}", "{x}-{y}-{k}.jpg",
    "C:\\{x}\\{y}", "({x} + {y}) * {k}", "[{k}, {h}, {x}]", "{x}: {k}%", "curl -X POST {x}:{k}", "async {x} => {y}",
)  # fmt: skip


def draw_sentence(source: Source) -> str:
    """A plain sentence of random words: grammatical, rarely sensible."""
    return sentence(_draw_clause(source)) + source.choice((".", ".", "!", "", "?"))


def _draw_clause(source: Source) -> str:
    return source.choice(_PATTERNS).format(
        j=source.choice(ADJECTIVES), i=source.choice(ADJECTIVES), n=source.choice(NOUNS), m=source.choice(NOUNS),
        v=source.choice(VERBS), w=source.choice(VERBS), p=source.choice(NAMES), q=source.choice(NAMES),
        l=source.choice(PLACES), c=source.choice(CITIES), f=source.choice(FOODS), g=source.choice(FOODS),
        b=source.choice(JOBS), d=source.choice(WEEKDAYS), o=source.choice(MONTHS), k=source.randrange(2, 100),
    )  # fmt: skip


def draw_long_sentence(source: Source) -> str:
    """Two to four clauses in one sentence, up to some 25 words, or two sentences."""
    text = _draw_clause(source)
    for _ in range(source.randrange(1, 4)):
        text += source.choice(_LINKS) + _draw_clause(source)
        if len(text.split()) > 18:
            break
    if source.random() < 0.25:
        text += source.choice((". ", "! ", "? ")) + sentence(_draw_clause(source))
    return sentence(text) + source.choice((".", ".", "!", "", "?"))


def draw_words(source: Source, count: int, separator: str = " ") -> str:
    """Random words; the first is one that is a token without a blank too."""
    return separator.join([source.choice(VALUES), *(source.choice(LEXICON) for _ in range(count - 1))])


def draw_nonsense(source: Source) -> str:
    """A made-up word of one to four syllables, sometimes with a capital, rarely with an accent."""
    draw = source.random()
    if draw < 0.1:
        return source.choice(_ACCENTED)
    word = "".join(
        source.choice(_ONSETS) + source.choice(_VOWELS) + source.choice(_CODAS) for _ in range(source.randrange(1, 5))
    )
    if draw < 0.2:
        place = source.randrange(len(word))
        word = word[:place] + source.choice("éüñßöäèçåø") + word[place:]
    if draw > 0.9:
        return "".join(source.choice((letter, letter.upper())) for letter in word)
    return sentence(word) if draw > 0.7 else word


def _mix_words(source: Source) -> str:
    """Words of all lists with made-up ones, in mixed case, with marks."""
    words = []
    for _ in range(source.randrange(1, 10)):
        word = source.choice(source.choice((LEXICON, COMMON, NAMES, VALUES)))
        draw = source.random()
        if draw < 0.25:
            word = draw_nonsense(source)
        elif draw < 0.37:
            word = source.choice((word.upper(), word.capitalize()))
        elif draw < 0.43:
            word = str(source.randrange(1000))
        words.append(word + (source.choice(",.;:!?") if source.random() < 0.12 else ""))
    return " ".join(words)


def _draw_number(source: Source) -> str:
    draw, number = source.random(), source.randrange
    if draw < 0.5:
        return str(number(10 ** number(1, 6)))
    if draw < 0.6:
        return f"{number(100)}.{number(100):02}"
    if draw < 0.7:
        return f"{number(24)}:{number(60):02}"
    if draw < 0.8:
        return f"{number(1990, 2040)}-{number(1, 13):02}-{number(1, 29):02}"
    if draw < 0.9:
        return source.choice(("$", "€", "#", "-", "+")) + str(number(1000))
    return source.choice("ABCDEFGHKLMNPRSTXZ") + source.choice("ABCDEFGHKLMNPRSTXZ") + f"-{number(10000)}"


def _draw_address(source: Source) -> str:
    host = source.choice(("example.com", "example.org", "mail.net", "hearth.dev", "post.de", "school.edu"))
    first, second = source.choice(NAMES).lower(), source.choice(LEXICON)
    dot = source.choice((".", "_", "-", "", str(source.randrange(100))))
    return f"{first}{dot}{second}@{host}"


def _draw_code(source: Source) -> str:
    return source.choice(_CODE).format(
        x=source.choice(NOUNS), y=source.choice(LEXICON), k=source.randrange(1000), h=source.randrange(10),
        w=draw_words(source, source.randrange(1, 4)),
    )  # fmt: skip


def _draw_speech(source: Source) -> str:
    """A sentence with quotation marks or brackets in its middle."""
    said, name = _draw_clause(source), source.choice(NAMES)
    return source.choice((
        f'{name} said "{said}" and left.', f"{name} asked: '{sentence(said)}?' Nobody answered.", f"{sentence(said)} ({name})",
        f'The sign says "{draw_words(source, 2)}" today.', f"{sentence(said)} [{source.randrange(100)}].", f'Call it "{draw_nonsense(source)}", please.',
    ))  # fmt: skip


def draw_text(source: Source) -> str:
    """One line of any sort."""
    draw = source.random()
    if draw < 0.20:
        return draw_words(source, source.randrange(1, 10))
    if draw < 0.30:
        return draw_words(source, source.randrange(2, 8), ", ")
    if draw < 0.44:
        return _mix_words(source)
    if draw < 0.50:
        return " ".join(draw_nonsense(source) for _ in range(source.randrange(1, 4)))
    if draw < 0.58:
        return source.choice((" ", ", ")).join(_draw_number(source) for _ in range(source.randrange(1, 6)))
    if draw < 0.61:
        return _draw_address(source)
    if draw < 0.68:
        return _draw_code(source)
    if draw < 0.73:
        return _draw_speech(source)
    return draw_long_sentence(source) if draw < 0.86 else draw_sentence(source)
