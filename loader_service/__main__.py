"""`python -m loader_service` is the command `loader-service`."""

import sys

from loader_service.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
