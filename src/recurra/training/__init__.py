"""Training protocols, the Trainer with our batches and checkpoints, resume."""
