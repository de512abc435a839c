"""How a model is trained: the papers' protocol, a tuned one, or the user's own file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from recurra.core.configuration import HashedSettings
from recurra.core.errors import ConfigurationError, unknown

Decay = Annotated[float, Field(ge=0, lt=1)]
# Keys of earlier versions, with the value that had no effect.
_DROPPED = {"focal_gamma": 0, "logit_adjustment": 0, "pretraining_epochs": 0, "pretraining_learning_rate": None}


class ProtocolConfig(HashedSettings):
    """A training protocol. The same protocol is used for every model of a comparison.

    Attributes:
        schedule: ``plateau`` halves the rate after epochs without improvement; the others run over all steps.
            ``onecycle`` is PyTorch's (Smith and Topin 2018), except that the moments' decays do not change.
        warmup_ratio: Share of all steps with a rising learning rate (not for ``plateau`` and ``onecycle``).
        evaluation_batch_size: Rows of an evaluation batch; of classifiers at least 64.
        selection: Chooses the epoch, also for early stopping: the lowest ``loss`` or the highest ``accuracy``.
        token_dropout: Share of the words that read as ``[MASK]`` in training, drawn again at every step; above 0,
            tokens that the training split lacks read as ``[MASK]`` afterwards (`recurra.training.vocabulary`).
        weight_averaging: Decay per step of a moving average of the weights, which is evaluated, chosen and saved.
        activation_checkpointing: Whether layers are computed again in the backward pass: less memory, more time.
        auxiliary_epochs: Passes over the data's auxiliary rows and their labels of another task, before the classifier.
        teacher: The model to learn from (`recurra.training.distillation`): in a study the name of one of its models,
            which is trained first, under the study's first protocol without a teacher; else the folder of a run, of an
            export, or of a Hugging Face classifier. Several, separated by commas, are averaged. Empty: labels alone.
        distillation_weight: Share of the teacher's softened answers in the loss; the rest is for the labels.
        state_weight: Factor of the mean squared error of states after each layer application, for students that are
            made of the layers of the teacher's own encoder; others are compared by their answers alone.
        student_factor: Factor of the number of passes for a model with a teacher. Few rows give few steps, and a
            student needs more of them than its teacher, because it changes the teacher's layers.
        selection_rows: Most rows of the selection split that choose the epoch, drawn by class; 0 takes all. Reported
            figures of that split are of all its rows.
        class_weights: ``balanced`` weights every row by the inverse frequency of its class in training, so that all
            classes count alike in the loss (King and Zeng 2001; scikit-learn's rule); a student is taught by its
            teacher's answers instead and takes no weights. ``none`` weights all rows alike.
        curriculum_epochs: Epochs over which rows are added by length, the shortest first (`recurra.data.batching`;
            Bengio et al. 2009, "Curriculum Learning"); 0 uses all from the start. Early stopping evaluates the whole
            selection split all the time, so give it patience.
        sampled_recurrences: Whether each step stops after an exit or the last recurrence, drawn uniformly, so that the
            model learns to answer at each of them with fewer operations per step (Geiping et al. 2025, section 3.3, who
            draw from a Poisson distribution); models without exits are trained as always.
        exit_distillation: Share of the softened answers of the deepest computed head in each exit's loss, at
            ``distillation_temperature``; the rest is for the labels. With a teacher it divides the share of the labels.
    """

    _FIRST_KEYS: ClassVar[frozenset[str]] = frozenset(
        {
            "gradient_accumulation", "weight_decay", "schedule", "warmup_ratio", "plateau_factor", "plateau_patience",
            "early_stopping_patience", "early_stopping_threshold", "max_grad_norm", "label_smoothing",
            "evaluation_batch_size",
        }
    )  # fmt: skip

    name: str
    learning_rate: float = Field(gt=0, le=1)
    batch_size: int = Field(ge=1, le=65536)
    gradient_accumulation: int = Field(default=1, ge=1)
    max_epochs: int = Field(ge=1, le=10_000)
    weight_decay: float = Field(default=0.01, ge=0)
    adam_betas: tuple[Decay, Decay] = (0.9, 0.999)
    schedule: Literal["plateau", "cosine", "linear", "constant", "onecycle"] = "cosine"
    warmup_ratio: float = Field(default=0.0, ge=0, lt=1)
    plateau_factor: float = Field(default=0.5, gt=0, lt=1)
    plateau_patience: int = Field(default=2, ge=0)
    early_stopping_patience: int = Field(default=3, ge=0)
    early_stopping_threshold: float = Field(default=1e-3, ge=0)
    max_grad_norm: float = Field(default=1.0, ge=0)
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    evaluation_batch_size: int = Field(default=32, ge=1, le=65536)
    selection: Literal["loss", "accuracy"] = "loss"
    token_dropout: float = Field(default=0.0, ge=0, lt=1)
    weight_averaging: float = Field(default=0.0, ge=0, lt=1)
    activation_checkpointing: bool = False
    auxiliary_epochs: int = Field(default=0, ge=0, le=10_000)
    auxiliary_learning_rate: float | None = Field(default=None, gt=0, le=1)
    teacher: str = ""
    distillation_weight: float = Field(default=0.7, ge=0, le=1)
    distillation_temperature: float = Field(default=2.0, gt=0, le=100)
    state_weight: float = Field(default=1.0, ge=0)
    student_factor: float = Field(default=1.0, ge=1, le=100)
    selection_rows: int = Field(default=0, ge=0)
    class_weights: Literal["none", "balanced"] = "none"
    curriculum_epochs: int = Field(default=0, ge=0)
    sampled_recurrences: bool = False
    exit_distillation: float = Field(default=0.0, ge=0, le=1)

    @model_validator(mode="before")
    @classmethod
    def _without_dropped_keys(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {key: value for key, value in values.items() if key not in _DROPPED or value != _DROPPED[key]}

    def for_model(self, *, taught: bool) -> ProtocolConfig:
        """The protocol as one model is trained under it, with or without a teacher."""
        epochs = math.ceil(self.max_epochs * self.student_factor) if taught else self.max_epochs
        return self.model_copy(update={"max_epochs": epochs, "student_factor": 1.0})

    def refuse_unused(self, keys: Mapping[str, Any], *, taught: bool) -> None:
        """Refuses keys that a user gave and that change nothing beside the others, for a model with a teacher or none.

        Raises:
            ConfigurationError: If there is one; records of earlier runs may have them.
        """
        soft = taught or self.exit_distillation > 0
        alone = "without a teacher; give teacher=FOLDER"
        off_plateau = f"with schedule={self.schedule}; take schedule=plateau"
        rises = self.auxiliary_epochs > 0 or self.schedule not in ("plateau", "onecycle")
        effects = {
            **dict.fromkeys(("distillation_weight", "state_weight", "student_factor"), (taught, alone)),
            "distillation_temperature": (soft, alone),
            **dict.fromkeys(("plateau_factor", "plateau_patience"), (self.schedule == "plateau", off_plateau)),
            "warmup_ratio": (rises, f"with schedule={self.schedule}; take another schedule"),
        }
        for key in keys:
            used, why = effects.get(key, (True, ""))
            if not used:
                raise ConfigurationError(f"'{key}' is {keys[key]}, which changes nothing {why}, or leave it out")

    def check_heads(self, shape: Mapping[str, Any]) -> None:
        """Refuses a taught model with heads that would learn nothing, by the keys of the model."""
        if self.distillation_weight == 1 and shape.get("learned_halt"):
            raise ConfigurationError(
                "'distillation_weight' is 1 for a model with a learned halt, which must also learn from labels; "
                "allowed: below 1"
            )

    def model_post_init(self, _: object) -> None:
        """Checks what depends on two keys."""
        for wrong, key, reason in (
            (self.batch_size % self.gradient_accumulation, "gradient_accumulation",
             f": must divide batch_size {self.batch_size}"),
            (self.teacher and self.label_smoothing, "label_smoothing",
             " beside a teacher, whose answers are soft; set it to 0"),
            (self.curriculum_epochs > self.max_epochs, "curriculum_epochs",
             f"; allowed: 0 to max_epochs, which is {self.max_epochs}"),
            (self.selection == "accuracy" and self.schedule == "plateau", "selection",
             ": the plateau schedule waits for the loss; take selection=loss, or another schedule"),
            (self.auxiliary_learning_rate is not None and self.auxiliary_epochs == 0, "auxiliary_learning_rate",
             " without its stage; set auxiliary_epochs above 0, or leave it out"),
        ):  # fmt: skip
            if wrong:
                raise ConfigurationError(f"'{key}' is {getattr(self, key)}{reason}")


_FINETUNE = ProtocolConfig(
    name="finetune", learning_rate=1e-4, batch_size=32, max_epochs=4, schedule="linear", warmup_ratio=0.06,
    early_stopping_patience=0, selection="accuracy",
)  # fmt: skip

PROTOCOLS: dict[str, ProtocolConfig] = {
    # Guo et al., section 5.1; the weight decay is AdamW's own default, which the papers do not mention.
    "paper": ProtocolConfig(name="paper", learning_rate=3e-5, batch_size=16, max_epochs=5, schedule="plateau"),
    # A plain faster recipe for any labelled file.
    "tuned": ProtocolConfig(
        name="tuned", learning_rate=4e-4, batch_size=32, max_epochs=3, schedule="cosine", warmup_ratio=0.06
    ),
    # For data with auxiliary rows: they teach the encoder in one pass, and the classifier then hardly moves it. More
    # passes, and higher rates after them, overfitted the same held-out sentences.
    "tuned-treebank": ProtocolConfig(
        name="tuned-treebank", learning_rate=5e-5, batch_size=64, max_epochs=1, weight_decay=0.05, schedule="cosine",
        warmup_ratio=0.05, token_dropout=0.15, weight_averaging=0.999, auxiliary_epochs=1, auxiliary_learning_rate=1e-3,
    ),
    # For models that start from a pretrained encoder (docs/log.md).
    "finetune": _FINETUNE,
    # The same for a few thousand rows: more steps, and students take more than twice as many (docs/log.md).
    "finetune-small": _FINETUNE.model_copy(
        update={"name": "finetune-small", "batch_size": 16, "student_factor": 2.5, "selection_rows": 1_000}
    ),
    # The same for a few dozen rows: four passes would be a handful of steps (Mosbach et al. 2021 advise 20).
    "finetune-few": _FINETUNE.model_copy(
        update={"name": "finetune-few", "batch_size": 16, "max_epochs": 20, "student_factor": 2.5}
    ),
    # The same for tens of thousands of rows.
    "finetune-large": _FINETUNE.model_copy(update={"name": "finetune-large", "learning_rate": 5e-5, "max_epochs": 2}),
}  # fmt: skip

# Largest number of training rows, and the protocol for a pretrained encoder; above all: finetune-large.
_RECIPES = ((100, "finetune-few"), (5_000, "finetune-small"), (20_000, "finetune"))


def finetuning_for(rows: int) -> tuple[str, str]:
    """The protocol for fine-tuning on this number of training rows, and the reason in a few words."""
    for most_rows, name in _RECIPES:
        if rows <= most_rows:
            return name, f"{rows:,} training rows, at most {most_rows:,}"
    return "finetune-large", f"{rows:,} training rows, more than {_RECIPES[-1][0]:,}"


# For models from scratch; for those that start from a pretrained encoder see `finetuning_for`.
DEFAULT_PROTOCOL = "tuned"

LANGUAGE_PROTOCOLS: dict[str, ProtocolConfig] = {
    # CRT-Deep, section 4: micro-batches of 2, 8 of them a step. Its 50,000 lines are a matter of the data.
    "paper": ProtocolConfig(
        name="paper", learning_rate=3e-4, batch_size=16, gradient_accumulation=8, max_epochs=10, weight_decay=0.01,
        adam_betas=(0.9, 0.95), schedule="onecycle", early_stopping_patience=0, max_grad_norm=1.0,
        evaluation_batch_size=8,
    ),
    # For crt-tiny and crt-small, blocks of 128 or 256 tokens, on a corpus that is seen a few times.
    "tuned": ProtocolConfig(
        name="tuned", learning_rate=1e-3, batch_size=16, max_epochs=3, weight_decay=0.1, adam_betas=(0.9, 0.95),
        schedule="cosine", warmup_ratio=0.05, early_stopping_patience=0, evaluation_batch_size=16,
    ),
}  # fmt: skip


def load_protocol(
    name: str, changes: Mapping[str, Any] | None = None, *, known: Mapping[str, ProtocolConfig] = PROTOCOLS
) -> ProtocolConfig:
    """A protocol by name or from a YAML file, with changed keys."""
    if name in known:
        protocol = known[name]
    elif Path(name).suffix in {".yaml", ".yml"}:
        protocol = ProtocolConfig.load(name)
    else:
        raise ConfigurationError(unknown("protocol", name, [*known, "a .yaml file"]))
    if not changes:
        return protocol
    return ProtocolConfig.parse({**protocol.plain(), **changes}, source=f"protocol '{changes.get('name', name)}'")


# Keys without a meaning for language models; their defaults have no effect.
_NOT_FOR_LANGUAGE = (
    "label_smoothing", "selection", "token_dropout", "weight_averaging", "auxiliary_epochs", "teacher",
    "distillation_weight", "distillation_temperature", "state_weight", "student_factor", "selection_rows",
    "class_weights", "curriculum_epochs", "exit_distillation",
)  # fmt: skip


def check_language_protocol(protocol: ProtocolConfig) -> None:
    """Refuses keys of a protocol that the training of a language model does not support."""
    for key in _NOT_FOR_LANGUAGE:
        neutral = ProtocolConfig.model_fields[key].default
        if (value := getattr(protocol, key)) != neutral:
            raise ConfigurationError(
                f"'{key}' is {value}: for classifiers; a language model is trained on the plain cross-entropy, from "
                f"which perplexity follows; allowed: {neutral}"
            )
