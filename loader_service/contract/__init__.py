"""The contract: pure functions and state machines, without files, clocks, sockets or processes."""
