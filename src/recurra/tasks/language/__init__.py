"""Language modelling: the next token of running text."""
