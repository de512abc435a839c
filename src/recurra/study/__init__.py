"""What to run, running it, and the report."""
