"""Kills, failing storage and hostile input at scale: ``make test-faults``, or ``python -m faults``.

Every part is drawn from one seed, which is printed and can be given. What fails is listed with what it takes to see it
again, and becomes a test of its own under ``tests/unit`` once it is mended.
"""
