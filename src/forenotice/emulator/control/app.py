"""The application by which the emulator is driven: the gate, the routes, the errors."""

from collections.abc import Callable

from fastapi import FastAPI

from forenotice import __version__
from forenotice.control import errors
from forenotice.control.routing import operation_id
from forenotice.emulator.control.driver import Driver
from forenotice.emulator.control.gate import Gate
from forenotice.emulator.control.routes import PREFIX, routes
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.portal.app import Pages


def create(emulator: Emulator, host: str) -> tuple[FastAPI, Callable[[], None]]:
    """And what ends requests that never end. `host` is where it was told to listen."""
    app = FastAPI(
        title="forenotice emulator",
        summary="Scheduled Events for tests: drive the emulator at run time.",
        version=__version__,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=operation_id,
    )
    app.state.driver = driver = Driver(emulator)
    pages = Pages(driver)
    app.include_router(routes)
    errors.install(app, routes.routes)
    app.add_middleware(Gate, host=host, pages=pages)
    return app, pages.live.end
