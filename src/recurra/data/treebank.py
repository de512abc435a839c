"""The five-class labels of every phrase of the Stanford Sentiment Treebank's training sentences.

SST-2 keeps two classes of five and leaves the neutral phrases out. The treebank's trees have them all (Socher et al.
2013, section 3): how strong a phrase is, and that it says nothing, for twice as many phrases. They serve as labels of
another task, never as those that are reported.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from recurra.core.errors import DataError
from recurra.data.cleaning import clean_text
from recurra.data.parquet import read_parquet_columns
from recurra.data.sst2_source import SENTENCES_FILE

TREES_FILE = Path("sst/trees/train.txt.gz")
PHRASE_LABELS = ("very negative", "negative", "neutral", "positive", "very positive")
_TOKEN = re.compile(r"\(|\)|[^\s()]+")
_ESCAPES = {"-LRB-": "(", "-RRB-": ")"}

Phrase = tuple[int, int, int]


def read_tree(line: str) -> tuple[list[str], list[Phrase]]:
    """Reads one tree such as ``(3 (2 It) (4 (2 's) (4 lovely)))``.

    Returns:
        Its words, bracket and slash escapes undone, and of every node the first word, the word after the last, and the
        label.

    Raises:
        ValueError: If it is not a tree with labels 0 to 4.
    """
    words: list[str] = []
    phrases: list[Phrase] = []
    open_nodes: list[tuple[int, int]] = []
    tokens = iter(_TOKEN.findall(line))
    for token in tokens:
        if token == "(":
            label = next(tokens, "")
            if label not in {"0", "1", "2", "3", "4"}:
                raise ValueError(f"a node has the label '{label}'")
            open_nodes.append((len(words), int(label)))
        elif token == ")":
            first, label_index = open_nodes.pop() if open_nodes else (0, -1)
            if label_index < 0 or first == len(words):
                raise ValueError("the brackets do not match")
            phrases.append((first, len(words), label_index))
        else:
            words.append(_ESCAPES.get(token, token.replace("\\/", "/").replace("\\*", "*")))
    if open_nodes or not phrases:
        raise ValueError("the brackets do not match")
    return words, phrases


def read_phrases(data_root: Path | None, held_out: set[int | str]) -> tuple[list[str], list[int]]:
    """Reads the labelled phrases of the training sentences, each text once.

    Args:
        data_root: Folder with ``sst/``.
        held_out: Sentences of the treebank's numbering; their phrases are left out, also where another sentence has
            them.

    Returns:
        Cleaned texts, and their labels: indices into `PHRASE_LABELS`.

    Raises:
        DataError: If the trees are missing or damaged.
    """
    if data_root is None or not (data_root / TREES_FILE).is_file():
        raise DataError(
            f"auxiliary=treebank needs {TREES_FILE} in the data root, and it is not there; "
            "give --data-root DIR with sst/trees/, or leave auxiliary out"
        )
    columns = read_parquet_columns(data_root / SENTENCES_FILE, ("sentence_index", "split", "tree_idx"))
    rows = zip(columns["sentence_index"], columns["split"], columns["tree_idx"], strict=True)
    sentence_of = {tree: sentence for sentence, split, tree in rows if split == "train"}
    labels: dict[str, int] = {}
    hidden: set[str] = set()
    for number, (words, phrases) in enumerate(_read_trees(data_root / TREES_FILE)):
        if number not in sentence_of:
            raise DataError(f"'{SENTENCES_FILE}' has no train sentence for tree {number} of '{TREES_FILE}'")
        texts = [clean_text(" ".join(words[first:end])) for first, end, _ in phrases]
        if sentence_of[number] in held_out:
            hidden.update(texts)
        for text, (_, _, label) in zip(texts, phrases, strict=True):
            labels.setdefault(text, label)
    kept = {text: label for text, label in labels.items() if text and text not in hidden}
    return list(kept), list(kept.values())


def _read_trees(path: Path) -> Iterator[tuple[list[str], list[Phrase]]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    yield read_tree(line)
                except ValueError as error:
                    problem = f"'{path}' line {number} is not a labelled tree: {error}"
                    raise DataError(f"{problem}; fetch it again") from error
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"'{path}' cannot be read ({error}); fetch it again") from error
