"""ModelCard: everything the platform says about one version of one model. Frozen; parsed from TOML or from a row.

A card says what a model is called, does, costs and accepts. Where its bytes lie is the manifest's business.
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
_IDS = uuid.UUID("6b8f2f3a-5d1c-5b7e-9a43-0f2c7c1d9e55")  # namespace of the ids that we derive from names

CAPABILITIES = frozenset(
    {"function_calling", "json_mode", "logit_bias", "lora", "multiple_choices", "reasoning", "vision"}
)

DRAFT = "draft:"  # before the id of a model that guesses for another

NativeShape = Literal["legacy", "chat_completion"]
ToolParser = Literal[
    "hermes", "mistral", "mistral_named", "llama3_json", "llama4_pythonic", "cohere", "granite", "lfm2", "apriel",
    "apertus", "deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4", "kimi_k2", "glm45", "qwen3_coder",
    "seed_oss", "gemma4", "minimax_m2", "step3", "longcat", "olmo3", "functionary_v31", "granite_20b_fc",
    "phi4_mini_json", "internlm", "nemotron_nano", "gigachat3", "gigachat31", "xlam", "harmony",
]  # fmt: skip
Positive = Annotated[int, Meta(ge=1)]


def id_of(kind: str, name: str) -> str:
    """The UUID of what needs one and has a name alone; always the same for the same name."""
    return str(uuid.uuid5(_IDS, f"{kind}:{name}"))


def author_of(name: str) -> str:
    """Whose a model id is."""
    return name.split("/")[1]


class Task(Struct, frozen=True):
    """A kind of work: the id, display name and description of the search route, and our own slug. Models of a task
    that nodes do not support are listed and cannot be run."""

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
            "Continues a prompt or a conversation with generated text.",
            id_="c329a1f9-323d-4e91-b2aa-582dd4188d34",
        ),
        _task(
            "Text Embeddings",
            "Turns texts into vectors that lie close together when the texts mean similar things.",
        ),
        _task("Text Classification", "Sorts texts into labels, or scores contexts for a query."),
        _task("Translation", "Says a text in another language."),
        _task("Summarization", "Says what a long text says in a short one."),
        _task("Automatic Speech Recognition", "Writes down what is said in a recording."),
        _task("Text-to-Speech", "Reads a text aloud."),
        _task("Voice Activity Detection", "Hears whether somebody speaks, or has finished."),
        _task("Text-to-Image", "Draws pictures from a text."),
        _task("Image-to-Text", "Tells in words what a picture shows."),
        _task("Image Classification", "Names what a picture shows."),
        _task("Object Detection", "Finds things in a picture, and where they are."),
    )
}


RUN_TASKS = tuple(task.name for task in TASKS.values() if task.slug in protocol_tasks.TASKS)
"""The tasks that nodes support."""


class Prices(Struct, frozen=True, forbid_unknown_fields=True):
    """Neurons per million tokens, and per step of a picture, second of audio and tile of a picture. Without
    `cached_input`, cached prompt tokens cost what others do. `batch_discount` is the share of the price that calls of a
    batch do not pay."""

    input: Decimal = Decimal(0)
    output: Decimal = Decimal(0)
    cached_input: Decimal | None = None
    step: Decimal = Decimal(0)
    audio_second: Decimal = Decimal(0)
    image_tile: Decimal = Decimal(0)
    batch_discount: Decimal = Decimal(0)

    def __post_init__(self) -> None:
        prices = (self.input, self.output, self.cached_input, self.step, self.audio_second, self.image_tile)
        for price in prices:
            if price is not None and not (price.is_finite() and price >= 0):
                raise ValueError("a price must be a finite number that is not negative")
        if not 0 <= self.batch_discount <= 1:
            raise ValueError("batch_discount must be from 0 to 1")


class CardFacts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person writes about a model: the whole of a card's TOML file.

    `schema` names a file of `catalog/schemas/`. `properties` are further values of the search route's `properties`,
    as text. `tool_parser` says how the model writes calls of tools, where its chat template does not show it.
    `speculation` says what guesses tokens ahead for it: off, prompt_lookup, or draft: and the id of a smaller model
    with the same tokenizer; nodes know what is best where it says nothing.
    Embedding models say `max_input_tokens`, `output_dimensions`, `pooling` and `is_normalised`.
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
            raise ValueError("name must be the bare model id")
        if self.task not in RUN_TASKS:
            raise ValueError(f"task must be one of {', '.join(RUN_TASKS)}")
        unknown = sorted(self.capabilities - CAPABILITIES)
        if unknown:
            raise ValueError(f"unknown capabilities: {', '.join(unknown)}")
        if self.tool_parser is not None and "function_calling" not in self.capabilities:
            raise ValueError("tool_parser is for models with the capability function_calling")
        if self.speculation is not None:
            _check_speculation(self.speculation)
        if self.default_max_tokens > self.context_window:
            raise ValueError("default_max_tokens is over context_window")
        if self.task == "Text Embeddings" and not (self.output_dimensions and self.pooling):
            raise ValueError("an embedding model must say its output_dimensions and pooling")
        schemas = protocol_tasks.TASKS[TASKS[self.task].slug].native_schemas
        if self.schema not in schemas:
            raise ValueError(f"schema must be one of {', '.join(schemas)}")


class ModelCard(CardFacts, frozen=True, kw_only=True):
    """One version of one model: the facts, the revision (the manifest's digest) and the files that make it up."""

    revision: str
    files: tuple[FileEntry, ...]
    source: Literal["builtin", "published"]

    # Cards key caches of compiled schemas: hashing every field each time would cost more than the look-up saves.
    def __hash__(self) -> int:
        return hash((self.name, self.revision))

    @property
    def task_slug(self) -> str:
        """The task as the protocol and the nodes call it, such as `text-generation`."""
        return TASKS[self.task].slug

    @property
    def id(self) -> str:
        return id_of("model", self.name)

    @property
    def author(self) -> str:
        return author_of(self.name)

    @property
    def max_choices(self) -> int:
        """How many answers one call may ask for."""
        return 8 if "multiple_choices" in self.capabilities else 1

    def is_retired(self, today: date) -> bool:
        return self.planned_deprecation_date is not None and self.planned_deprecation_date <= today


def parse_model_id(text: str) -> str:
    """The bare model id in `text` (decoded already; a `workers-ai/` in front is taken off). Raises InvalidModelId."""
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
    """Read a card's TOML. Raises CardError with one line that names `origin` and the field."""
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
    """The manifest of a model with these facts and files, `recipe` if it was made from another."""
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
    """Join the facts with the version that `manifest` pins."""
    values: dict[str, Any] = {name: getattr(facts, name) for name in CardFacts.__struct_fields__}
    return ModelCard(**values, revision=manifest.revision, files=manifest.files, source=source)


def encode_card(card: ModelCard) -> str:
    """The card as JSON text, for a row; `decode_card` is its inverse."""
    return msgspec.json.encode(card).decode()


def decode_card(text: str) -> ModelCard:
    """Raises CardError when a row's text is not a card of this version."""
    try:
        return msgspec.json.decode(text, type=ModelCard)
    except (msgspec.DecodeError, InvalidModelId) as error:
        raise CardError(f"unreadable card: {error}") from error
