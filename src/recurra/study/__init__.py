"""What to run, and running it."""
