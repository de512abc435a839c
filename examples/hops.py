"""Where a loop pays: one layer applied hop by hop against six layers, on chains of facts. Five minutes on one core.

python examples/hops.py draws accuracy by hops; training has one to four of them.
"""

import torch

import recurra
from recurra.data.depth_corpora import DEPTH_CORPORA, LETTERS, generate_depth

HOPS = next(corpus for corpus in DEPTH_CORPORA if corpus.name == "hops")
PAIRS = [first + second for first in LETTERS for second in LETTERS]
TOKENS = {word: number for number, word in enumerate(["padding", "+", *LETTERS, *PAIRS])}
SHAPE = {
    "vocab_size": len(TOKENS), "num_labels": len(LETTERS), "hidden_size": 64, "intermediate_size": 192,
    "position": "none", "pooling": "mean", "final_norm": True, "hidden_dropout": 0.0, "initializer_range": 0.1,
}  # fmt: skip
# Nine facts and a start ask for no pass, each + for one.
LOOP = {"num_core_layers": 1, "num_recurrences": 8, "tokens_without_recurrence": 10, "input_injection": "add"}
MODELS = {"one layer, a pass a hop": LOOP, "six layers": {"num_core_layers": 6}}


def encode(rows):
    """Token ids and labels of rows with equally many hops."""
    ids = [[TOKENS[word] for word in text.split()] for text in rows.texts]
    return torch.tensor(ids), torch.from_numpy(rows.labels)


def train(model, by_hops, steps, batch_size=128):
    """Lets one hop after the other in, over two thirds of the steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98))
    for step in range(steps):
        ids, labels = by_hops[int(torch.randint(min(1 + 6 * step // steps, 4), ()))]
        batch = torch.randint(len(ids), (batch_size,))
        optimizer.param_groups[0]["lr"] = 1e-3 * min(1, (step + 1) / 100, 2 - 2 * step / steps)
        model(ids[batch], labels=labels[batch]).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def main(steps=3000, rows=32_000):
    """Trains both models; returns their accuracy by hops."""
    splits, accuracies = generate_depth(HOPS, train_rows=rows).splits, {}
    hops_of = [text.count("+") for text in splits["train"].texts]
    by_hops = [encode(splits["train"].select([r for r, n in enumerate(hops_of) if n == hops])) for hops in range(1, 5)]
    tests = [encode(splits[f"hops-{hops}"]) for hops in range(1, 9)]
    for name, shape in MODELS.items():
        torch.manual_seed(0)
        model = recurra.RecurraForSequenceClassification(recurra.preset("baseline-tiny", **SHAPE, **shape))
        train(model, by_hops, steps)
        with torch.no_grad():
            accuracies[name] = [float((model(ids).logits.argmax(1) == labels).float().mean()) for ids, labels in tests]
        print(f"{name:24}", *(f"{value:.2f}{'▁▂▃▄▅▆▇█'[int(7 * value)]}" for value in accuracies[name]))
    return accuracies


if __name__ == "__main__":
    main()
