"""A pretrained encoder's layers made shared: where it comes from, which layers, and what that keeps of it."""
