"""Convert weights to and from the Hugging Face layout: model.safetensors in bf16, config, tokenizer, generation
config."""

import argparse
import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from spark.model import Shape, Spark
from spark.tokenizer import END_ID, END_OF_TEXT_ID, build_config

COMMITTED = Path(__file__).resolve().parent.parent / "catalog" / "builtin" / "spark"


def export(model: Spark, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the model so that any Llama runtime can load it. Files are replaced atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors.part", metadata={"format": "pt"})
    (folder / "model.safetensors.part").chmod(0o644)
    (folder / "model.safetensors.part").replace(folder / "model.safetensors")
    tokenizer.save(str(folder / "tokenizer.json"))
    generation = {
        "bos_token_id": None,
        "eos_token_id": [END_ID, END_OF_TEXT_ID],
        "pad_token_id": END_OF_TEXT_ID,
        "do_sample": False,
    }
    for name, content in (
        ("config.json", model.shape.to_config()),
        ("tokenizer_config.json", build_config()),
        ("generation_config.json", generation),
    ):
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def hash_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def load(folder: Path = COMMITTED) -> tuple[Spark, Tokenizer]:
    """Load an exported model in float32 and its tokenizer."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model = Spark(Shape(**{name: config[name] for name in Shape.__dataclass_fields__}))
    model.load_state_dict({name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()})
    return model.eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))


def main() -> None:
    """Export the checkpoint of a training run."""
    parser = argparse.ArgumentParser(description="Export the checkpoint of a training run.")
    parser.add_argument("--checkpoint", type=Path, default=Path(".cache/spark/checkpoint.pt"))
    parser.add_argument("--folder", type=Path, default=COMMITTED)
    options = parser.parse_args()
    state = torch.load(options.checkpoint, weights_only=True)
    model = Spark(Shape(**state["shape"]))
    model.load_state_dict(state["model"])
    export(model, Tokenizer.from_str(state["tokenizer"]), options.folder)
    print(f"exported to {options.folder}")


if __name__ == "__main__":
    main()
