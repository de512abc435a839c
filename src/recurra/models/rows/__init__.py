"""How the rows of a batch lie in memory: padded side by side, packed end to end, or behind a cache."""
