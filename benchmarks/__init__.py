"""Measurements: ratios taken side by side in one run. `python -m benchmarks.core` and its siblings print a table."""
