"""Hours of faults: a daemon, eight consumers that wander, kills at random moments, and every digest checked."""
