"""From a finished run to a folder that other tools read."""
