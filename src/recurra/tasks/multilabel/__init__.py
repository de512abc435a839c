"""Multi-label classification: any number of labels a text, also none."""
