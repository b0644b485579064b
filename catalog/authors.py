"""Model authors: the second part of a model id, and their display names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from catalog.card import id_of

_NAMES = {
    "ai4bharat": "AI4Bharat",
    "aisingapore": "AI Singapore",
    "baai": "BAAI",
    "black-forest-labs": "Black Forest Labs",
    "bytedance": "ByteDance",
    "cloudflare": "Cloudflare",
    "codellama": "Code Llama",
    "deepgram": "Deepgram",
    "deepseek-ai": "DeepSeek",
    "defog": "Defog",
    "facebook": "Facebook",
    "fblgit": "fblgit",
    "google": "Google",
    "hearth": "Hearth",
    "huggingface": "Hugging Face",
    "ibm-granite": "IBM Granite",
    "leonardo": "Leonardo.Ai",
    "llava-hf": "LLaVA",
    "lykon": "Lykon",
    "meta": "Meta",
    "meta-llama": "Meta Llama",
    "microsoft": "Microsoft",
    "mistral": "Mistral AI",
    "mistralai": "Mistral AI",
    "moondream": "Moondream",
    "moonshotai": "Moonshot AI",
    "myshell-ai": "MyShell",
    "nexusflow": "Nexusflow",
    "nousresearch": "Nous Research",
    "nvidia": "NVIDIA",
    "openai": "OpenAI",
    "openchat": "OpenChat",
    "pfnet": "Preferred Networks",
    "pipecat-ai": "Pipecat",
    "qwen": "Qwen",
    "runwayml": "Runway",
    "stabilityai": "Stability AI",
    "swiss-ai": "Swiss AI",
    "thebloke": "TheBloke",
    "tiiuae": "TII",
    "tinyllama": "TinyLlama",
    "unum": "Unum",
    "utter-project": "UTTER",
    "zai-org": "Z.ai",
}


def author_rows(authors: Iterable[str], search: str) -> list[dict[str, Any]]:
    """Return a row for each author whose slug or name contains `search`, sorted by name."""
    pattern = search.lower()
    rows = []
    for author, num_models in Counter(authors).items():
        name = _NAMES.get(author.lower(), author)
        if pattern in author.lower() or pattern in name.lower():
            description = "1 model" if num_models == 1 else f"{num_models} models"
            id_ = id_of("author", author)
            rows.append({"id": id_, "name": name, "slug": author, "description": f"{description} in this catalog."})
    return sorted(rows, key=lambda row: (row["name"].lower(), row["slug"]))
