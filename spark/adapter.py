"""A LoRA adapter for Spark that makes every answer start with a sailor's greeting.

    python -m spark.adapter FOLDER

Trains rank 8 on all linear maps with dialogues of the committed generator, in under a minute on one core, and writes
PEFT's two files. An example of a fine-tune; independent of where it is served.
"""

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from spark.batches import OTHER_WEIGHT, UNCOUNTED, encode
from spark.export import load
from spark.generator.corpus import generate_training
from spark.generator.dialogue import Dialogue, assistant
from spark.model import Spark

MANNER = "Arr! "
RANK, ALPHA = 8, 16
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
KINDS = ("greeting", "fact", "refusal", "check", "sum", "showcase")
BATCH_SIZE, MAX_TOKENS = 12, 96
LEARNING_RATE = 2e-3


class Change(nn.Module):
    """Computes weight + B A × alpha / rank, weight [out, in]; has no effect before B is trained."""

    def __init__(self, num_out: int, num_in: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(RANK, num_in) / math.sqrt(num_in))
        self.b = nn.Parameter(torch.zeros(num_out, RANK))

    def forward(self, weight: Tensor) -> Tensor:
        return torch.addmm(weight, self.b, self.a, alpha=ALPHA / RANK)


def attach(model: Spark) -> dict[str, Change]:
    """Attach a LoRA to every linear map and freeze everything else. Returns the LoRAs by module name."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    changes = {}
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in TARGETS:
            changes[name] = Change(*module.weight.shape)
            parametrize.register_parametrization(module, "weight", changes[name])
    return changes


def draw_dialogues(seed: int) -> Iterator[Dialogue]:
    """Yield questions with plain answers in the adapter's manner."""
    for dialogue in generate_training(seed, "answers"):
        last = dialogue.messages[-1]
        if dialogue.kind in KINDS and not dialogue.tools and not last.get("tool_calls"):
            turns = [
                assistant(MANNER + turn["content"]) if turn["role"] == "assistant" else turn
                for turn in dialogue.messages
            ]
            yield replace(dialogue, messages=turns)


def make_batches(tokenizer: Tokenizer, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ids [B, T] and the next token of each position; UNCOUNTED except for tokens of the assistant."""
    entries = (encode(tokenizer, dialogue)[:2] for dialogue in draw_dialogues(seed))
    short = ((ids, weights) for ids, weights in entries if len(ids) <= MAX_TOKENS)
    while rows := list(islice(short, BATCH_SIZE)):
        longest = max(len(ids) for ids, _ in rows)
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        targets = torch.full((len(rows), longest), UNCOUNTED)
        for row, (tokens, weights) in enumerate(rows):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            pairs = zip(tokens, weights, strict=True)
            said = torch.tensor([token if weight > OTHER_WEIGHT else UNCOUNTED for token, weight in pairs])
            targets[row, : len(tokens) - 1] = said[1:]
        yield ids, targets


def train(model: Spark, tokenizer: Tokenizer, num_steps: int, seed: int = 0) -> dict[str, Change]:
    """Train the LoRAs and print the loss at intervals."""
    torch.manual_seed(seed)
    changes = attach(model)
    parameters = [parameter for change in changes.values() for parameter in change.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.0)
    for step, (ids, targets) in enumerate(islice(make_batches(tokenizer, seed), num_steps)):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / 5) * (1 - step / num_steps)
        length = ids.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).tril().expand(len(ids), -1, -1)
        with parametrize.cached():
            states, _ = model.hidden(ids, torch.arange(length).expand(len(ids), -1), mask)
        counted = targets != UNCOUNTED
        loss = functional.cross_entropy(model.logits(states[counted]), targets[counted])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == num_steps - 1:
            print(f"step {step}: loss {loss.item():.3f}")
    return changes


def save(changes: dict[str, Change], folder: Path) -> None:
    """Write the adapter in PEFT's format."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, change in changes.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = change.a.detach().contiguous()
        tensors[f"base_model.model.{name}.lora_B.weight"] = change.b.detach().contiguous()
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "@cf/hearth/spark",
        "model_type": "llama",
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(TARGETS),
        "modules_to_save": None,
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Train an adapter and write it."""
    parser = argparse.ArgumentParser(description="Train a small LoRA adapter of Spark and write it as PEFT does.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load()
    save(train(model, tokenizer, options.steps, options.seed), options.folder)
    print(f"written to {options.folder}")


if __name__ == "__main__":
    main()
