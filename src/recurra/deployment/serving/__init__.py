"""Classifiers behind HTTP: batches over all users, bounded queues, and a page to try them."""
