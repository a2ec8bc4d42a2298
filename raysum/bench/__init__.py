"""Benchmarks: what this machine can do at most, and how near raysum comes to it, measured side by side in one run."""
