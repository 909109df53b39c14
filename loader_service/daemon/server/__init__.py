"""The daemon as a process: its socket, its permissions, its shared memory, its event loop."""
