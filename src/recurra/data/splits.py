"""A user's files become train, validation and test."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from recurra.core.configuration import derive_seed
from recurra.core.errors import DataError
from recurra.data.configuration import DataConfig
from recurra.data.dataset import Group, TextDataset, TextSplit
from recurra.data.labels import FileTable, join_spellings, label_notes, read_table

Labels = npt.NDArray[np.int64]


def iterative_split(
    units: Sequence[Sequence[int]], keys: Sequence[bytes], labels: Labels, shares: Mapping[str, float]
) -> list[str]:
    """Assigns units to splits label by label, the rarest first (Sechidis, Tsoumakas and Vlahavas 2011).

    Of the units that are left, those with the rarest label are assigned in the order of their keys, each to the split
    that still wants the most rows of that label. If several do, it goes to the one that wants the most rows in all,
    then to the first. Units without a label come last. Unlike in the paper, ties are broken by content and not by
    chance, and a unit may be several rows that must stay together. Labels are 0 and 1, ``(rows, labels)``.
    """
    names = list(shares)
    portions = np.array([shares[name] for name in names])
    counts = np.stack([labels[list(rows)].sum(axis=0) for rows in units]) if units else np.zeros((0, labels.shape[1]))
    sizes = np.array([len(rows) for rows in units])
    wanted = portions[:, None] * counts.sum(axis=0)
    room = portions * sizes.sum()
    chosen = np.full(len(units), -1)
    order = np.array(sorted(range(len(units)), key=lambda unit: keys[unit]), dtype=np.int64)

    def give(unit: int, wishes: npt.NDArray[np.float64]) -> None:
        # Rounded, so that what was wanted equally stays equal after subtractions.
        split = int(np.lexsort((np.arange(len(names)), -room.round(9), -wishes.round(9)))[0])
        chosen[unit] = split
        wanted[split] -= counts[unit]
        room[split] -= sizes[unit]

    left = counts.sum(axis=0).astype(np.float64)
    while (left > 0).any():
        label = int(np.argmin(np.where(left > 0, left, np.inf)))
        for unit in order[(chosen[order] < 0) & (counts[order, label] > 0)].tolist():
            give(unit, wanted[:, label])
            left -= counts[unit]
    for unit in order[chosen[order] < 0].tolist():
        give(unit, room)
    return [names[split] for split in chosen.tolist()]


def split_key(seed: int, texts: Sequence[str], rows: Sequence[int]) -> bytes:
    """A key to sort units by under a seed: a hash of the unit's texts, independent of the order of its rows."""
    return min(hashlib.sha256(f"{seed}/{texts[row]}".encode("utf-8", "surrogatepass")).digest() for row in rows)


def stratified_fraction(split: TextSplit, fraction: float, seed: int) -> TextSplit:
    """Returns a random share of the rows with every label in its proportion, in their order.

    If rows have one label, each label keeps a row, and with one seed a smaller fraction is a subset of a larger one up
    to one row a label (rounding): 10 % and 50 % differ by added rows, not by luck. Neither holds for several labels.
    """
    if fraction == 1:
        return split
    if split.labels.ndim == 2:
        # The identity is part of the key, since equal texts would have equal keys.
        units = [[row] for row in range(len(split))]
        ids = (row_id.encode("utf-8", "surrogatepass") for row_id in split.ids)
        keys = [split_key(seed, split.texts, [row]) + row_id for row, row_id in enumerate(ids)]
        parts = iterative_split(units, keys, split.labels, {"rest": 1 - fraction, "kept": fraction})
        return split.select([row for row, part in enumerate(parts) if part == "kept"])
    present, counts = np.unique(split.labels, return_counts=True)
    return _drawn(split, dict(zip(present.tolist(), apportion(counts, fraction).tolist(), strict=True)), seed)


def rows_of_each_label(split: TextSplit, most: int, seed: int) -> TextSplit:
    """Draws at most ``most`` rows of each label, in their order; with one seed, a smaller draw is part of a larger."""
    return _drawn(split, dict.fromkeys(np.unique(split.labels).tolist(), most), seed)


def _drawn(split: TextSplit, sizes: Mapping[int, int], seed: int) -> TextSplit:
    chosen = []
    for label, size in sizes.items():
        generator = np.random.default_rng(derive_seed(seed, "fraction", label))
        chosen.append(generator.permutation(np.flatnonzero(split.labels == label))[:size])
    return split.select(np.sort(np.concatenate(chosen)))


def apportion(
    counts: np.ndarray[tuple[int], np.dtype[np.int64]], fraction: float
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Rows to take of each label, by largest remainders: in sum the rounded share of all rows, but each at least 1."""
    exact = counts * fraction
    sizes = np.floor(exact).astype(np.int64)
    short = round(float(counts.sum()) * fraction) - int(sizes.sum())
    by_remainder = np.argsort(-(exact - sizes), kind="stable")
    sizes[by_remainder[: max(short, 0)]] += 1
    return np.maximum(sizes, 1)


def length_tail(split: TextSplit, which: Literal["longest", "shortest"], fraction: float) -> TextSplit:
    """Returns the longest or shortest share of the rows, by words, in their order.

    Ties are broken by a hash of the text: by content, not by place, since files are often sorted by label.
    """
    keep = max(1, round(len(split) * fraction))
    words = split.word_counts if which == "shortest" else -split.word_counts
    ties = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8] for text in split.texts]
    order = np.lexsort((np.frombuffer(b"".join(ties), dtype=">u8"), words))
    return split.select(np.sort(order[:keep]))


HELD_OUT_SHARE = 0.1
# With fewer units, a class could not be in all three splits.
_MINIMUM_UNITS = 3


def load_files(config: DataConfig) -> TextDataset:
    """Loads a user's file and its validation and test files; those that are not given are split off the first."""
    table = _read(config.name, config)
    joined = join_spellings(table) if config.join_labels else table
    names = config.labels.names(joined, config.label_column)
    whole = _as_split("train", table, names, config)
    tables = {"rows": table}
    own_files: dict[str, TextSplit] = {}
    for name, path in (("validation", config.validation), ("test", config.test)):
        if path is not None:
            tables[name] = _read(path, config)
            own_files[name] = _as_split(name, tables[name], names, config)
    wanted = [name for name in ("validation", "test") if name not in own_files]
    if config.cross_validated:
        parts = fold_rows(
            whole.texts, whole.labels, table.groups, config.folds or 1, fold=config.fold, seed=config.split_seed
        )
    else:
        # Shares are of the rows that would be there if all three parts came from one file: 80/10/10, or 8:1.
        share = HELD_OUT_SHARE / (1 - HELD_OUT_SHARE * len(own_files))
        parts = split_rows(whole.texts, whole.labels, table.groups, dict.fromkeys(wanted, share), config.split_seed)
    missing = [name for name in wanted if len(parts[name]) == 0]
    if missing:
        groups = len(set(table.groups or ()))
        of_groups = f" in {groups} group{'s' * (groups > 1)} of '{config.group_column}'" if table.groups else ""
        of_groups += _joined_groups(whole.texts, table.groups)
        raise DataError(
            f"{table.source} has too few rows to split off {' and '.join(missing)}{config.fold_description}: "
            f"{len(table)} rows, {len(set(whole.texts))} different texts{of_groups}; one label at least must have "
            f"{_MINIMUM_UNITS} different {'groups' if of_groups else 'texts'}, one each to train, to choose the epoch "
            "and to test; label more, or give your own files with --validation and --test"
        )
    splits = {
        name: own_files[name] if name in own_files else whole.select(parts[name], name=name)
        for name in ("train", "validation", "test")
    }
    return TextDataset(
        name=Path(config.name).name,
        protocol="split",
        label_names=names,
        splits=splits,
        dropped={
            f"{name}: {why}": count
            for name, other in tables.items()
            for why, count in (("empty after cleaning", other.empty), ("without label", len(other.unlabelled)))
            if count
        },
        notes=[
            *_notes(splits, names, list(own_files)),
            *(_undealt_note(whole, table.groups) if config.cross_validated else []),
            *label_notes(list(tables.values()), joined=config.join_labels),
        ],
    )


def load_split(path: Path | str, config: DataConfig, names: Sequence[str], *, name: str = "file") -> TextSplit:
    """Loads another file with the label names of an existing model."""
    # Rows are not left out here, because nobody would see the note on them.
    return _as_split(name, _read(path, config, skip=None), names, config)


def _read(path: Path | str, config: DataConfig, *, skip: bool | None = False, as_written: bool = False) -> FileTable:
    return read_table(
        path,
        config.text_column,
        config.label_column,
        config.group_column,
        config.id_column,
        labels=config.labels,
        skip_unlabelled=None if skip is None else config.skip_unlabelled,
        encoding=config.encoding,
        clean=config.clean,
        as_written=as_written,
    )


def read_rows(path: Path | str, config: DataConfig) -> tuple[FileTable, list[str]]:
    """The labelled rows of a user's file, with spellings joined if the configuration says so, and notes on the file."""
    table = _read(path, config)
    return join_spellings(table) if config.join_labels else table, label_notes([table], joined=config.join_labels)


def texts_as_written(path: Path | str, config: DataConfig) -> dict[str, str]:
    """The texts of a user's file as written, by the identity of their row."""
    table = _read(path, config, as_written=True)
    return dict(zip(table.ids, table.texts, strict=True))


def _as_split(name: str, table: FileTable, names: Sequence[str], config: DataConfig) -> TextSplit:
    if config.join_labels:
        table = join_spellings(table, names)
    groups: list[Group] | None = None
    if table.groups is not None:
        groups = [(group,) if group else () for group in table.groups]
    return TextSplit(name, table.texts, config.labels.values(table, names), table.ids, groups)


def split_rows(
    texts: Sequence[str],
    labels: Labels,
    groups: Sequence[str] | None,
    shares: Mapping[str, float],
    seed: int,
) -> dict[str, Labels]:
    """Splits rows by a hash of their text, stratified by label; the order of the rows does not matter.

    Rows of equal text or equal group are one unit, which is never cut (also through chains: a text in two groups joins
    them). A unit counts for its most frequent label. A class of fewer than three units stays in train whole. Rows with
    any number of labels, ``(rows, labels)``, are split by `iterative_split`.
    """
    units = _units(texts, groups)
    keys = [split_key(seed, texts, rows) for rows in units]
    if labels.ndim == 2:
        split_names = iterative_split(units, keys, labels, {"train": 1 - sum(shares.values()), **shares})
    else:
        split_names = [""] * len(units)
        crowded = max(map(len, units), default=0) > min(shares.values(), default=1.0) * len(texts)
        for label, members in _by_label(units, labels).items():
            ordered = sorted(members, key=lambda unit: (keys[unit], units[unit]))
            sizes = [len(units[unit]) for unit in ordered]
            # A large group has rows of other labels too, and counting all of them would inflate its commonest label.
            rows = int((labels == label).sum()) if crowded else sum(sizes)
            for unit, split_name in zip(ordered, _assign(sizes, shares, rows), strict=True):
                split_names[unit] = split_name
    return _rows_of(["train", *shares], units, split_names)


def fold_rows(
    texts: Sequence[str],
    labels: Labels,
    groups: Sequence[str] | None,
    folds: int,
    *,
    fold: int,
    seed: int,
) -> dict[str, Labels]:
    """Splits rows for one fold of a stratified cross-validation; the order of the rows does not matter.

    Units, as in `split_rows`, are dealt to twice as many hands as there are folds. A fold tests on two hands and
    validates on the next one, so every dealt row is a test row of one fold. A class of fewer than three units stays
    whole in train. Rows with any number of labels are all dealt, by `iterative_split`. Every fold trains on each label,
    unless all of its rows are one unit.
    """
    units = _units(texts, groups)
    keys = [split_key(seed, texts, rows) for rows in units]
    hands: list[int | None]
    if labels.ndim == 2:
        shares = {str(hand): 1 / (2 * folds) for hand in range(2 * folds)}
        hands = [int(hand) for hand in iterative_split(units, keys, labels, shares)]
    else:
        hands = _deal(units, keys, labels, 2 * folds)
    _spread(hands, units, keys, labels, folds)
    test, validation = {2 * fold, 2 * fold + 1}, (2 * fold + 2) % (2 * folds)
    split_names = ["test" if hand in test else "validation" if hand == validation else "train" for hand in hands]
    return _rows_of(["train", "validation", "test"], units, split_names)


def _rows_of(names: Sequence[str], units: Sequence[list[int]], split_names: Sequence[str]) -> dict[str, Labels]:
    chosen: dict[str, list[int]] = {name: [] for name in names}
    for rows, name in zip(units, split_names, strict=True):
        chosen[name].extend(rows)
    return {name: np.array(sorted(rows), dtype=np.int64) for name, rows in chosen.items()}


def _deal(units: Sequence[list[int]], keys: Sequence[bytes], labels: Labels, hands: int) -> list[int | None]:
    """The hand of each unit: label by label, the hand with the fewest rows of the label, then the fewest in all."""
    dealt: list[int | None] = [None] * len(units)
    held = np.zeros(hands, dtype=np.int64)
    for _, members in sorted(_by_label(units, labels).items()):
        if len(members) < _MINIMUM_UNITS:
            continue
        of_label = np.zeros(hands, dtype=np.int64)
        # Large units come first, because they make hands unequal; equally large ones are in the order of their keys.
        for unit in sorted(members, key=lambda unit: (-len(units[unit]), keys[unit], units[unit])):
            hand = int(np.lexsort((np.arange(hands), held, of_label))[0])
            dealt[unit] = hand
            of_label[hand] += len(units[unit])
            held[hand] += len(units[unit])
    return dealt


def _spread(
    hands: list[int | None], units: Sequence[list[int]], keys: Sequence[bytes], labels: Labels, folds: int
) -> None:
    """Moves a unit of each label whose units lie in the three hands that one fold tests and validates on."""
    labels_of = [{*(labels[rows] if labels.ndim == 1 else labels[rows].nonzero()[1]).tolist()} for rows in units]
    units_of: defaultdict[int, list[int]] = defaultdict(list)
    for unit, present in enumerate(labels_of):
        for label in present:
            units_of[label].append(unit)
    held = Counter(hand for hand, rows in zip(hands, units, strict=True) for _ in rows)

    def is_untrained(label: int) -> bool:
        lie = {hands[unit] for unit in units_of[label]}
        apart = ({2 * fold, 2 * fold + 1, (2 * fold + 2) % (2 * folds)} for fold in range(folds))
        return len(units_of[label]) > 1 and any(map(lie.issubset, apart))

    for label in filter(is_untrained, sorted(units_of)):
        members = sorted(units_of[label], key=lambda unit: (len(units[unit]), keys[unit]))
        by_rows = sorted(range(2 * folds), key=lambda hand: (held[hand], hand))
        for unit, hand in itertools.product(members, by_rows):
            before, hands[unit] = hands[unit], hand
            if not any(map(is_untrained, labels_of[unit])):
                held.update({before: -len(units[unit]), hand: len(units[unit])})
                break
            hands[unit] = before


def _undealt_note(split: TextSplit, groups: Sequence[str] | None) -> list[str]:
    """A note on the rows that `fold_rows` does not deal, if there are any."""
    units = _units(split.texts, groups)
    members = _by_label(units, split.labels).values() if split.labels.ndim == 1 else []
    rows = sum(len(units[unit]) for few in members if len(few) < _MINIMUM_UNITS for unit in few)
    what = "groups" if groups else "different texts"
    why = f"their labels have fewer than {_MINIMUM_UNITS} {what}"
    return [f"{rows:,} rows are in train in every fold and never tested: {why}."] if rows else []


def _by_label(units: Sequence[list[int]], labels: Labels) -> dict[int, list[int]]:
    """Units by label; a unit counts for its most frequent label."""
    by_label: defaultdict[int, list[int]] = defaultdict(list)
    for unit, rows in enumerate(units):
        counts = Counter(int(labels[row]) for row in rows)
        by_label[min(counts, key=lambda value: (-counts[value], value))].append(unit)
    return by_label


def _joined_groups(texts: Sequence[str], groups: Sequence[str] | None) -> str:
    """Says how many groups are left once equal texts join them, and which text joins most; empty if no text does."""
    of_text: defaultdict[str, set[str]] = defaultdict(set)
    for text, group in zip(texts, groups or (), strict=groups is not None):
        of_text[text].update(filter(None, [group]))
    text, shared = max(of_text.items(), key=lambda item: len(item[1]), default=("", set[str]()))
    if len(shared) < 2:
        return ""
    return (
        f", {len(_units(texts, groups))} where equal texts join them (the commonest, '{text[:60]}', stands in "
        f"{len(shared)}; leave such texts out)"
    )


def _units(texts: Sequence[str], groups: Sequence[str] | None) -> list[list[int]]:
    """Rows that must stay together: connected through equal texts and equal groups (union-find)."""
    parent = list(range(len(texts)))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    first: dict[tuple[str, str], int] = {}
    for row, text in enumerate(texts):
        keys = [("text", text)]
        if groups is not None and groups[row]:
            keys.append(("group", groups[row]))
        for key in keys:
            parent[root(row)] = root(first.setdefault(key, row))
    units: defaultdict[int, list[int]] = defaultdict(list)
    for row in range(len(texts)):
        units[root(row)].append(row)
    return list(units.values())


def _assign(sizes: Sequence[int], shares: Mapping[str, float], rows: int) -> list[str]:
    """The split of each unit, in order: the first where it still fits by its share of the rows, else train."""
    names = ["train"] * len(sizes)
    if len(sizes) < _MINIMUM_UNITS:
        return names
    in_train, without_units = len(sizes), set(shares)
    most = sum(sizes) // _MINIMUM_UNITS if rows > sum(sizes) else rows
    room = {name: max(1, min(round(share * rows), most)) for name, share in shares.items()}
    for unit, size in enumerate(sizes):
        fitting = next((name for name in room if size <= room[name]), None)
        # A unit stays for train, and one for every other split that has none.
        if fitting is not None and in_train > 1 + len(without_units - {fitting}):
            names[unit] = fitting
            room[fitting] -= size
            in_train -= 1
            without_units.discard(fitting)
    for name in shares:
        if name not in names:
            # Every unit is larger than the share: the smallest does the least harm.
            left = [unit for unit in range(len(sizes)) if names[unit] == "train"]
            names[min(left, key=lambda unit: (sizes[unit], unit))] = name
    return names


def _notes(splits: Mapping[str, TextSplit], names: Sequence[str], own_files: Sequence[str]) -> list[str]:
    notes = []
    train = splits["train"]
    if train.labels.ndim == 2:
        none = int((train.labels.sum(axis=1) == 0).sum())
        notes.append(f"Train rows have {train.labels.sum() / len(train):.2f} labels on average; {none} have none.")
    first: dict[str, bytes] = {}
    opposed: set[str] = set()
    for text, label in zip(train.texts, train.labels, strict=True):
        if first.setdefault(text, label.tobytes()) != label.tobytes():
            opposed.add(text)
    if repeated := len(train) - len(first):
        notes.append(
            f"{repeated} train rows repeat the text of another; {len(opposed)} texts have more than one label."
        )
    for name in own_files:
        shared = sum(text in first for text in splits[name].texts)
        if shared:
            notes.append(
                f"{shared} of {len(splits[name])} rows of the given {name} file have a text that train has too."
            )
    for name, split in splits.items():
        counts = split.label_counts(len(names))
        absent = [label for index, label in enumerate(names) if not counts[index]]
        if absent:
            notes.append(f"Split '{name}' has no row of the class {', '.join(absent[:20])}.")
    return notes
