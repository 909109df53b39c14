"""The daemon: workers that build, a broker that decides, a supervisor that keeps workers alive, a service that
wires them."""
