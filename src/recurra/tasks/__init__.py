"""What a run may be trained for: one interface, an implementation for each task, and a registry of them."""
