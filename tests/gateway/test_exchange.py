"""What an exchange holds on to, without a server."""

import gc
import weakref
from typing import Any

from gateway.exchange import Exchange


class SilentConnection:
    """A client that is there and says nothing."""

    def __init__(self) -> None:
        self.is_aborted = False

    def when_lost(self, callback: Any) -> None:
        pass

    def abort(self) -> None:
        self.is_aborted = True


def exchange() -> Exchange:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(_message: Any) -> None:
        pass

    scope = {
        "hearth.request_id": "x", "headers": [], "raw_path": b"/", "query_string": b"",
        "hearth.connection": SilentConnection(),
    }  # fmt: skip
    return Exchange(scope, receive, send)


async def test_a_stream_whose_client_left_leaves_nothing_behind():
    abandoned = exchange()
    await abandoned.start_stream(client_stall_timeout_s=30)
    abandoned.close()
    remembered = weakref.ref(abandoned)
    del abandoned
    gc.collect()
    assert remembered() is None
