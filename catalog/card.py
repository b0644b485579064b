"""Model cards: name, task, limits, capabilities and prices of one version of a model, and the list of tasks.

Cards are parsed from TOML or from a database row. The manifest lists a version's files.
"""

from __future__ import annotations

import re
import tomllib
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from catalog.errors import CardError, InvalidModelId
from catalog.manifest import FileEntry, Manifest, Recipe
from engine.protocol.tasks import registry as protocol_tasks

MAX_MODEL_ID_CHARACTERS = 224
_MODEL_ID = re.compile(r"@(cf|hf)/[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_IDS = uuid.UUID("6b8f2f3a-5d1c-5b7e-9a43-0f2c7c1d9e55")  # namespace of UUIDs derived from names

CAPABILITIES = frozenset(
    {"function_calling", "json_mode", "logit_bias", "lora", "multiple_choices", "reasoning", "vision"}
)

BASE_MODEL = "base_model"  # property of a quantized variant: the id of the model that it was made from
DRAFT = "draft:"  # prefix of a draft model's id in `speculation`

NativeShape = Literal["legacy", "chat_completion"]
ToolParser = Literal[
    "hermes", "mistral", "mistral_named", "llama3_json", "cohere", "granite", "apertus", "deepseek_v3", "deepseek_v31",
    "deepseek_v32", "deepseek_v4", "kimi_k2", "glm45", "qwen3_coder", "gemma4", "phi4_mini_json", "harmony",
]  # fmt: skip
Positive = Annotated[int, Meta(ge=1)]


def id_of(kind: str, name: str) -> str:
    """Return the UUID derived from a name. The same kind and name always give the same UUID."""
    return str(uuid.uuid5(_IDS, f"{kind}:{name}"))


def author_of(name: str) -> str:
    """Return the author in a model id."""
    return name.split("/")[1]


class Task(Struct, frozen=True):
    """A task: id, display name and description for the search route, and the slug used in the protocol."""

    id: str
    slug: str
    name: str
    description: str


def _task(name: str, description: str, *, id_: str = "") -> Task:
    slug = name.lower().replace(" ", "-")
    return Task(id_ or id_of("task", slug), slug, name, description)


TASKS = {
    task.name: task
    for task in (
        _task(
            "Text Generation",
            "Generates text from a prompt or a conversation.",
            id_="c329a1f9-323d-4e91-b2aa-582dd4188d34",
        ),
        _task(
            "Text Embeddings",
            "Converts texts into vectors; texts with similar meanings have similar vectors.",
        ),
        _task("Text Classification", "Classifies texts, or scores contexts for a query."),
        _task("Translation", "Translates a text into another language."),
        _task("Summarization", "Summarizes a long text."),
        _task("Automatic Speech Recognition", "Transcribes speech in a recording."),
        _task("Text-to-Speech", "Synthesizes speech from a text."),
        _task("Voice Activity Detection", "Detects the start and end of speech."),
        _task("Text-to-Image", "Generates images from a text."),
        _task("Image-to-Text", "Describes an image in words."),
        _task("Image Classification", "Classifies images."),
        _task("Object Detection", "Detects objects in an image and their positions."),
    )
}


class Prices(Struct, frozen=True, forbid_unknown_fields=True):
    """Prices in neurons per million tokens, image step, second of audio, image tile and 1000 characters.

    Without `cached_input`, cached prompt tokens cost as much as others. `batch_discount` is the fraction of the price
    that is deducted for calls of a batch.
    """

    input: Decimal = Decimal(0)
    output: Decimal = Decimal(0)
    cached_input: Decimal | None = None
    step: Decimal = Decimal(0)
    audio_second: Decimal = Decimal(0)
    image_tile: Decimal = Decimal(0)
    thousand_characters: Decimal = Decimal(0)
    batch_discount: Decimal = Decimal(0)

    def __post_init__(self) -> None:
        for price in (
            self.input, self.output, self.cached_input, self.step, self.audio_second, self.image_tile,
            self.thousand_characters,
        ):  # fmt: skip
            if price is not None and not (price.is_finite() and price >= 0):
                raise ValueError("prices must be finite numbers of at least 0")
        if not 0 <= self.batch_discount <= 1:
            raise ValueError(f"batch_discount must be between 0 and 1 (got {self.batch_discount})")


class CardFacts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a card's TOML file.

    `schema` names a file in `catalog/schemas/`. `properties` are additional values of the search route's `properties`,
    as strings. `tool_parser` names the tool call format if it cannot be derived from the chat template. `speculation`
    selects speculative decoding: `off`, `prompt_lookup`, or `draft:` and the id of a smaller model with the same
    tokenizer; without a value, nodes choose. `max_input_tokens`, `output_dimensions`, `pooling` and `is_normalised` are
    for embedding models.
    """

    name: str
    task: str
    description: str
    native_shape: NativeShape = "legacy"
    schema: str
    context_window: Positive
    default_max_tokens: Positive = 256
    capabilities: frozenset[str] = frozenset()
    tool_parser: ToolParser | None = None
    speculation: str | None = None
    prices: Prices = Prices()
    created_at: datetime
    license: str = ""
    tags: tuple[str, ...] = ()
    properties: dict[str, str] = {}
    max_input_tokens: Positive | None = None
    output_dimensions: Positive | None = None
    pooling: Literal["mean", "cls"] | None = None
    is_normalised: bool = False
    is_beta: bool = False
    planned_deprecation_date: date | None = None

    def __post_init__(self) -> None:
        if parse_model_id(self.name) != self.name:
            raise ValueError("name must be the model id without a prefix")
        if self.task not in TASKS:
            raise ValueError(f"task must be one of {', '.join(TASKS)}")
        unknown = sorted(self.capabilities - CAPABILITIES)
        if unknown:
            raise ValueError(f"unknown capabilities: {', '.join(unknown)}")
        if self.tool_parser is not None and "function_calling" not in self.capabilities:
            raise ValueError("tool_parser needs the capability function_calling")
        if self.speculation is not None:
            _check_speculation(self.speculation)
        if self.default_max_tokens > self.context_window:
            raise ValueError("default_max_tokens must not exceed context_window")
        if self.task == "Text Embeddings" and not (self.output_dimensions and self.pooling):
            raise ValueError("an embedding model needs output_dimensions and pooling")
        schemas = protocol_tasks.TASKS[TASKS[self.task].slug].native_schemas
        if self.schema not in schemas:
            raise ValueError(f"schema must be one of {', '.join(schemas)}")


class ModelCard(CardFacts, frozen=True, kw_only=True):
    """One version of a model: the card's facts, the revision (the manifest's digest) and the files."""

    revision: str
    files: tuple[FileEntry, ...]
    source: Literal["builtin", "published"]

    # Cards are keys of caches. Hashing all fields at every lookup would cost more than the cache saves.
    def __hash__(self) -> int:
        return hash((self.name, self.revision))

    @property
    def task_slug(self) -> str:
        """The task's slug in the protocol, such as `text-generation`."""
        return TASKS[self.task].slug

    @property
    def id(self) -> str:
        return id_of("model", self.name)

    @property
    def author(self) -> str:
        return author_of(self.name)

    @property
    def max_choices(self) -> int:
        """The largest `n` of a call."""
        return 8 if "multiple_choices" in self.capabilities else 1

    def is_retired(self, today: date) -> bool:
        """Return True if the model's deprecation date has passed."""
        return self.planned_deprecation_date is not None and self.planned_deprecation_date <= today


def parse_model_id(text: str) -> str:
    """Return the model id in percent-decoded `text` without the prefix `workers-ai/`. Raises InvalidModelId."""
    name = text.removeprefix("workers-ai/")
    if len(name) > MAX_MODEL_ID_CHARACTERS or ".." in name or not _MODEL_ID.fullmatch(name):
        raise InvalidModelId("a model id has the form @cf/<author>/<model> or @hf/<author>/<model>")
    return name


def _check_speculation(text: str) -> None:
    """Raises ValueError or InvalidModelId."""
    draft = text.removeprefix(DRAFT)
    if draft != text:
        parse_model_id(draft)
    elif text not in ("off", "prompt_lookup"):
        raise ValueError(f"speculation must be off, prompt_lookup, or {DRAFT} and a model id")


def parse_facts(toml: str, origin: str) -> CardFacts:
    """Parse a card in TOML. Raises CardError with one line that names `origin` and the field."""
    try:
        table = tomllib.loads(toml)
        facts = msgspec.convert(table, CardFacts)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, InvalidModelId) as error:
        raise CardError(f"{origin}: {error}") from error
    if facts.created_at.tzinfo is None:
        return msgspec.structs.replace(facts, created_at=facts.created_at.replace(tzinfo=UTC))
    return facts


def manifest_of(
    facts: CardFacts, architecture: str, files: tuple[FileEntry, ...], recipe: Recipe | None = None
) -> Manifest:
    """Return the manifest of a model with these facts and files. `recipe` is set for quantized variants."""
    return Manifest(
        name=facts.name,
        task=TASKS[facts.task].slug,
        architecture=architecture,
        context_window=facts.context_window,
        files=files,
        tool_parser=facts.tool_parser,
        speculation=facts.speculation,
        max_input_tokens=facts.max_input_tokens,
        output_dimensions=facts.output_dimensions,
        pooling=facts.pooling,
        is_normalised=facts.is_normalised,
        recipe=recipe,
    )


def card_of(facts: CardFacts, manifest: Manifest, source: Literal["builtin", "published"]) -> ModelCard:
    """Return the card of the version with this manifest."""
    values: dict[str, Any] = {name: getattr(facts, name) for name in CardFacts.__struct_fields__}
    return ModelCard(**values, revision=manifest.revision, files=manifest.files, source=source)


def encode_card(card: ModelCard) -> str:
    """Return the card as JSON, for a database row."""
    return msgspec.json.encode(card).decode()


def decode_card(text: str) -> ModelCard:
    """Return the card in a database row. Raises CardError if it is not a card of this version."""
    try:
        return msgspec.json.decode(text, type=ModelCard)
    except (msgspec.DecodeError, InvalidModelId) as error:
        raise CardError(f"unreadable card: {error}") from error
