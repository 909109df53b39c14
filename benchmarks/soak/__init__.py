"""A soak test: one daemon, eight random consumers, faults at random moments, and every digest checked."""
