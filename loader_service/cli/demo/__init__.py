"""`loader-service demo`: one daemon, two reading processes, and the proof that all saw the same bytes."""
