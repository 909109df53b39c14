"""The service beside its peers, on one workload, in one run: `python -m benchmarks.peers`."""
