"""A pretrained encoder with its layers under a plan, as a folder that trainings start from."""

from recurra.adaptation.build import SHOWN_PLANS, Adaptation, AdaptationOptions, adapt

__all__ = ["SHOWN_PLANS", "Adaptation", "AdaptationOptions", "adapt"]
