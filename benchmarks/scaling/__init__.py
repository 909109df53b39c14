"""Cost as consumers, workers, batch size, prefetch and dataset size grow: `python -m benchmarks.scaling`."""
