"""Text for language modelling: corpora, tokenizers, packed blocks and lines."""
