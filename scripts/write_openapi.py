"""Print the OpenAPI document of the gateway. `npm run types` in `dashboard/` turns it into TypeScript types."""

from __future__ import annotations

import sys

from gateway.app import ROUTES
from gateway.management.docs import OpenApi


def main() -> None:
    """Write the document to standard output."""
    endpoint = next(route.endpoint for route in ROUTES if isinstance(route.endpoint, OpenApi))
    assert isinstance(endpoint, OpenApi)
    sys.stdout.buffer.write(endpoint.encoded())


if __name__ == "__main__":
    main()
