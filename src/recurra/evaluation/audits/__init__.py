"""Audits: measurements of whether the numbers can be trusted. `registry` lists them."""
