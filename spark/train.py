"""Train for a given time: `python -m spark.train --minutes 100` creates a tokenizer, a model and a log.

One process per core with one thread each (or one process on a GPU with `--device cuda`). Every process draws its own
dialogues; gradients are averaged over gloo. Phase and learning rate depend on the elapsed share of the time. At
intervals of a few minutes it saves a checkpoint (`--resume`; `--start-from` starts with exported weights), exports a
snapshot and scores some held-out prompts. `--shape draft` trains the draft model, which also learns from its teacher's
distribution. Knows no templates and no network internals.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, distributed
from torch.multiprocessing.spawn import spawn
from torch.nn import functional

from spark.batches import UNCOUNTED, Batch, make_steps
from spark.evaluate import WATCHED, evaluate
from spark.export import export, load
from spark.looking import Head, find_looking_heads, looking_loss, watch
from spark.model import DRAFT, Shape, Spark
from spark.optimizer import Muon
from spark.pairs import align_embeddings, find_families, share_gradients
from spark.tokenizer import train_tokenizer

# (name, share of the time at which it ends, tokens of the longest dialogue)
PHASES = (("copying", 0.10, 256), ("answers", 0.86, 704), ("long", 1.0, 768))
STEP_TOKENS = 2048
"""Tokens of one process in one step."""
WARM_UP, DECAY_FROM = 0.01, 0.45
PEAK_RATE, FLOOR_RATE = 4e-3, 0.02
"""The floor is a share of the peak."""
SHAPES = {"spark": Shape(), "draft": DRAFT}
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    # Keep freed memory; otherwise a seventh of a step is spent on page faults.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "MALLOC_TOP_PAD_": str(1 << 26),
}
LOOK_WEIGHT, NUM_LOOKING = 1.0, 2
"""Weight of a token's looking at another tool's schema or at another statement, and how many heads per task are held
to it."""
LONGEST_STEP_S = 10.0
"""More than this of one step is not counted: the process was stopped, or a report was written."""
TEACHER_WEIGHT = 0.5
"""Share of the draft model's loss that comes from its teacher's scores."""


@dataclass
class Progress:
    """The state of a checkpoint besides the weights. `num_tokens` counts all processes."""

    step: int = 0
    num_tokens: int = 0
    elapsed_s: float = 0.0
    num_starts: int = 0
    log: list[dict[str, Any]] = field(default_factory=list)
    is_warm: bool = False
    """Began with trained weights: has no copying phase, and the rate falls from the start."""
    looking: list[Head] = field(default_factory=list)
    """The heads that learn to attend to the schema of the called tool, or to the requested statement."""


@dataclass(frozen=True)
class World:
    """This process within the group of processes."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    def average(self, tensors: list[Tensor]) -> None:
        """Replace each tensor by its mean over all processes, in place."""
        if self.size > 1:
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
            distributed.all_reduce(flat)
            flat /= self.size
            for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def gather(self, value: Any) -> list[Any]:
        """Return `value` of every process, by rank."""
        values = [value] * self.size
        if self.size > 1:
            distributed.all_gather_object(values, value)
        return values


ALONE = World()


@dataclass
class Trainer:
    """Model, optimizers and progress of one process."""

    budget_s: float
    seed: int
    folder: Path
    tokenizer: Tokenizer
    model: Spark
    muon: Muon
    adam: torch.optim.AdamW
    progress: Progress
    families: Tensor
    world: World = ALONE
    teacher: Spark | None = None
    peak_rate: float = PEAK_RATE

    def run(self, report_every_s: float, num_prompts: int = 100) -> None:
        """Train until the time is over. The last report evaluates `num_prompts` per gate, the others fewer."""
        steps: Iterator[list[Batch]] | None = None
        phase, loss, since_report = "", 0.0, 0.0
        self.progress.num_starts += 1
        last = time.monotonic()
        while (share := self.progress.elapsed_s / self.budget_s) < 1:
            phases = PHASES[1:] if self.progress.is_warm else PHASES
            name, _, max_length = next(entry for entry in phases if share < entry[1])
            if name != phase or steps is None:
                phase = name
                seed = self.seed + 1000 * self.progress.num_starts + 100 * self.world.rank
                steps = make_steps(self.tokenizer, seed, phase, STEP_TOKENS, max_length)
                if phase != "copying" and not self.progress.looking and self.teacher is None:
                    self.progress.looking = find_looking_heads(self.model, self.tokenizer, self.seed, NUM_LOOKING)
            current = self.step(next(steps), share)
            loss = current if loss == 0 else 0.98 * loss + 0.02 * current
            if since_report > report_every_s:
                self._report(phase, loss, min(24, num_prompts))
                since_report = 0.0
            passed = self._time_since(last)
            last += passed
            passed = min(passed, LONGEST_STEP_S)
            self.progress.elapsed_s += passed
            since_report += passed
            if self.progress.step % 50 == 0 and self.world.rank == 0:
                self._print(phase, loss)
        self._report(phase, loss, num_prompts)

    def _time_since(self, last: float) -> float:
        """Seconds since `last`, equal in all processes, so that all change phase and end in the same step."""
        passed = torch.tensor([time.monotonic() - last], dtype=torch.float64)
        if self.world.size > 1:
            distributed.broadcast(passed, 0)
        return float(passed.item())

    def step(self, batches: list[Batch], share: float) -> float:
        """Make one update from the batches of all processes and return this process's loss."""
        warm = min(1.0, share / WARM_UP + 0.02)
        decay_from = WARM_UP if self.progress.is_warm else DECAY_FROM
        rate = self.peak_rate * warm * min(1.0, max(FLOOR_RATE, (1 - share) / (1 - decay_from)))
        for group in self.muon.param_groups + self.adam.param_groups:
            group["lr"] = rate
        num_counted = sum(batch.num_counted for batch in batches)
        total = 0.0
        for batch in batches:
            batch = batch.to(self.world.device)
            loss = compute_loss(self.model, batch, self.teacher, self.progress.looking) / num_counted
            loss.backward()
            total += loss.item()
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        self.world.average(gradients)
        embeddings = self.model.model.embed_tokens.weight
        assert embeddings.grad is not None
        share_gradients(embeddings.grad, self.families)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.muon.step()
        self.adam.step()
        self.model.zero_grad()
        self.progress.step += 1
        self.progress.num_tokens += sum(batch.num_tokens for batch in batches) * self.world.size
        return total

    def _print(self, phase: str, loss: float) -> None:
        done = self.progress
        speed, left = done.num_tokens / max(1.0, done.elapsed_s), (self.budget_s - done.elapsed_s) / 60
        print(
            f"{phase} step {done.step} loss {loss:.3f} {done.num_tokens / 1e6:.2f} M tokens {speed:.0f}/s",
            f"{left:.1f} min left",
            flush=True,
        )

    def _report(self, phase: str, loss: float, count: int) -> None:
        """Score, log, save and export. With several processes, one evaluates known wordings and another new ones."""
        world, done = self.world, self.progress
        self.model.eval()
        scored = []
        for is_new in (False, True):
            if world.size == 1 or world.rank == int(is_new):
                results = evaluate(self.model, self.tokenizer, count, WATCHED, is_new_phrasing=is_new)
                scored.append((is_new, {r.gate.name: round(r.share, 3) for r in results if r.total}))
        self.model.train()
        gates = {is_new: shares for entry in world.gather(scored) for is_new, shares in entry}
        done.log.append(
            {
                "phase": phase, "step": done.step, "tokens": done.num_tokens, "minutes": round(done.elapsed_s / 60, 1),
                "loss": round(loss, 4), "processes": world.size, "prompts_per_gate": count, "gates": gates[False],
                "new_wordings": gates[True],
            }
        )  # fmt: skip
        if world.rank == 0:
            print(json.dumps(done.log[-1]), flush=True)
            (self.folder / "training_log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in done.log))
            self.save()
            export(self.model, self.tokenizer, self.folder / "snapshot")

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(), "muon": self.muon.state_dict(), "adam": self.adam.state_dict(),
            "progress": vars(self.progress), "tokenizer": self.tokenizer.to_str(), "shape": vars(self.model.shape),
        }  # fmt: skip
        torch.save(state, self.folder / "checkpoint.part")
        (self.folder / "checkpoint.part").replace(self.folder / "checkpoint.pt")


def compute_loss(model: Spark, batch: Batch, teacher: Spark | None = None, looking: Sequence[Head] = ()) -> Tensor:
    """Return the summed cross entropy of the counted tokens; products in bf16, scores in float32.

    With a teacher, part of it is the divergence from the teacher's distribution. Heads in `looking` add their attention
    loss.
    """
    with torch.autocast(batch.ids.device.type, torch.bfloat16):
        with watch(model, {layer for _, layer, _ in looking}):
            scores = _score(model, batch)
            looked = looking_loss(model, batch, looking)
        wanted = None
        if teacher is not None:
            with torch.no_grad():
                wanted = _score(teacher, batch)
    loss = (
        functional.cross_entropy(scores, batch.targets, ignore_index=UNCOUNTED, reduction="sum") + LOOK_WEIGHT * looked
    )
    if wanted is None:
        return loss
    given, taught = (part[: batch.num_counted].log_softmax(-1) for part in (scores, wanted))
    distance = functional.kl_div(given, taught, reduction="sum", log_target=True)
    return (1 - TEACHER_WEIGHT) * loss + TEACHER_WEIGHT * distance


def _score(model: Spark, batch: Batch) -> Tensor:
    """Return float32 scores [N, V] of the tokens after the counted ones."""
    states, _ = model.hidden(batch.ids, batch.positions, batch.mask)
    return model.logits(states.reshape(-1, states.shape[-1])[batch.counted]).float()


def make_trainer(
    minutes: float,
    seed: int,
    folder: Path,
    is_resumed: bool,
    tokenizer: Tokenizer | None = None,
    *,
    world: World = ALONE,
    shape: Shape | None = None,
    teacher: Spark | None = None,
    start: Spark | None = None,
) -> Trainer:
    """Create a trainer at the start or, resumed, from the folder's checkpoint. Trains a tokenizer if none is given.

    `start` gives initial weights, whose tokenizer must then be given too.
    """
    torch.manual_seed(seed)
    progress = Progress()
    state = torch.load(folder / "checkpoint.pt", weights_only=True) if is_resumed else None
    if state is not None:
        shape = Shape(**state["shape"])
        tokenizer = Tokenizer.from_str(state["tokenizer"])
        progress = Progress(**state["progress"])
    tokenizer = tokenizer or train_tokenizer(seed)
    families = find_families(tokenizer)
    model = Spark(shape)
    if state is not None:
        model.load_state_dict(state["model"])
    elif start is not None:
        model.load_state_dict(start.state_dict())
    else:
        align_embeddings(model.model.embed_tokens.weight, families)
    model.to(world.device)
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim == 1 or "embed" in name]
    muon = Muon(matrices, PEAK_RATE, rank=world.rank, world_size=world.size)
    adam = torch.optim.AdamW(others, PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    if state is not None:
        muon.load_state_dict(state["muon"])
        adam.load_state_dict(state["adam"])
    return Trainer(
        minutes * 60, seed, folder, tokenizer, model, muon, adam, progress, families.to(world.device), world,
        teacher.to(world.device) if teacher is not None else None,
    )  # fmt: skip


def train(rank: int, options: argparse.Namespace, meeting: str) -> None:
    """Run one process to the end. The processes meet through the file `meeting`."""
    torch.set_num_threads(1)
    world = World(rank, options.processes, options.device)
    if world.size > 1:
        distributed.init_process_group(
            "gloo", f"file://{meeting}", timedelta(minutes=30), world_size=world.size, rank=rank
        )
    teacher, tokenizer = load(options.teacher) if options.shape == "draft" else (None, None)
    start, tokenizer = load(options.start_from) if options.start_from else (None, tokenizer)
    trainer = make_trainer(
        options.minutes, options.seed, options.folder, options.resume, tokenizer,
        world=world, shape=SHAPES[options.shape], teacher=teacher, start=start,
    )  # fmt: skip
    trainer.peak_rate = options.peak_rate
    trainer.progress.is_warm = trainer.progress.is_warm or start is not None
    trainer.run(options.report_minutes * 60, options.prompts)
    if world.size > 1:
        distributed.barrier()
        distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=100.0, help="the whole budget, time before a resume included")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path(".cache/spark"), help="checkpoint, log and snapshot")
    parser.add_argument("--report-minutes", type=float, default=5.0)
    parser.add_argument("--prompts", type=int, default=100, help="held-out prompts per gate in the last report")
    parser.add_argument("--resume", action="store_true", help="go on from the folder's checkpoint")
    parser.add_argument("--start-from", type=Path, help="begin with the weights and tokenizer of this exported folder")
    parser.add_argument("--peak-rate", type=float, default=PEAK_RATE, help="lower with --start-from: 3e-3, then 1.5e-3")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="one thread each, on a CPU")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda for one process on a GPU")
    parser.add_argument("--shape", choices=SHAPES, default="spark")
    parser.add_argument("--teacher", type=Path, default=Path(".cache/spark/snapshot"), help="whom the draft follows")
    options = parser.parse_args()
    options.processes = max(1, options.processes) if options.device == "cpu" else 1
    options.folder.mkdir(parents=True, exist_ok=True)
    os.environ.update(ENVIRONMENT)  # inherited by the processes started below
    with tempfile.TemporaryDirectory(prefix="hearth-spark-") as folder:
        spawn(train, (options, f"{folder}/meeting"), options.processes)


if __name__ == "__main__":
    main()
