"""The page of `lithify serve` over a demo, in a thread of its own: from its first job run to Ctrl-C."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from compactor.model.clock import Clock
from compactor.model.errors import Invalid
from compactor.publishing.published_lake import PublishedLake, lake_names
from dispatcher.demo.environment import DemoEnvironment
from dispatcher.demo.stand_ins import HOST


@contextmanager
def demo_page(environment: DemoEnvironment, clock: Clock) -> Iterator[str]:
    """The URL of the page, which is up while the context is open. Raises `Invalid` if its extra is not installed."""
    try:
        import uvicorn

        from dispatcher.web.app import Doors, create_app
        from dispatcher.web.iceberg_rest import IcebergRestCatalog
        from dispatcher.web.readings import Readings
    except ImportError as error:
        raise Invalid(f"the page needs {error.name}: pip install 'lithify[serve]'") from error
    lake = environment.lake
    root_uri = lake.location.root_uri
    published = PublishedLake(lake.store, clock, lake_names([root_uri])[root_uri])
    with socket.create_server((HOST, 0), backlog=128) as listener:
        address = f"{HOST}:{listener.getsockname()[1]}"
        readings = Readings(environment.state, lake, clock, environment.queue)
        app = create_app(readings, IcebergRestCatalog([published]), Doors([address]))
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), name="page", daemon=True)
        thread.start()
        try:
            yield f"http://{address}/"
        finally:
            server.should_exit = True
            thread.join()
