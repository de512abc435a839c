"""Using a trained run: the classifier and streaming prediction."""
