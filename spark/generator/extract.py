"""Extraction: the requested fields of a sentence as one line of JSON, with the requested names in the requested order."""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

import json
from typing import Any

from spark.generator.dialogue import Dialogue, Message, Source, ask, assistant, join_words, system, user
from spark.generator.json_objects import EVENT_FRAMES, EVENT_NAMES, FRAMES, KEYS, KINDS
from spark.generator.relations import fix_articles
from spark.generator.values import draw_date, draw_first_name, draw_made, draw_value
from spark.words import COLORS, FOODS, LEXICON, NOUNS, OBJECTS, WEEKDAYS

Record = dict[str, Any]

_ASK = (
    "Extract {f} as JSON: {t}", "Give me {f} as JSON: {t}", "Return {f} as JSON. {t}", "{t} Extract {f} as JSON.", "Find {f} and answer in JSON: {t}", "Write {f} as JSON: {t}",
    "Turn this into JSON with {f}: {t}", "As JSON with {f}: {t}", "JSON ({f}): {t}", "Extract the fields {f} from this text as JSON: {t}", "Return JSON with the keys {f}. {t}",
    "Answer in JSON with {f}: {t}", "{t} Answer in JSON with the keys {f}.", "Extract {f} as JSON from: {t}", "Text: {t}\nReturn a JSON object with {f}.", "Please extract {f} from the text as JSON. Text: {t}",
    "Make a JSON object with {f} from this: {t}", "Read this and give me {f} in JSON: {t}", "I need {f} as a JSON object. {t}", "Return a JSON object with the keys {f}: {t}", "Convert to JSON with the keys {f}: {t}",
)  # fmt: skip
_EXAMPLE = (
    "Answer as JSON: {o}. {t}", "Fill in this JSON: {o}\n{t}", "{t}\nAnswer in this form: {o}", "Use this form: {o}. {t}", "Return JSON like {o}: {t}", "{t} Give me JSON like this: {o}",
    "Extract as JSON {o}: {t}", "Text: {t} Format: {o}", "Complete the JSON {o} from: {t}", "Write JSON in the form {o}. Text: {t}", "Answer with JSON in this format: {o}\n{t}",
)  # fmt: skip
_SYSTEM = (
    "Answer in JSON with the keys {f}.", "Extract {f} as JSON.", "Return JSON with {f}.", "You answer only in JSON with the keys {f}.", "Return only a JSON object with the keys {f}.",
    "You are a helpful assistant. Always answer in JSON with {f}.", "Extract the fields {f}. Answer in JSON.", "Give {f} of every text as JSON.", "Always answer with a JSON object with {f}.",
)  # fmt: skip
_SCHEMA = (
    "Answer with JSON that fits this schema: {s}", "Answer in JSON. Schema: {s}", "Return a JSON object with this schema: {s}", "Use this JSON schema: {s}", "You answer in JSON with the schema {s}",
    "Respond with JSON that follows this schema: {s}", "Here is the JSON schema that you must follow: {s}", "JSON schema:\n{s}", "Your answer must be JSON with this schema: {s}", "Answer only with JSON that follows this schema: {s}",
)  # fmt: skip
_EVENT = (
    "Extract the event information.", "Extract the event.", "Extract the event information as JSON.", "Extract the event as JSON.", "Extract the event data.", "Give me the event as JSON.",
    "Return the event as JSON.", "Get the event information from the text.",
)  # fmt: skip
_LIST = (
    "Write {x} as a JSON list.", "{x} as a JSON list", "Give me {x} as a JSON list.", "Make a JSON list of {x}.", "Return {x} as a JSON list.", "Turn {x} into a JSON list.", "JSON list: {x}", "As a JSON array: {x}",
    "Make a JSON array of {x}.", "Write these as a JSON list: {x}", "Convert to a JSON list: {x}", "I need {x} as a JSON array.", "Put {x} into a JSON list.", "Please write {x} as a JSON array.",
)  # fmt: skip
_STATES = (
    ("open", "The {k} is open.", "The {k} is closed."), ("working", "The {k} works.", "The {k} does not work."), ("available", "The {k} is available.", "The {k} is not available."),
    ("paid", "The {k} is paid.", "The {k} is not paid."), ("done", "The work on the {k} is done.", "The work on the {k} is not done."), ("sold", "The {k} was sold.", "The {k} was not sold."),
    ("new", "The {k} is new.", "The {k} is not new."), ("empty", "The {k} is empty.", "The {k} is not empty."),
)  # fmt: skip


def make_extraction(source: Source) -> Dialogue:
    """Two to five fields of a text as an object: strings, numbers, booleans, null, lists, now and then nested."""
    draw = source.random()
    if draw < 0.16:
        return _make_event(source)
    if draw < 0.22:
        return _make_state(source)
    record, text = _draw_record(source)
    if draw < 0.28 and not source.wants_new_phrasing:
        return _ask(
            source, source.pick_phrasing(_EXAMPLE).format(o=_blank(nested := _nest(source, record)), t=text), nested
        )
    if draw < 0.34 and not source.wants_new_phrasing:
        unsaid = [
            key
            for key in ("age", "job", "color", "phone", "email", "company", "language", "year", "food")
            if not set(KEYS[key].split()) & set(record)
        ]
        record[source.choice(unsaid)] = None
    keys = list(record)
    if source.random() < 0.3:
        source.shuffle(keys)
    if len(keys) > 2 and source.random() < 0.3:
        keys = keys[:2]
    return _phrase(source, {key: record[key] for key in keys}, text)


def make_json_list(source: Source) -> Dialogue:
    """Some words as a JSON list."""
    pool = source.choice((OBJECTS, FOODS, COLORS, LEXICON, ()))
    count = source.randrange(2, 6)
    words = list(source.sample(pool, count)) if pool else [draw_first_name(source) for _ in range(count)]
    if source.random() < 0.15:
        words = [draw_made(source) for _ in range(count)]
    said = source.choice((join_words(words), ", ".join(words)))
    question = source.pick_phrasing(_LIST).format(x=said)
    return ask("json_list", source, question, json.dumps(words))


def _draw_record(source: Source) -> tuple[Record, str]:
    """Fields under the names that this dialogue gives them, and a sentence or two that tell them."""
    fields, frames = source.choice(FRAMES)
    known = {key: draw_value(source, KINDS[key]) for key in fields}
    text = fix_articles(source.choice(frames).format(**known))
    names = {key: KEYS[key].split()[0] for key in fields}
    if source.random() < 0.3:
        for key in fields:
            free = [name for name in KEYS[key].split() if name not in names.values()]
            names[key] = source.choice(free) if free and source.random() < 0.6 else names[key]
    return {names[key]: known[key] for key in fields}, text


def _make_event(source: Source) -> Dialogue:
    """An event with its day and the list of those who come."""
    people: list[str] = []
    while len(people) < source.choice((2, 2, 3)):
        people = list(dict.fromkeys([*people, draw_first_name(source)]))
    event = source.choice(EVENT_NAMES) if source.random() < 0.4 else draw_value(source, "event")
    if source.random() < 0.25:
        event = f"{source.choice(NOUNS)} {event}"
    day = source.choice(WEEKDAYS) if source.random() < 0.7 else draw_date(source)
    text = fix_articles(
        source.choice(EVENT_FRAMES).format(p=join_words(people).replace(", and", " and"), e=event, d=day)
    )
    if source.random() < 0.45:
        record = {"name": event, "date": day, "participants": people}
        question = f"{source.pick_phrasing(_EVENT)} {text}"
        if source.random() < 0.6:
            return _finish(source, [system(source.pick_phrasing(_EVENT)), user(text)], record)
        return _ask(source, question if source.random() < 0.5 else f"{text} {source.pick_phrasing(_EVENT)}", record)
    record = {
        source.choice(("event", "name", "title")): event,
        source.choice(("date", "day", "when")): day,
        source.choice(KEYS["people"].split()): people,
    }
    return _phrase(source, record, text)


def _make_state(source: Source) -> Dialogue:
    """A thing and whether it is open, paid, done ...: a boolean."""
    key, yes, no = source.choice(_STATES)
    thing, is_so = draw_value(source, "thing"), source.random() < 0.5
    name = source.choice((key, f"is_{key}"))
    return _phrase(
        source, {source.choice(("item", "thing")): thing, name: is_so}, (yes if is_so else no).format(k=thing)
    )


def _phrase(source: Source, record: Record, text: str) -> Dialogue:
    """Ask for the fields of `record` in one of the forms."""
    draw, named = source.random(), _name_keys(source, list(record))
    if draw < 0.5:
        return _ask(source, source.pick_phrasing(_ASK).format(f=named, t=text), record)
    if draw < 0.65:
        return _ask(source, source.pick_phrasing(_EXAMPLE).format(o=_blank(record), t=text), record)
    if draw < 0.8:
        return _finish(source, [system(source.pick_phrasing(_SYSTEM).format(f=named)), user(text)], record)
    said = source.pick_phrasing(_SCHEMA).format(s=json.dumps(_draw_schema(source, record)))
    if source.random() < 0.7:
        return _finish(source, [system(said), user(text)], record)
    return _ask(source, source.choice((f"{said}\n{text}", f"{text}\n{said}")), record)


def _name_keys(source: Source, keys: list[str]) -> str:
    draw = source.random()
    if draw < 0.7:
        return join_words(keys)
    return ", ".join(keys) if draw < 0.9 else join_words([f'"{key}"' for key in keys])


def _blank(record: Record) -> str:
    """`record` with "..." for its values."""
    parts = (f'"{key}": {_blank(value) if isinstance(value, dict) else "..."}' for key, value in record.items())
    return "{" + ", ".join(parts) + "}"


def _nest(source: Source, record: Record) -> Record:
    """The same fields, some of them in an object of their own."""
    keys = list(record)
    outer = source.choice([name for name in ("person", "data", "result", "info", "entry") if name not in keys])
    if len(keys) == 2:
        return {outer: record}
    return {outer: {key: record[key] for key in keys[:2]}, **{key: record[key] for key in keys[2:]}}


def _draw_schema(source: Source, record: Record) -> Record:
    properties: Record = {}
    for key, value in record.items():
        if isinstance(value, list):
            properties[key] = {"type": "array", "items": {"type": "string"}}
        elif isinstance(value, bool):
            properties[key] = {"type": "boolean"}
        elif isinstance(value, int | float):
            properties[key] = {"type": "integer" if isinstance(value, int) and source.random() < 0.7 else "number"}
        else:
            properties[key] = {"type": "string" if value is not None else ["string", "null"]}
    schema: Record = {"type": "object", "properties": properties}
    if source.random() < 0.7:
        schema["required"] = list(record)
    if source.random() < 0.3:
        schema["additionalProperties"] = False
    return schema


def _ask(source: Source, question: str, record: Record) -> Dialogue:
    return _finish(source, [user(question)], record)


def _finish(source: Source, messages: list[Message], record: Record) -> Dialogue:
    answer = assistant(json.dumps(record, ensure_ascii=False))
    can_join = messages[0]["role"] != "system"
    return Dialogue("extract", [*messages, answer], [], source.used_new_phrasing, can_join)
