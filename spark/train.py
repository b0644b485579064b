"""Training by the clock: `python -m spark.train --minutes 75` gives a tokenizer, a model and a log on one CPU core.

Phase and learning rate follow the elapsed share of the budget. Every few minutes it saves a checkpoint to resume from
(`--resume`), exports a snapshot and scores a few held-out prompts. Knows no templates and no network internals.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from spark.batches import Batch, make_batches
from spark.evaluate import GATES, evaluate
from spark.export import export
from spark.model import Spark
from spark.optimizer import Muon
from spark.pairs import align_embeddings, find_families, share_gradients
from spark.tokenizer import train_tokenizer

# name, share of the budget at which it ends, rows, tokens per row
PHASES = (("copying", 0.17, 8, 256), ("answers", 0.84, 8, 256), ("long", 1.0, 4, 640))
WARM_UP, DECAY_FROM = 0.01, 0.45
PEAK_RATE, FLOOR_RATE = 4e-3, 0.02
WATCHED = tuple(gate for gate in GATES if gate.name != "tool JSON valid" and gate.kind != "topic")


@dataclass
class Progress:
    """What a checkpoint remembers beside the weights."""

    step: int = 0
    num_tokens: int = 0
    elapsed_s: float = 0.0
    num_starts: int = 0
    log: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Trainer:
    """Model, optimizers and progress; one process, one thread."""

    budget_s: float
    seed: int
    folder: Path
    tokenizer: Tokenizer
    model: Spark
    muon: Muon
    adam: torch.optim.AdamW
    progress: Progress
    families: Tensor

    def run(self, report_every_s: float) -> None:
        """Train until the budget is spent."""
        batches: Iterator[Batch] | None = None
        phase, last, since_report, loss = "", time.monotonic(), 0.0, 0.0
        self.progress.num_starts += 1
        while (share := self.progress.elapsed_s / self.budget_s) < 1:
            name, _, rows, length = next(entry for entry in PHASES if share < entry[1])
            if name != phase or batches is None:
                phase = name
                batches = make_batches(self.tokenizer, self.seed + 1000 * self.progress.num_starts, name, rows, length)
            current = self.step(next(batches), share)
            loss = current if loss == 0 else 0.98 * loss + 0.02 * current
            now = time.monotonic()
            self.progress.elapsed_s, since_report, last = (
                self.progress.elapsed_s + now - last,
                since_report + now - last,
                now,
            )
            if self.progress.step % 50 == 0:
                self._print(phase, loss)
            if since_report > report_every_s:
                self._report(phase, loss, 24)
                since_report = 0.0
                now = time.monotonic()
                self.progress.elapsed_s, last = self.progress.elapsed_s + now - last, now
        self._report(phase, loss, 100)

    def step(self, batch: Batch, share: float) -> float:
        """One update; returns the loss."""
        warm = min(1.0, share / WARM_UP + 0.02)
        rate = PEAK_RATE * warm * min(1.0, max(FLOOR_RATE, (1 - share) / (1 - DECAY_FROM)))
        for group in self.muon.param_groups + self.adam.param_groups:
            group["lr"] = rate
        loss = compute_loss(self.model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        embeddings = self.model.model.embed_tokens.weight
        assert embeddings.grad is not None
        share_gradients(embeddings.grad, self.families)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.muon.step()
        self.adam.step()
        self.model.zero_grad()
        self.progress.step += 1
        self.progress.num_tokens += batch.num_tokens
        return loss.item()

    def _print(self, phase: str, loss: float) -> None:
        done = self.progress
        speed, left = done.num_tokens / max(1.0, done.elapsed_s), (self.budget_s - done.elapsed_s) / 60
        print(
            f"{phase} step {done.step} loss {loss:.3f} {done.num_tokens / 1e6:.2f} M tokens {speed:.0f}/s",
            f"{left:.1f} min left",
            flush=True,
        )

    def _report(self, phase: str, loss: float, count: int) -> None:
        """Score, log, save and export."""
        self.model.eval()
        results = evaluate(self.model, self.tokenizer, count, WATCHED)
        self.model.train()
        done = self.progress
        gates = {result.gate.name: round(result.share, 3) for result in results}
        entry = {
            "phase": phase,
            "step": done.step,
            "tokens": done.num_tokens,
            "minutes": round(done.elapsed_s / 60, 1),
            "loss": round(loss, 4),
        }
        done.log.append({**entry, "prompts_per_gate": count, "gates": gates})
        print(json.dumps(done.log[-1]), flush=True)
        (self.folder / "training_log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in done.log))
        self.save()
        export(self.model, self.tokenizer, self.folder / "snapshot")

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(), "muon": self.muon.state_dict(), "adam": self.adam.state_dict(),
            "progress": vars(self.progress), "tokenizer": self.tokenizer.to_str(),
        }  # fmt: skip
        torch.save(state, self.folder / "checkpoint.part")
        (self.folder / "checkpoint.part").replace(self.folder / "checkpoint.pt")


def compute_loss(model: Spark, batch: Batch) -> Tensor:
    """Mean cross entropy of the counted tokens; products in bf16, scores in float32."""
    with torch.autocast("cpu", torch.bfloat16):
        states, _ = model.hidden(batch.ids, batch.positions, batch.mask)
        logits = model.logits(states.reshape(-1, states.shape[-1])[batch.counted])
    return functional.cross_entropy(logits.float(), batch.targets)


def make_trainer(
    minutes: float, seed: int, folder: Path, is_resumed: bool, tokenizer: Tokenizer | None = None
) -> Trainer:
    """A trainer at its start or, resumed, as the folder's checkpoint left it; makes a tokenizer if none is given."""
    torch.manual_seed(seed)
    model = Spark()
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim == 1 or "embed" in name]
    muon = Muon(matrices, PEAK_RATE)
    adam = torch.optim.AdamW(others, PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    progress = Progress()
    if is_resumed:
        state = torch.load(folder / "checkpoint.pt", weights_only=True)
        model.load_state_dict(state["model"])
        muon.load_state_dict(state["muon"])
        adam.load_state_dict(state["adam"])
        progress = Progress(**state["progress"])
        tokenizer = Tokenizer.from_str(state["tokenizer"])
    tokenizer = tokenizer or train_tokenizer(seed)
    families = find_families(tokenizer)
    if not is_resumed:
        align_embeddings(model.model.embed_tokens.weight, families)
    return Trainer(minutes * 60, seed, folder, tokenizer, model, muon, adam, progress, families)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=75.0, help="the whole budget, time before a resume included")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path(".cache/spark"), help="checkpoint, log and snapshot")
    parser.add_argument("--report-minutes", type=float, default=5.0)
    parser.add_argument("--resume", action="store_true", help="go on from the folder's checkpoint")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.folder.mkdir(parents=True, exist_ok=True)
    make_trainer(options.minutes, options.seed, options.folder, options.resume).run(options.report_minutes * 60)


if __name__ == "__main__":
    main()
