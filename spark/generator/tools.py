"""Tool calls: tools as JSON in the system message, a call with copied arguments, a result turned into a sentence.

Tools are in the form of the OpenAI API. Also: tools are there but the question needs none.
"""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spark.generator.dialogue import Dialogue, Message, Source, ask, assistant, call, system, user
from spark.generator.facts import draw_fact
from spark.generator.greetings import make_greeting
from spark.generator.text import draw_words
from spark.words import CITIES, COLORS, FOODS, NAMES, OBJECTS, PLACES, VALUES, WEEKDAYS

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Tool:
    """One tool: its schema, how users ask for it (last wording held out), how its result looks and reads."""

    names: tuple[str, ...]
    description: str
    parameters: dict[str, str]
    draw: Callable[[Source], Arguments]
    wordings: tuple[str, ...]
    result: Callable[[Source, Arguments], tuple[str, str]]

    def schema(self, name: str) -> dict[str, Any]:
        properties = {key: {"type": kind} for key, kind in self.parameters.items()}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        return {
            "type": "function",
            "function": {"name": name, "description": self.description, "parameters": parameters},
        }


def _weather(source: Source, given: Arguments) -> tuple[str, str]:
    sky, degrees = source.choice(("sunny", "cloudy", "rainy", "windy", "snowy", "foggy")), source.randrange(-9, 39)
    return (
        f'{{"temperature": {degrees}, "condition": "{sky}"}}',
        f"It is {sky} in {given['city']} with {degrees} degrees.",
    )


def _time(source: Source, given: Arguments) -> tuple[str, str]:
    clock = f"{source.randrange(24):02d}:{source.randrange(60):02d}"
    return f'{{"time": "{clock}"}}', f"It is {clock} in {given['city']}."


def _number(_source: Source, given: Arguments) -> tuple[str, str]:
    number = given["a"] + given["b"]
    return f'{{"result": {number}}}', f"The result is {number}."


def _done(source: Source, _given: Arguments) -> tuple[str, str]:
    return (
        ('{"status": "ok"}', "Done.") if source.random() < 0.8 else ('{"status": "error"}', "Sorry, that did not work.")
    )


def _price(source: Source, _given: Arguments) -> tuple[str, str]:
    price = source.randrange(1, 500)
    return f'{{"price": {price}}}', f"The price is {price} dollars."


def _distance(source: Source, _given: Arguments) -> tuple[str, str]:
    far = source.randrange(20, 9000)
    return f'{{"kilometers": {far}}}', f"It is {far} kilometers."


def _two_cities(source: Source) -> Arguments:
    first, second = source.sample(CITIES, 2)
    return {"start": first, "end": second}


TOOLS = (
    Tool(("get_weather", "get_current_weather", "weather"), "Get the weather in a city", {"city": "string"}, lambda s: {"city": s.choice(CITIES)},
         ("What is the weather in {city}?", "How is the weather in {city}?", "Tell me the weather in {city}.", "Is it raining in {city}?", "What's the weather like in {city}?", "Weather in {city}?", "Do I need an umbrella in {city}?", "Is it warm in {city}?"), _weather),
    Tool(("get_time", "get_current_time"), "Get the current time in a city", {"city": "string"}, lambda s: {"city": s.choice(CITIES)},
         ("What time is it in {city}?", "Tell me the time in {city}.", "What is the time in {city}?", "Time in {city}?", "How late is it in {city}?"), _time),
    Tool(("calculate_distance", "get_distance"), "Get the distance between two cities", {"start": "string", "end": "string"}, _two_cities,
         ("How far is it from {start} to {end}?", "What is the distance from {start} to {end}?", "Distance from {start} to {end}?", "How many kilometers are between {start} and {end}?", "Tell me how far {end} is from {start}."), _distance),
    Tool(("set_timer", "start_timer"), "Start a timer", {"minutes": "integer"}, lambda s: {"minutes": s.randrange(1, 91)},
         ("Set a timer for {minutes} minutes.", "Start a timer of {minutes} minutes.", "Timer for {minutes} minutes, please.", "Wake me in {minutes} minutes.", "Count down {minutes} minutes."), _done),
    Tool(("send_message", "send_email"), "Send a message to a person", {"name": "string", "text": "string"}, lambda s: {"name": s.choice(NAMES), "text": draw_words(s, s.randrange(1, 5))},
         ("Send a message to {name}: {text}", "Write to {name}: {text}", "Tell {name} this: {text}", "Message {name}: {text}", "Let {name} know: {text}"), _done),
    Tool(("get_price", "lookup_price"), "Get the price of an item", {"item": "string"}, lambda s: {"item": s.choice(OBJECTS + FOODS)},
         ("How much is a {item}?", "What is the price of a {item}?", "What does a {item} cost?", "Price of a {item}?", "Tell me the price of a {item}.", "Is a {item} expensive?"), _price),
    Tool(("turn_on_light", "switch_on_light"), "Turn on the light in a room", {"room": "string", "color": "string"}, lambda s: {"room": s.choice(PLACES), "color": s.choice(COLORS)},
         ("Turn on the {color} light in the {room}.", "Switch on the {color} light in the {room}.", "Make the light in the {room} {color}.", "I want {color} light in the {room}."), _done),
    Tool(("add_event", "create_event"), "Add an event to the calendar", {"title": "string", "day": "string"}, lambda s: {"title": s.choice(("meeting", "party", "exam", "trip", "concert", "dinner", "lesson", "match", "visit")), "day": s.choice(WEEKDAYS)},
         ("Add a {title} on {day}.", "Put a {title} on {day} in my calendar.", "I have a {title} on {day}, write it down.", "Plan a {title} for {day}.", "Note the {title} on {day}."), _done),
    Tool(("add_numbers", "add"), "Add two numbers", {"a": "integer", "b": "integer"}, lambda s: {"a": s.randrange(100), "b": s.randrange(100)},
         ("What is {a} plus {b}?", "Add {a} and {b}.", "What is {a} + {b}?", "Calculate {a} + {b}.", "Sum up {a} and {b}."), _number),
    Tool(("search_web", "web_search", "search"), "Search the web", {"query": "string"}, lambda s: {"query": draw_words(s, s.randrange(1, 4))},
         ("Search for {query}", "Search the web for {query}", "Look up {query}", "Find pages about {query}", "Google {query}"), lambda s, _given: (f'{{"result": "{s.choice(VALUES)}"}}', "")),
    Tool(("play_song", "play_music"), "Play music by an artist", {"artist": "string"}, lambda s: {"artist": s.choice(NAMES)},
         ("Play music by {artist}.", "Play a song by {artist}.", "I want to hear {artist}.", "Put on some music by {artist}."), _done),
    Tool(("book_table", "reserve_table"), "Book a table at a restaurant", {"city": "string", "people": "integer"}, lambda s: {"city": s.choice(CITIES), "people": s.randrange(1, 13)},
         ("Book a table for {people} in {city}.", "Reserve a table for {people} people in {city}.", "I need a table for {people} in {city}.", "Table for {people} in {city}, please."), _done),
)  # fmt: skip
SYSTEM = (
    "You are a helpful assistant.",
    "You can use tools.",
    "Use the tools when they help.",
    "You are a friendly assistant.",
    "",
)


def make_tool_call(source: Source) -> Dialogue:
    """A call, a call with its result said in a sentence, or a question that needs no tool."""
    shown = source.sample(TOOLS, source.choices((1, 2, 3, 4), (50, 30, 14, 6))[0])
    names = [source.choice(tool.names) for tool in shown]
    schemas = [tool.schema(name) for tool, name in zip(shown, names, strict=True)]
    text = source.choice(SYSTEM)
    messages: list[Message] = [system(text)] if text and source.random() < 0.6 else []
    if source.random() < 0.15 and not source.wants_new_phrasing:
        return _no_tool(source, messages, schemas)
    chosen = source.randrange(len(shown))
    tool, given = shown[chosen], shown[chosen].draw(source)
    messages += [user(source.pick_phrasing(tool.wordings).format(**given)), call(names[chosen], given)]
    result, answer = tool.result(source, given)
    if not answer:
        answer = "I found this: " + result.split('"')[3] + "."
    if source.random() < 0.35 and not source.wants_new_phrasing:
        messages += [{"role": "tool", "content": result}, assistant(answer)]
        return Dialogue("tool_result", messages, schemas, can_join=False)
    return Dialogue("tool_call", messages, schemas, source.used_new_phrasing, can_join=False)


def _no_tool(source: Source, messages: list[Message], schemas: list[dict[str, Any]]) -> Dialogue:
    is_fact = source.random() < 0.5
    plain = ask("tool_none", source, *draw_fact(source)) if is_fact else make_greeting(source)
    return Dialogue("tool_none", messages + plain.messages, schemas, can_join=False)
