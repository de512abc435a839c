"""Predicting streams of texts, and the files of predictions."""
