"""Classification: one label a text."""
