"""All that daemon and client share: the endpoint, the messages, the segments. No state, no decisions."""
