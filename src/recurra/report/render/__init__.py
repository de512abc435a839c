"""Renderers of the same tables: terminal, Markdown, one HTML page, LaTeX, CSV. None knows a task or a column."""
