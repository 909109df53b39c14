"""Requests and answers, the build queue, and the state of each stream."""
