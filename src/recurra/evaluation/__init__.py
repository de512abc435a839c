"""Metrics, significance, latency, and the audits."""
