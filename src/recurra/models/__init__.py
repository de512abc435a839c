"""The model family: prelude, core applied several times, coda; and the linear control."""
