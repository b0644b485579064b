"""Evaluation gates: the share of held-out prompts that the model answers exactly with greedy decoding, by kind.

`python -m spark.evaluate` recomputes the table of the model card from the committed weights. Independent of training.
"""

import argparse
import gzip
import json
import math
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from tokenizers import Tokenizer

from spark.export import COMMITTED, load
from spark.generator.corpus import generate_evaluation
from spark.generator.dialogue import Dialogue, Source, ask
from spark.generator.refusals import ANSWER as REFUSAL
from spark.model import Spark, generate
from spark.tokenizer import render_prompt

Check = Callable[[str, str], bool]
"""(given answer, expected answer) -> passes."""


def is_exact(given: str, expected: str) -> bool:
    return given.strip() == expected.strip()


def read_call(text: str) -> tuple[str, object] | None:
    """Return name and arguments of the single tool call in `text`, or None if there is no valid call."""
    before, mark, rest = text.partition("<tool_call>")
    try:
        called = json.loads(rest.partition("</tool_call>")[0])
        return (called["name"], called["arguments"]) if mark and not before.strip() else None
    except (ValueError, KeyError, TypeError):
        return None


def has_tool_name(given: str, expected: str) -> bool:
    called, wanted = read_call(given), read_call(expected)
    return called is not None and wanted is not None and called[0] == wanted[0]


def has_arguments(given: str, expected: str) -> bool:
    called = read_call(given)
    return called is not None and called == read_call(expected)


def is_json(given: str, expected: str) -> bool:
    if expected.startswith("<tool_call>"):
        return read_call(given) is not None
    try:
        return isinstance(json.loads(given), dict)
    except ValueError:
        return False


def is_sum_right(given: str, expected: str) -> bool:
    """Return True if the final number is right, whatever precedes it."""
    return given.rstrip(".").split(" ")[-1] == expected.rstrip(".").split(" ")[-1]


@dataclass(frozen=True)
class Gate:
    """A share of passed prompts to reach; a `floor` of None means that the share is only reported."""

    name: str
    kind: str
    check: Check
    floor: float | None
    only: str = ""
    """Take only dialogues of this exact kind (a tool dialogue is a call, a result or none)."""


GATES = (
    Gate("greetings", "greeting", is_exact, 0.99),
    Gate("facts", "fact", is_exact, 0.99),
    Gate("memory", "memory", is_exact, 0.95),
    Gate("copying", "copy", is_exact, 0.95),
    Gate("tool name", "tool", has_tool_name, 0.99, "tool_call"),
    Gate("tool arguments", "tool", has_arguments, 0.95, "tool_call"),
    Gate("tool JSON valid", "tool", is_json, 1.0, "tool_call"),
    Gate("sums below 100", "sum", is_sum_right, 0.95, "sum"),
    Gate("sentiment", "sentiment", is_exact, 0.95),
    Gate("differences below 100", "sum", is_sum_right, None, "difference"),
    Gate("products up to 10 x 10", "sum", is_sum_right, None, "product"),
    Gate("topic", "topic", is_exact, None),
    Gate("extraction", "extract", is_exact, None),
    Gate("extraction JSON valid", "extract", is_json, None),
    Gate("tool result in a sentence", "tool", is_exact, None, "tool_result"),
    Gate("no tool needed", "tool", is_exact, None, "tool_none"),
    Gate("work on words", "text", is_exact, None),
    Gate("work on numbers", "number", is_exact, None),
    Gate("reading", "reading", is_exact, None),
    Gate("yes or no", "check", is_exact, None),
    Gate("follow-up questions", "followup", is_exact, None),
    Gate("lists", "list", is_exact, None),
    Gate("JSON lists", "json_list", is_exact, None),
    Gate("system prompt obeyed", "obey", is_exact, None),
    Gate("refusals", "refusal", is_exact, None),
)


_SELDOM = {"topic", "list", "json_list"}
WATCHED = tuple(gate for gate in GATES if gate.kind not in _SELDOM)
"""What training looks at every few minutes."""


@dataclass(frozen=True)
class Result:
    gate: Gate
    passed: int
    total: int
    misses: list[tuple[str, str, str]]
    """(prompt, given, expected) of some that failed."""

    @property
    def share(self) -> float:
        return self.passed / max(1, self.total)

    @property
    def verdict(self) -> str:
        if self.gate.floor is None:
            return "reported"
        return "passed" if self.share >= self.gate.floor else "missed"


def answer(model: Spark, tokenizer: Tokenizer, dialogues: list[Dialogue], max_tokens: int = 120) -> list[str]:
    """Return greedy answers in the order of `dialogues`. Prompts of similar length share a batch."""
    prompts = [tokenizer.encode(render_prompt(d.prompt, d.tools), add_special_tokens=False).ids for d in dialogues]
    answers = [""] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for start in range(0, len(order), 32):
        chosen = order[start : start + 32]
        for i, ids in zip(chosen, generate(model, [prompts[i] for i in chosen], max_tokens), strict=True):
            answers[i] = tokenizer.decode(ids, skip_special_tokens=True)
    return answers


def evaluate(
    model: Spark, tokenizer: Tokenizer, count: int, gates: tuple[Gate, ...] = GATES, is_new_phrasing: bool = False
) -> list[Result]:
    """Return one result per gate over about `count` held-out prompts each."""
    results = []
    known: dict[str, list[tuple[Dialogue, str]]] = {}
    for gate in gates:
        if gate.kind not in known:
            wanted = count * 3 if gate.only else count
            dialogues = generate_evaluation(gate.kind, wanted, is_new_phrasing=is_new_phrasing)
            known[gate.kind] = list(zip(dialogues, answer(model, tokenizer, dialogues), strict=True))
        pairs = [pair for pair in known[gate.kind] if gate.only in ("", pair[0].kind)][:count]
        missed = [(d.messages[-2]["content"], given, d.answer) for d, given in pairs if not gate.check(given, d.answer)]
        results.append(Result(gate, len(pairs) - len(missed), len(pairs), missed[:5]))
    return results


def format_table(known: list[Result], new: list[Result]) -> str:
    """Return a Markdown table of both kinds of prompts. Gates without prompts are omitted; a gate requires its share
    of both kinds."""
    lines = [
        "| Gate | Held-out prompts | New wordings | Asked | Verdict |",
        "|---|---|---|---|---|",
    ]
    for result, other in zip(known, new, strict=True):
        if result.total or other.total:
            floor = "" if result.gate.floor is None else f"{result.gate.floor:.0%}"
            verdict = "missed" if "missed" in (result.verdict, other.verdict) else result.verdict
            lines.append(f"| {result.gate.name} | {_share(result)} | {_share(other)} | {floor} | {verdict} |")
    return "\n".join(lines)


def _share(result: Result) -> str:
    return f"{result.passed} of {result.total}, {result.share:.1%}" if result.total else ""


@torch.inference_mode()
def compute_perplexity(model: Spark, tokenizer: Tokenizer, dialogues: list[Dialogue]) -> float:
    """Return exp of the mean negative log-likelihood of the assistant's tokens, including the end token."""
    total, count = 0.0, 0
    for dialogue in dialogues:
        prompt = tokenizer.encode(render_prompt(dialogue.prompt, dialogue.tools), add_special_tokens=False).ids
        said = tokenizer.encode(dialogue.answer + "<|im_end|>", add_special_tokens=False).ids
        ids = torch.tensor([prompt + said])
        length = ids.shape[1]
        mask = torch.ones(1, length, length, dtype=torch.bool).tril()
        states, _ = model.hidden(ids, torch.arange(length)[None], mask)
        scores = model.logits(states[0, len(prompt) - 1 : -1]).log_softmax(-1)  # N V
        total -= float(scores.gather(1, ids[0, len(prompt) :, None]).sum())
        count += len(said)
    return math.exp(total / max(1, count))


def report_real_text(model: Spark, tokenizer: Tokenizer, folder: Path, count: int) -> list[str]:
    """Return lines on text that no template generated: rated sentences and questions that should be refused. Not
    gated."""
    lines = []
    for name in ("amazon", "movie"):
        rated = read_rated_sentences(folder / "classification" / f"sentiment_{name}.tsv.gz", count)
        dialogues = [
            ask("sentiment", Source(), f"Is this positive or negative: {text}", label) for text, label in rated
        ]
        given = answer(model, tokenizer, dialogues, 8)
        right = sum(is_exact(text, dialogue.answer) for text, dialogue in zip(given, dialogues, strict=True))
        lines.append(f"{name} sentences with the right sentiment: {right} of {len(rated)}")
    for name, questions in (
        ("MT-bench questions", read_benchmark_questions(folder / "prompts" / "mt_bench_questions.jsonl")),
        ("CLINC150 out-of-scope questions", read_out_of_scope(folder / "classification" / "clinc150_small.json.gz")),
    ):
        dialogues = [ask("refusal", Source(), question, REFUSAL) for question in questions[:count]]
        refused = answer(model, tokenizer, dialogues, 40).count(REFUSAL)
        lines.append(f"{name} refused: {refused} of {len(dialogues)}")
    return lines


def read_rated_sentences(path: Path, count: int) -> list[tuple[str, str]]:
    """Return real sentences rated by people as (text, positive or negative), without ratings near zero."""
    found = []
    for line in gzip.decompress(path.read_bytes()).decode().splitlines()[1:]:
        rating, _, text = line.partition("\t")
        if abs(float(rating)) >= 1:
            found.append((text.strip(), "positive" if float(rating) > 0 else "negative"))
    return found[:: max(1, len(found) // count)][:count]


def read_benchmark_questions(path: Path) -> list[str]:
    return [json.loads(line)["turns"][0] for line in path.read_text(encoding="utf-8").splitlines()]


def read_out_of_scope(path: Path) -> list[str]:
    return [text for text, _ in json.loads(gzip.decompress(path.read_bytes()))["oos_test"]]


def evaluate_folder(folder: Path, count: int, is_new_phrasing: bool) -> list[Result]:
    """Evaluate all gates of an exported model on one thread, in a process of its own."""
    torch.set_num_threads(1)
    return evaluate(*load(folder), count, is_new_phrasing=is_new_phrasing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", type=Path, default=COMMITTED, help="folder with model.safetensors and tokenizer.json"
    )
    parser.add_argument("--count", type=int, default=200, help="held-out prompts per gate")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("HEARTH_TEST_DATA", "../shared/data")))
    parser.add_argument("--misses", action="store_true", help="show some of the failed prompts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load(options.model)
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1), get_context("spawn")) as processes:
        known, new = processes.map(evaluate_folder, [options.model] * 2, [options.count] * 2, [False, True])
    print(format_table(known, new))
    for title, results in (("held-out prompts", known), ("new wordings", new)):
        for result in results if options.misses else []:
            for prompt, given, expected in result.misses:
                print(f"  {result.gate.name}, {title}: {prompt!r} -> {given!r}, expected {expected!r}")
    kinds = dict.fromkeys(gate.kind for gate in GATES)
    dialogues = [dialogue for kind in kinds for dialogue in generate_evaluation(kind, options.count // 8)]
    print(f"\nPerplexity of held-out answers: {compute_perplexity(model, tokenizer, dialogues):.3f}")
    if options.data.is_dir():
        print("\nReal text (reported)", *report_real_text(model, tokenizer, options.data, options.count), sep="\n\n")


if __name__ == "__main__":
    main()
