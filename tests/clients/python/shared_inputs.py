"""Requests that every client test uses: a greeting, a question for a tool, a JSON object, and three texts."""

GREETING = [{"role": "user", "content": "Hello"}]
QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
RESULT = '{"temperature": 12, "condition": "sunny"}'
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Get the weather in a city", "parameters": CITY}
TOOLS = [{"type": "function", "function": WEATHER}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ABOUT_ANNA = [{"role": "user", "content": "Give me the name and age as JSON: Anna is 31 years old."}]
TEXTS = ["a cat", "a kitten", "tax law"]
NO_MODEL = "@cf/no/such-model"
LISTED_MODEL = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"  # a public model without installed weights
RETIRED_MODEL = "@cf/meta/llama-3.1-8b-instruct"  # retired in 2026


def is_person(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value["name"], str) and type(value["age"]) is int and len(value) == 2


def is_sensible(vectors: list) -> bool:
    """Return True if the vectors of the cat and the kitten are much closer to each other than to the law."""
    cat, kitten, law = vectors
    return len(cat) == 384 and dot(cat, kitten) > dot(cat, law) + 0.2


def dot(left: list, right: list) -> float:
    return sum(x * y for x, y in zip(left, right, strict=True))
