"""The processes that build batches, and what keeps them alive."""
