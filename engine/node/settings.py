"""All settings of a node, read once from the environment. Invalid values are rejected at startup.

Measured properties of the machine (cores, devices) are not settings.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from catalog.card import parse_model_id
from catalog.errors import InvalidModelId
from engine.serving.addresses import parse_address, parse_http_address
from telemetry.process_settings import ProcessSettings, is_objects_url, plain_name
from telemetry.settings import at_least, one_of, parsed_by, setting

if TYPE_CHECKING:
    from service_identity.service_identity import ServiceIdentity

DEFAULT_MODELS = "@cf/hearth/spark,@cf/hearth/minilm"


def parse_models(text: str) -> tuple[str, ...]:
    """Model ids in a comma list; none for "none". Raises InvalidModelId."""
    if text.strip() == "none":
        return ()
    return tuple(parse_model_id(name.strip()) for name in text.split(","))


@dataclass(frozen=True, kw_only=True)
class NodeSettings(ProcessSettings):
    """Settings of one node process."""

    listen: str = setting(
        "HEARTH_NODE_LISTEN",
        "Address on which gateways connect: unix:///path or tcp://host:port.",
        check=parsed_by(parse_address),
    )
    advertise: str = setting(
        "HEARTH_NODE_ADVERTISE",
        "Address published to gateways, if it differs from the listen address.",
        default="",
        check=parsed_by(parse_address),
    )
    http: str = setting(
        "HEARTH_NODE_HTTP",
        "Address of the HTTP interface for operators and health checks: host:port or unix:///path.",
        default="127.0.0.1:8790",
        check=parsed_by(parse_http_address),
    )
    node_id: str = setting(
        "HEARTH_NODE_ID",
        "Unique name of this node. The default is the host name.",
        default="",
        check=plain_name,
    )
    objects_url: str = setting(
        "OBJECTS_URL",
        "Object store with published models: file:///folder or s3://bucket/prefix. Built-in models need none.",
        default="",
        check=is_objects_url,
    )
    models: str = setting(
        "HEARTH_NODE_MODELS",
        "Comma-separated ids of the models to load at startup, in this order; or none.",
        default=DEFAULT_MODELS,
        check=parsed_by(parse_models, InvalidModelId),
    )
    max_replicas: int = setting(
        "HEARTH_NODE_MAX_REPLICAS",
        "Largest number of models loaded at once. The least recently used idle model is unloaded for another.",
        default=4,
        check=at_least(1),
    )
    cache_dir: Path = setting(
        "HEARTH_NODE_CACHE_DIR",
        "Folder for weights downloaded from the object store.",
        default=Path(".hearth/cache/node"),
    )
    cache_max_bytes: int = setting(
        "HEARTH_NODE_CACHE_BYTES", "Largest size of that folder in bytes.", default=64 << 30, check=at_least(1 << 20)
    )
    device: str = setting(
        "HEARTH_NODE_DEVICE", "Device on which models run: cpu or cuda.", default="cpu", check=one_of("cpu", "cuda")
    )
    dtype: str = setting(
        "HEARTH_NODE_DTYPE",
        "Precision of weights and KV cache: auto, float32 or bfloat16.",
        default="auto",
        check=one_of("auto", "float32", "bfloat16"),
    )
    num_threads: int = setting(
        "HEARTH_NODE_THREADS", "Threads per model. 0 uses all cores but one.", default=0, check=at_least(0)
    )
    tensor_parallel: int = setting(
        "HEARTH_NODE_TENSOR_PARALLEL",
        "Ranks per text generation model: processes with a device or a part of the cores each. Must divide the "
        "number of the model's heads.",
        default=1,
        check=at_least(1),
    )
    kv_memory_bytes: int = setting(
        "HEARTH_NODE_KV_BYTES",
        "Bytes of memory for the KV cache of each model.",
        default=256 << 20,
        check=at_least(1 << 20),
    )
    adapter_memory_bytes: int = setting(
        "HEARTH_NODE_ADAPTER_BYTES",
        "Bytes of memory for the LoRA adapters of each text model. The least recently used idle adapter is "
        "evicted first. 0 disables adapters.",
        default=512 << 20,
        check=at_least(0),
    )
    max_sequences: int = setting(
        "HEARTH_NODE_MAX_SEQUENCES",
        "Largest number of sequences that a model generates at once.",
        default=64,
        check=at_least(1),
    )
    max_waiting: int = setting(
        "HEARTH_NODE_MAX_WAITING",
        "Largest number of sequences waiting for each model.",
        default=1024,
        check=at_least(0),
    )
    max_step_tokens: int = setting(
        "HEARTH_NODE_STEP_TOKENS",
        "Largest number of tokens in one step: decoding first, then prefill.",
        default=512,
        check=at_least(16),
    )
    speculation: str = setting(
        "HEARTH_NODE_SPECULATION",
        "Speculative decoding: card (the method on each model's card, otherwise off), prompt_lookup or off.",
        default="card",
        check=one_of("card", "prompt_lookup", "off"),
    )
    step_timeout_s: float = setting(
        "HEARTH_NODE_STEP_TIMEOUT_S",
        "Seconds without a response after which an idle engine process with pending work is killed; eight times as "
        "long if it computes.",
        default=15.0,
        check=at_least(0.1),
    )
    max_calls: int = setting(
        "HEARTH_NODE_MAX_CALLS", "Largest number of open calls on this node.", default=2048, check=at_least(1)
    )

    def service_identity(self) -> ServiceIdentity:
        """Return this node's service identity. Raises ValueError, naming the setting, if the key files cannot be used
        or belong to another node or PoP."""
        from service_identity.key_ring import UnsafeKeyFile
        from service_identity.service_identity import ServiceIdentity

        try:
            identity = ServiceIdentity(self.service_ring, self.service_keys, "node")
        except UnsafeKeyFile as error:
            raise ValueError(f"HEARTH_SERVICE_RING, HEARTH_SERVICE_KEYS: {error}") from None
        if identity.name != self.name:
            raise ValueError(f"HEARTH_SERVICE_KEYS: the key of {identity.subject}, and HEARTH_NODE_ID is {self.name}")
        if identity.pop not in ("", self.pop):
            raise ValueError(f"HEARTH_SERVICE_KEYS: a key of the PoP {identity.pop}, and HEARTH_POP is {self.pop}")
        return identity

    @property
    def name(self) -> str:
        """Return the node's id, configured or generated."""
        return self.node_id or socket.gethostname()
