"""Transformers that reuse their layers, and an honest measurement of what the reuse costs and saves.

Importing this registers the model with the Auto classes of ``transformers`` and loads neither ``transformers`` nor
torch: the registration takes place when ``transformers`` is imported, now or later.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from recurra.core.import_hooks import when_imported
from recurra.core.version import __version__ as __version__

if TYPE_CHECKING:
    from recurra.comparison import compare
    from recurra.deployment.classifier import Classifier
    from recurra.estimator import RecurraClassifier
    from recurra.models.configuration import RecurraConfig
    from recurra.models.language_modeling import RecurraForCausalLM
    from recurra.models.modeling import RecurraForSequenceClassification, RecurraModel
    from recurra.models.presets import preset

__all__ = [
    "Classifier",
    "RecurraClassifier",
    "RecurraConfig",
    "RecurraForCausalLM",
    "RecurraForSequenceClassification",
    "RecurraModel",
    "compare",
    "preset",
]

_HOMES = {
    "Classifier": "recurra.deployment.classifier",
    "RecurraClassifier": "recurra.estimator",
    "RecurraConfig": "recurra.models.configuration",
    "RecurraForCausalLM": "recurra.models.language_modeling",
    "RecurraForSequenceClassification": "recurra.models.modeling",
    "RecurraModel": "recurra.models.modeling",
    "compare": "recurra.comparison",
    "preset": "recurra.models.presets",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'recurra' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def _register_configuration(auto: Any) -> None:
    """Registers our configuration with ``AutoConfig`` as soon as that exists."""
    from recurra.models.configuration import RecurraConfig

    auto.AutoConfig.register(RecurraConfig.model_type, RecurraConfig, exist_ok=True)


def _register_models(auto: Any) -> None:
    """Registers our models with the Auto models as soon as those exist."""
    from transformers import AutoConfig

    from recurra.models.configuration import RecurraConfig
    from recurra.models.foreign import ForeignConfig, ForeignForSequenceClassification
    from recurra.models.language_modeling import RecurraForCausalLM
    from recurra.models.modeling import RecurraForSequenceClassification, RecurraModel

    auto.AutoModel.register(RecurraConfig, RecurraModel, exist_ok=True)
    auto.AutoModelForSequenceClassification.register(RecurraConfig, RecurraForSequenceClassification, exist_ok=True)
    # This configuration is in the module of its model, which imports torch.
    AutoConfig.register(ForeignConfig.model_type, ForeignConfig, exist_ok=True)
    auto.AutoModelForSequenceClassification.register(ForeignConfig, ForeignForSequenceClassification, exist_ok=True)
    auto.AutoModelForCausalLM.register(RecurraConfig, RecurraForCausalLM, exist_ok=True)


when_imported("transformers.models.auto.configuration_auto", _register_configuration)
when_imported("transformers.models.auto.modeling_auto", _register_models)
