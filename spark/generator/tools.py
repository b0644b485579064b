"""Tool calls: tools as JSON in the system message, a call with copied arguments, a result turned into a sentence.

Names of tools and parameters are composed anew for every dialogue, so that they must be copied from what is shown.
Also: tools are there but the question needs none, or needs one that is not there.
"""

import json
from dataclasses import dataclass
from typing import Any

from spark.generator.dialogue import Dialogue, Message, Source, ask, assistant, call, system, user
from spark.generator.facts import draw_fact
from spark.generator.greetings import make_greeting
from spark.generator.refusals import ANSWER as REFUSAL
from spark.generator.tool_table import DOMAINS, Domain
from spark.generator.values import draw_made, draw_measures, draw_value
from spark.generator.wording import dress

Arguments = dict[str, Any]

MAX_CHARACTERS = 1400
"""Of the tools shown in one dialogue, so that it fits into a row of training."""
SYSTEM = (
    "You are a helpful assistant.",
    "You can use tools.",
    "Use the tools when they help.",
    "You are a friendly assistant.",
    "You are a helpful assistant with tools.",
    "Use the supplied tools to assist the user.",
    "",
)
_TOO_LIKE = (("weather", "forecast"), ("order", "package"), ("price", "stock price"))
_SPECS = {
    "city": ("City name", "The city and state, e.g. San Francisco, CA", "Name of the city", "City and country"),
    "person": ("Name of the person", "Who it is"),
    "text": ("The text", "What to write"),
    "clock": ("Time of day", "Time, e.g. 14:30"),
    "date": ("The date", "Date as the user says it"),
    "day": ("Day of the week", "The weekday"),
    "room": ("The room", "Which room or place"),
    "minutes": ("How many minutes", "Duration in minutes"),
    "number": ("A number", "The number"),
    "email": ("Email address",),
    "code": ("The code", "Number to look up"),
}
_INTEGERS = ("number", "minutes", "count", "percent", "room_degrees")
_ERRORS = ("not found", "timeout", "no access", "service is down", "bad request", "try again later", "limit reached")


@dataclass(frozen=True)
class Shown:
    """A tool as one dialogue shows it: its schema and the names of its keys."""

    domain: Domain
    schema: dict[str, Any]
    keys: dict[str, str]

    @property
    def name(self) -> str:
        return str(self.schema["function"]["name"])


def make_tool_call(source: Source) -> Dialogue:
    """A call, two calls, a call with its result said in a sentence, or a question that needs no tool shown."""
    shown = draw_tools(source, source.choices((1, 2, 3, 4, 5, 6), (52, 30, 12, 3, 2, 1))[0])
    text = source.choice(SYSTEM)
    messages: list[Message] = [system(text)] if text and source.random() < 0.5 else []
    schemas = [tool.schema for tool in shown]
    draw = source.random()
    if source.wants_new_phrasing:
        draw = 1.0
    if draw < 0.15:
        return _no_tool(source, messages, shown)
    if 0.95 < draw < 1:
        messages += (make_greeting(source) if draw < 0.98 else ask("fact", source, *draw_fact(source))).messages
    tool = source.choice(shown)
    if 0.15 < draw < 0.2 and (two := _two_calls(source, tool)):
        return Dialogue("tool_calls_two", messages + two, schemas, source.used_new_phrasing, can_join=False)
    question, given = draw_question(source, tool)
    messages += [user(question), call(tool.name, _named(tool, given))]
    if draw < 0.5:
        content, answer = _draw_result(source, tool.domain, given)
        messages += [{"role": "tool", "content": content}, assistant(answer)]
        if draw > 0.38:
            tool = source.choice(shown)
            question, given = draw_question(source, tool)
            messages += [user(question), call(tool.name, _named(tool, given))]
            return Dialogue("tool_call", messages, schemas, source.used_new_phrasing, can_join=False)
        return Dialogue("tool_result", messages, schemas, can_join=False)
    return Dialogue("tool_call", messages, schemas, source.used_new_phrasing, can_join=False)


def make_tool_drill(source: Source) -> Dialogue:
    """Several tools, then question after question, each with one call, to train the choice of the right tool.

    A prompt with tools is long; a drill trains many choices with one prompt.
    """
    shown = draw_tools(source, source.choices((2, 3, 4, 5), (40, 34, 16, 10))[0])
    messages: list[Message] = []
    for _ in range(source.randrange(4, 9)):
        draw = source.random()
        if draw < 0.12:
            messages += _no_tool(source, [], shown).messages
            continue
        tool = source.choice(shown)
        question, given = draw_question(source, tool)
        messages += [user(question), call(tool.name, _named(tool, given))]
    return Dialogue("tool_drill", messages, [tool.schema for tool in shown], source.used_new_phrasing, can_join=False)


def draw_tools(source: Source, count: int) -> list[Shown]:
    """`count` tools of different domains, none that a question could take for another; names are distinct."""
    domains: list[Domain] = []
    for domain in source.sample(DOMAINS, len(DOMAINS)):
        if len(domains) < count and not any(_are_alike(domain, other) for other in domains):
            domains.append(domain)
    style = source.choice(("snake", "snake", "snake", "snake", "snake", "camel", "camel", "kebab", "pascal"))
    shown: list[Shown] = []
    while len(shown) < count:
        tool = _show(source, domains[len(shown)], style)
        if tool.name not in [other.name for other in shown]:
            shown.append(tool)
    while len(json.dumps([tool.schema for tool in shown])) > MAX_CHARACTERS:
        shown.pop()
    return shown


def _are_alike(one: Domain, other: Domain) -> bool:
    firsts = (one.nouns.split(",")[0], other.nouns.split(",")[0])
    return firsts in _TOO_LIKE or firsts[::-1] in _TOO_LIKE


def _show(source: Source, domain: Domain, style: str) -> Shown:
    is_bare = source.random() < 0.2
    name = _draw_name(source, domain, style, may_be_odd=not is_bare)
    fields = dict(domain.parameters)
    if domain.optional and source.random() < 0.5:
        fields |= {key: (names, kind) for key, (names, kind, _) in domain.optional.items()}
    taken: list[str] = []
    keys: dict[str, str] = {}
    for key, (names, _) in fields.items():
        keys[key] = source.choice([name for name in names.split() if name not in taken])
        taken.append(keys[key])
    has_specs = source.random() < 0.2
    properties = {keys[key]: _property(source, kind, keys[key], has_specs) for key, (_, kind) in fields.items()}
    required = [keys[key] for key in domain.parameters]
    parameters: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    is_strict = source.random() < 0.12 and len(fields) == len(required)
    if is_strict or source.random() < 0.06:
        parameters["additionalProperties"] = False
    function: dict[str, Any] = {"name": name}
    if not is_bare:
        function["description"] = source.choice(domain.descriptions) + source.choice(("", "", "."))
    function["parameters"] = parameters
    if source.random() < 0.08:
        function = dict(sorted(function.items()))
    if is_strict:
        function["strict"] = True
    return Shown(domain, {"type": "function", "function": function}, keys)


def _property(source: Source, kind: str, key: str, has_specs: bool) -> dict[str, Any]:
    if "|" in kind:
        spec: dict[str, Any] = {"type": "string", "enum": kind.split("|")}
    elif kind in _INTEGERS:
        spec = {"type": "integer" if source.random() < 0.7 else "number"}
    else:
        spec = {"type": {"amount": "number", "true": "boolean"}.get(kind, "string")}
    if has_specs and "|" not in kind:
        said = source.choice((*_SPECS.get(kind, ()), f"The {key.replace('_', ' ')}"))
        spec = {"type": spec["type"], "description": said} if source.random() < 0.8 else {"description": said, **spec}
    return spec


def _draw_name(source: Source, domain: Domain, style: str, may_be_odd: bool) -> str:
    """A name of verb and noun; with a description also in other forms, even one that says nothing."""
    verb, noun = source.choice(domain.verbs.split()), source.choice(domain.nouns.split(",")).split()
    draw = source.random() if may_be_odd else 0.0
    if draw < 0.6:
        words = [verb, *noun]
    elif draw < 0.75:
        words = noun
    elif draw < 0.94:
        words = [*noun, source.choice((verb, "lookup", "tool", "service", "api", "helper", "info"))]
    elif draw < 0.98:
        words = [draw_made(source), verb, *noun]
    else:
        words = [source.choice((draw_made(source), f"tool{source.randrange(100)}", "helper")), draw_made(source)]
    if source.random() < 0.06:
        words.append(source.choice(("v2", "v1", str(source.randrange(1, 100)), draw_made(source), "new", "fn")))
    if source.random() < 0.01:
        words.append("for")
        words.append(draw_made(source))
    if style == "camel":
        return words[0] + "".join(word.title() for word in words[1:])
    if style == "pascal":
        return "".join(word.title() for word in words)
    return ("-" if style == "kebab" else "_").join(words)


def draw_question(source: Source, tool: Shown) -> tuple[str, Arguments]:
    """Return a user request for the tool and the arguments that it names, by the table's keys."""
    domain = tool.domain
    given: Arguments = {}
    for key, (_, kind) in domain.parameters.items():
        value = draw_value(source, kind)
        while value in given.values():
            value = draw_value(source, kind)
        given[key] = value
    if domain.parameters.get("from", ("", ""))[1] == "measure":
        given["from"], given["to"] = draw_measures(source)
    wording = source.pick_phrasing(domain.wordings)
    question = wording.format(**given)
    if wording.startswith("{action}") or (wording.startswith("{room}") and source.random() < 0.5):
        question = question[:1].upper() + question[1:]
    for key, (_, kind, endings) in domain.optional.items():
        if key in tool.keys and source.random() < 0.4 and wording[-1] in ".?" and ", please" not in wording:
            given[key] = draw_value(source, kind)
            question = question[:-1] + source.choice(endings).format(v=given[key]) + question[-1]
    if wording[-1] in ".?!" and source.random() < 0.4:
        question = dress(source, question)
    return question, given


def _named(tool: Shown, given: Arguments) -> Arguments:
    """The arguments under the names that the shown schema has for them, in its order."""
    return {name: given[key] for key, name in tool.keys.items() if key in given}


def _two_calls(source: Source, tool: Shown) -> list[Message] | None:
    """One question that needs the same tool twice; None for a tool of more than one parameter."""
    if len(tool.domain.parameters) > 1:
        return None
    (key, (_, kind)), *_ = tool.domain.parameters.items()
    if kind not in ("city", "item", "symbol", "code", "food", "email", "file"):
        return None
    wording = source.pick_phrasing(tool.domain.wordings)
    first, second = draw_value(source, kind), draw_value(source, kind)
    if first == second or f" {{{key}}}" not in wording:
        return None
    joint = source.choice(
        (f"{first} and {second}", f"{first} and in {second}" if kind == "city" else f"{first} and {second}")
    )
    calls = [call(tool.name, {tool.keys[key]: value}) for value in (first, second)]
    both = {**calls[0], "tool_calls": calls[0]["tool_calls"] + calls[1]["tool_calls"]}
    return [user(wording.format(**{key: joint})), both]


def _draw_result(source: Source, domain: Domain, given: Arguments) -> tuple[str, str]:
    """Return the tool's result, as JSON or text, and the answer that states it."""
    if source.random() < 0.12:
        reason = source.choice(_ERRORS)
        shape = source.choice(('{{"error": "{}"}}', '{{"status": "error", "message": "{}"}}', "Error: {}"))
        return shape.format(reason), f"Sorry, that did not work: {reason}."
    if not domain.result:
        done = source.choice(
            ('{"status": "ok"}', '{"success": true}', "ok", "Done", '{"status": "done"}', '{"ok": true}')
        )
        if source.random() < 0.3:
            done = json.dumps({"status": "ok", "id": draw_value(source, "code")})
        return done, "Done."
    drawn = {key: draw_value(source, kind) for key, (_, kind) in domain.result.items()}
    if domain.is_known_without:
        drawn = {key: given["a"] + given["b"] if key == "sum" else given["a"] * given["b"] for key in drawn}
    key, short = domain.short
    is_short = bool(short) and source.random() < 0.4
    if is_short:
        drawn = {key: drawn[key]}
    answer = (short if is_short else domain.answer).format(**given, **drawn)
    draw = source.random()
    if draw < 0.12:
        return answer, answer
    if draw < 0.2 and len(drawn) == 1:
        return str(next(iter(drawn.values()))), answer
    result = {source.choice(domain.result[key][0].split()): value for key, value in drawn.items()}
    if draw < 0.45:
        key = next(iter(given))
        result = {key: given[key], **result} if key not in result else result
    if is_short and source.random() < 0.5:
        result["unit"] = given.get("unit", "celsius")
    return json.dumps(result, ensure_ascii=False), answer


def _no_tool(source: Source, messages: list[Message], shown: list[Shown]) -> Dialogue:
    """A fact, a greeting, or a request that none of the shown tools fits."""
    schemas = [tool.schema for tool in shown]
    draw = source.random()
    if draw < 0.4:
        taken = [tool.domain for tool in shown]
        others = [
            d for d in DOMAINS if d not in taken and not d.is_known_without and not any(_are_alike(d, t) for t in taken)
        ]
        question, _ = draw_question(source, Shown(source.choice(others), {}, {}))
        return Dialogue("tool_none", [*messages, user(question), assistant(REFUSAL)], schemas, can_join=False)
    plain = ask("tool_none", source, *draw_fact(source)) if draw < 0.75 else make_greeting(source)
    return Dialogue("tool_none", messages + plain.messages, schemas, can_join=False)
