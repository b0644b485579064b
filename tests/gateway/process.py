"""Run a real gateway process on a free port with real dependencies, except for the nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from catalog.card import CardFacts, ModelCard, Prices, card_of, manifest_of, parse_facts
from tests.fakes.node import FakeNode
from tests.service_keys import service_keys
from tests.waiting import wait_until_blocking

PEPPER = b"pepper of the tests" * 2
CACHE_SECRET = b"cache secret of the tests" * 2

CARDS_TOML = {
    "@cf/test/parrot": """
        schema = "text_generation_legacy"
        prices = { input = 100, cached_input = 10, output = 1000 }
        context_window = 2048
        """,
    "@cf/test/chatty": """
        native_shape = "chat_completion"
        schema = "openai_chat"
        capabilities = ["logit_bias", "multiple_choices"]
        prices = { input = 100, output = 1000 }
        context_window = 2048
        """,
    "@hf/test/vectors": """
        schema = "text_embeddings"
        task = "Text Embeddings"
        prices = { input = 50 }
        context_window = 256
        output_dimensions = 8
        pooling = "mean"
        """,
    "@cf/test/handy": """
        schema = "text_generation_legacy"
        capabilities = ["function_calling", "json_mode", "lora"]
        prices = { input = 100, output = 1000 }
        context_window = 2048
        """,
    "@cf/test/manifold": """
        native_shape = "chat_completion"
        schema = "text_generation_responses"
        prices = { input = 100, output = 1000 }
        context_window = 2048
        """,
    "@cf/test/over": """
        schema = "text_generation_legacy"
        context_window = 2048
        planned_deprecation_date = 2026-02-03
        properties = { successor = "@cf/test/parrot" }
        """,
    "@cf/test/nowhere": """
        schema = "text_generation_legacy"
        context_window = 2048
        """,
    "@cf/test/pocket-int8": """
        schema = "text_generation_legacy"
        capabilities = ["lora"]
        context_window = 2048
        properties = { base_model = "@cf/test/handy", format = "int8" }
        """,
    "@cf/test/listener": """
        schema = "speech_recognition_large"
        task = "Automatic Speech Recognition"
        prices = { audio_second = 2 }
        context_window = 448
        """,
    "@cf/snakers4/silero-vad": """
        schema = "voice_activity_detection"
        task = "Voice Activity Detection"
        context_window = 1
        default_max_tokens = 1
        """,
    "@cf/test/classifier": """
        schema = "image_classification"
        task = "Image Classification"
        prices = { image_tile = 0.5 }
        context_window = 1
        default_max_tokens = 1
        """,
    "@cf/test/detector": """
        schema = "object_detection"
        task = "Object Detection"
        prices = { image_tile = 2 }
        context_window = 1
        default_max_tokens = 1
        """,
    "@cf/test/sentiment": """
        schema = "text_classification"
        task = "Text Classification"
        prices = { input = 1000000 }
        context_window = 512
        """,
    "@cf/test/reranker": """
        schema = "reranker"
        task = "Text Classification"
        prices = { input = 1000000 }
        context_window = 512
        """,
    "@cf/test/translator": """
        schema = "translation"
        task = "Translation"
        prices = { input = 1000000, output = 2000000 }
        context_window = 512
        """,
    "@cf/test/summarizer": """
        schema = "summarization"
        task = "Summarization"
        prices = { input = 1000000, output = 2000000 }
        context_window = 512
        """,
    "@cf/test/multi-vectors": """
        schema = "text_embeddings_multi"
        task = "Text Embeddings"
        context_window = 256
        output_dimensions = 8
        pooling = "mean"
        """,
    "@cf/test/describer": """
        schema = "image_to_text"
        task = "Image-to-Text"
        prices = { image_tile = 1, output = 1000000 }
        context_window = 512
        """,
    "@cf/test/reader": """
        schema = "text_to_speech"
        task = "Text-to-Speech"
        prices = { thousand_characters = 100 }
        context_window = 5000
        """,
    "@cf/test/melody": """
        schema = "text_to_speech_base64"
        task = "Text-to-Speech"
        prices = { audio_second = 2 }
        context_window = 5000
        """,
    "@cf/test/painter": """
        schema = "text_to_image"
        task = "Text-to-Image"
        prices = { step = 2, image_tile = 1 }
        context_window = 77
        default_max_tokens = 1
        """,
    "@cf/test/flux": """
        schema = "text_to_image_base64"
        task = "Text-to-Image"
        context_window = 77
        default_max_tokens = 1
        """,
    "@cf/test/flux-2": """
        schema = "text_to_image_multipart"
        task = "Text-to-Image"
        context_window = 77
        default_max_tokens = 1
        """,
    "@cf/test/seer": """
        schema = "text_generation_legacy"
        capabilities = ["vision"]
        prices = { input = 100, output = 1000 }
        context_window = 4096
        """,
}
PARROT, CHATTY, VECTORS, HANDY, MANIFOLD, OVER, NOWHERE, POCKET, LISTENER, VAD, CLASSIFIER, DETECTOR, *_ = CARDS_TOML
TRANSLATOR, SUMMARIZER = "@cf/test/translator", "@cf/test/summarizer"
SENTIMENT, RERANKER, MULTI_VECTORS = "@cf/test/sentiment", "@cf/test/reranker", "@cf/test/multi-vectors"
SEER = "@cf/test/seer"
READER, MELODY = "@cf/test/reader", "@cf/test/melody"
PAINTER, FLUX, FLUX_2 = "@cf/test/painter", "@cf/test/flux", "@cf/test/flux-2"
ALIAS = "@cf/meta/llama-3.1-8b-instruct"


DESCRIBER = "@cf/test/describer"


def cards() -> list[ModelCard]:
    """Return the model cards used in these tests. The fake nodes have every model except NOWHERE."""
    made = []
    for name, toml in CARDS_TOML.items():
        task = "" if "task =" in toml else 'task = "Text Generation"\n'
        head = f'name = "{name}"\ndescription = "{name} for tests"\ncreated_at = 2026-01-02T03:04:05Z\n{task}'
        facts: CardFacts = parse_facts(head + toml, name)
        made.append(card_of(facts, manifest_of(facts, "TestForCausalLM", ()), "published"))
    return made


@dataclass
class GatewayProcess:
    """A `python -m gateway` process, or a process of another module that starts the gateway."""

    folder: Path
    database_url: str
    redis_url: str
    environ: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    port: int = 0
    module: str = "gateway"

    @property
    def log_file(self) -> Path:
        return self.folder / "gateway.log"

    def start(self) -> GatewayProcess:
        """Start the process and wait until it listens and is connected to a node with a loaded model."""
        self.launch()
        self.wait_listening()
        try:
            wait_until_blocking(self.is_ready)
        except AssertionError as error:
            raise AssertionError(f"not ready: {httpx.get(f'{self.url}/readyz').text}\n{self.log_text()}") from error
        return self

    def launch(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", self.module], env=self.full_environ(), stdout=log, stderr=log
            )

    def full_environ(self) -> dict[str, str]:
        """Return the environment variables of the process."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEARTH_")}
        return inherited | {
            "DATABASE_URL": self.database_url,
            "REDIS_URL": self.redis_url,
            "HEARTH_TOKEN_PEPPER": PEPPER.hex(),
            "HEARTH_CACHE_SECRET": CACHE_SECRET.hex(),
            **service_keys().environ("gateway/gateway"),
            "HEARTH_METRICS_MAX_AGE_S": "0",
            "HEARTH_SPOOL_DIR": str(self.folder / "spool"),
            "HEARTH_PORT": str(self.port),
            "HEARTH_DIE_WITH_PARENT": "1",
            **self.environ,
        }

    def wait_listening(self) -> None:
        self.port = wait_until_blocking(self._listening_port)

    def _listening_port(self) -> int:
        assert self.process is not None
        assert self.process.poll() is None, self.log_text()
        return next((int(line["port"]) for line in self.log_lines() if line["message"] == "gateway listening"), 0)

    def log_text(self) -> str:
        return self.log_file.read_text()

    def log_lines(self) -> list[dict]:
        """Return every complete log line, parsed as JSON."""
        return [json.loads(line) for line in self.log_text().splitlines(keepends=True) if line.endswith("\n")]

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=30).status_code == 200
        except (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError):  # not listening yet, or exiting
            return False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return f"{self.url}/client/v4"

    def metric(self, name: str) -> float:
        """Return the value of a metric, named with its labels as in the text format, or 0 if the metric is absent."""
        for line in httpx.get(f"{self.url}/metrics", timeout=30).text.splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        return 0.0

    def terminate(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def wait(self, deadline_s: float = 60) -> int:
        """Wait for the process to exit and return its exit status."""
        assert self.process is not None
        return self.process.wait(deadline_s)

    def stop(self) -> int:
        if self.process is None or self.process.poll() is not None:
            return 0
        self.terminate()
        return self.wait()


def fake_node(node_id: str, folder: Path, redis_url: str, *, pop: str = "local", proves_pop: str = "") -> FakeNode:
    """Create a fake node with every model except NOWHERE. `proves_pop` binds its key to that PoP."""
    models = {card.name: card.revision for card in cards() if card.name != NOWHERE}
    identity = service_keys().identity(f"node/{node_id}", proves_pop)
    return FakeNode(node_id, folder, models, identity, pop=pop, redis_url=redis_url)


__all__ = ["ALIAS", "CHATTY", "NOWHERE", "PARROT", "VECTORS", "GatewayProcess", "Prices", "cards", "fake_node"]
