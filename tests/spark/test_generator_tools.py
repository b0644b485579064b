"""Laws of the generated tool calls, extractions, memory and reading."""

import json
from itertools import islice
from typing import Any

import jsonschema

from spark.evaluate import read_call
from spark.generator.dialogue import Dialogue, Source
from spark.generator.extract import make_extraction, make_json_list
from spark.generator.memory import UNKNOWN as UNTOLD
from spark.generator.memory import make_memory
from spark.generator.reading import UNKNOWN as UNSAID
from spark.generator.reading import make_reading
from spark.generator.relations import fix_articles
from spark.generator.tool_table import DOMAINS
from spark.generator.tools import make_tool_call


def draw_dialogues(make: Any, count: int, is_new: bool = False) -> list[Dialogue]:
    """`count` dialogues of one kind from one seed."""
    source = Source("test")
    found = []
    for _ in range(count):
        source.wants_new_phrasing, source.used_new_phrasing = is_new, False
        found.append(make(source))
    return found


def name_value(answer: str) -> str:
    """The last word of an answer that is not one of its frame."""
    return [word for word in answer.rstrip(".").split(" ") if word not in ("years", "old", "members", "dollars")][-1]


def list_calls(dialogue: Dialogue) -> list[dict[str, Any]]:
    return [entry["function"] for message in dialogue.messages for entry in message.get("tool_calls", [])]


def test_arguments_fit_the_schema_that_is_shown() -> None:
    """Every call names a shown tool, whose names differ, and its arguments validate."""
    calls = 0
    for dialogue in draw_dialogues(make_tool_call, 3000):
        shown = {tool["function"]["name"]: tool["function"]["parameters"] for tool in dialogue.tools}
        assert len(shown) == len(dialogue.tools)
        for called in list_calls(dialogue):
            jsonschema.validate(called["arguments"], shown[called["name"]])
            assert set(called["arguments"]) <= set(shown[called["name"]]["properties"])
            calls += 1
    assert calls > 2500


def test_arguments_appear_in_the_question() -> None:
    """A string or a number is copied as it stands; only a boolean is inferred."""
    for dialogue in draw_dialogues(make_tool_call, 2000):
        for before, message in zip(dialogue.messages, dialogue.messages[1:], strict=False):
            for entry in message.get("tool_calls", []):
                for value in entry["function"]["arguments"].values():
                    assert value is True or str(value).lower() in before["content"].lower()


def test_no_name_of_a_tool_can_be_learnt_by_heart() -> None:
    """Hundreds of names in a thousand dialogues, and few of them often."""
    names = [tool["function"]["name"] for d in draw_dialogues(make_tool_call, 1000) for tool in d.tools]
    assert len(set(names)) > len(names) / 2


def test_every_domain_has_many_wordings_with_all_its_parameters() -> None:
    """A wording without a parameter would ask for an argument that nobody said."""
    assert len(DOMAINS) >= 35
    for domain in DOMAINS:
        assert len(set(domain.wordings)) == len(domain.wordings) >= 12
        assert all(f"{{{key}}}" in wording for wording in domain.wordings for key in domain.parameters)


def test_new_wordings_are_single_calls() -> None:
    """Wordings that are held out for the gates contain one question and one call."""
    for dialogue in islice(draw_dialogues(make_tool_call, 200, is_new=True), 200):
        assert dialogue.kind == "tool_call"
        assert dialogue.is_new_phrasing
        assert read_call(dialogue.answer)
        assert json.dumps(dialogue.tools)


def test_recalled_value_was_stated_last() -> None:
    """Every answer of the last turn is in the conversation, or nobody told it."""
    unknown = 0
    for dialogue in draw_dialogues(make_memory, 2000):
        figure = " ".join(m["content"] for m in dialogue.messages if m["role"] == "user").lower()
        if dialogue.answer == UNTOLD:
            unknown += 1
        else:
            assert name_value(dialogue.answer.lower()) in figure or dialogue.answer.startswith("Hello")
    assert 50 < unknown < 400


def test_an_article_fits_its_noun() -> None:
    """ "an" before a vowel, "a" elsewhere."""
    assert fix_articles("A old man has a red apple and a owl") == "An old man has a red apple and an owl"


def test_reading_response_uses_the_given_text() -> None:
    """Subject and value of the answer are both in the prompt; new wordings never ask for what is not there."""
    for dialogue in draw_dialogues(make_reading, 1000):
        if dialogue.answer != UNSAID:
            given = " ".join(message["content"] for message in dialogue.prompt)
            assert name_value(dialogue.answer) in given
    assert all(dialogue.answer != UNSAID for dialogue in draw_dialogues(make_reading, 200, is_new=True))


def list_values(value: Any) -> list[Any]:
    """Everything in a JSON value that is no object or list."""
    if isinstance(value, dict | list):
        return [leaf for part in (value.values() if isinstance(value, dict) else value) for leaf in list_values(part)]
    return [value]


def test_an_extraction_is_json_with_values_of_the_text() -> None:
    """Strings and numbers stand in the prompt as they are; so do all keys but those of an event."""
    for dialogue in draw_dialogues(make_extraction, 2000):
        given = " ".join(message["content"] for message in dialogue.prompt)
        record = json.loads(dialogue.answer)
        assert all(str(value) in given for value in list_values(record) if value not in (None, True, False))
        assert all(key in given for key in record) or list(record) == ["name", "date", "participants"]


def test_a_shown_schema_is_obeyed() -> None:
    """Just its keys, in its order, of its types."""
    seen = 0
    for dialogue in draw_dialogues(make_extraction, 2000):
        given = dialogue.prompt[0]["content"]
        if '{"type": "object"' in given:
            schema, _ = json.JSONDecoder().raw_decode(given[given.index('{"type"') :])
            record = json.loads(dialogue.answer)
            jsonschema.validate(record, schema)
            assert list(record) == list(schema["properties"])
            seen += 1
    assert seen > 150


def test_words_become_a_json_list() -> None:
    """All of them, as strings, in their order."""
    for dialogue in draw_dialogues(make_json_list, 300):
        words, drawn = json.loads(dialogue.answer), dialogue.prompt[0]["content"]
        assert len(words) >= 2
        assert all(word in drawn for word in words)
