"""The routes of the service. What they promise is in ``georoutenet.web``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from georoutenet import __version__
from georoutenet.errors import GeoRouteNetError, InputError
from georoutenet.io.files import format_route
from georoutenet.io.names import safe_name
from georoutenet.io.packaged import packaged_weights
from georoutenet.web import messages
from georoutenet.web.examples import EXAMPLES, example
from georoutenet.web.guard import Guard
from georoutenet.web.limits import Limits
from georoutenet.web.problems import Problem, to_json
from georoutenet.web.searches import Searches
from georoutenet.web.slots import Admission, Left, slots_folder

STATIC = Path(__file__).parent / "static"
EXPORTS = {
    "tour": "text/plain",
    "csv": "text/csv",
    "geojson": "application/geo+json",
    "gpx": "application/gpx+xml",
    "json": "application/json",
}
Value = TypeVar("Value")


class Service:
    """What the routes share."""

    def __init__(self, limits: Limits, folder: Path) -> None:
        self.limits = limits
        self.searches = Searches(limits, Admission(limits, folder))
        self._reader = ThreadPoolExecutor(1, "reader")
        """One thread reads all bodies: parsing holds Python's lock, and warnings are of the whole process."""

    async def read(self, function: Callable[..., Value], *arguments: Any) -> Value:
        return await asyncio.get_running_loop().run_in_executor(self._reader, function, *arguments)


def create_app(
    limits: Limits | None = None,
    *,
    folder: Path | None = None,
    origins: tuple[str, ...] = (),
    warm: bool = True,
) -> ASGIApp:
    """The service as an ASGI application.

    ``folder`` holds the locks by which several processes share the limits. ``origins`` are pages of other
    hosts that may use the service. ``warm`` loads the network beside the first requests.
    """
    service = Service(limits or Limits(), folder or slots_folder())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if warm:
            threading.Thread(target=_load, daemon=True).start()
        yield
        service.searches.close()

    app = FastAPI(
        title="GeoRouteNet",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    for error, handler in (
        (Problem, lambda _, error: error.response()),
        (GeoRouteNetError, lambda _, error: Problem(400, str(error)).response()),
        (HTTPException, lambda _, error: Problem(error.status_code, str(error.detail)).response()),
        (Left, lambda *_: Response(status_code=499)),
        (Exception, lambda *_: Problem(500, "the server failed; its log says where").response()),
    ):
        app.add_exception_handler(error, handler)
    _add_pages(app)
    _add_information(app, service)
    _add_work(app, service)
    guarded: ASGIApp = Guard(app, service.limits)
    if origins:
        guarded = CORSMiddleware(
            guarded, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["Content-Type"]
        )
    return guarded


def _load() -> None:
    from georoutenet.solver.stages import warm_up

    warm_up()


def _add_pages(app: FastAPI) -> None:
    app.mount("/static", StaticFiles(directory=STATIC), name="static")

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(STATIC / "index.html")


def _add_information(app: FastAPI, service: Service) -> None:
    @app.get("/healthz")
    async def health() -> Response:
        return _json({"status": "ok", "version": __version__})

    @app.get("/api/limits")
    async def limits() -> Response:
        return _json(service.limits.to_dict())

    @app.get("/api/weights")
    async def weights() -> Response:
        return _json(await service.read(_weights))

    @app.get("/api/examples")
    async def examples() -> Response:
        listed = [
            {
                "name": each.name,
                "title": each.title,
                "cities": each.cities,
                "optimum": example(each.name).optimum,
            }
            for each in EXAMPLES.values()
        ]
        return _json(listed)

    @app.get("/api/examples/{name}")
    async def one_example(name: str) -> Response:
        if name not in EXAMPLES:
            raise Problem(404, f"there is no example {name[:40]!r}; examples: {', '.join(EXAMPLES)}")
        return _json(messages.instance_object(example(name)))


def _add_work(app: FastAPI, service: Service) -> None:
    limits, searches, read = service.limits, service.searches, service.read

    @app.post("/api/instance")
    async def instance(request: Request, format: str) -> Response:
        return _json(await read(messages.read_file, await request.body(), format, limits))

    @app.post("/api/scores")
    async def scores(request: Request) -> Response:
        given = await read(messages.read_scored, await _json_body(request), limits)
        async with searches.admitted(request.receive) as gone:
            return _json(await searches.run(lambda _: messages.scores_object(*given, limits.edges), gone))

    @app.post("/api/solve")
    async def solve(request: Request) -> Response:
        work = await read(messages.read_work, await _json_body(request), limits)
        async with searches.admitted(request.receive) as gone:
            return _json(await searches.solve(work, gone))

    @app.post("/api/solve/stream")
    async def stream(request: Request) -> Response:
        work = await read(messages.read_work, await _json_body(request), limits)
        return EventStream(searches, work)

    @app.post("/api/export")
    async def export(request: Request, format: str) -> Response:
        text, name = await read(_exported, await _json_body(request), format, limits)
        disposition = f"attachment; filename=\"tour.{format}\"; filename*=UTF-8''{quote(name, safe='')}"
        return Response(text, media_type=EXPORTS[format], headers={"Content-Disposition": disposition})


class EventStream(Response):
    """A search as server-sent events. Whether it is admitted is decided before anything is sent."""

    def __init__(self, searches: Searches, work: messages.Work) -> None:
        super().__init__()
        self._searches, self._work = searches, work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        async with self._searches.admitted(receive) as gone:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            try:
                async for name, content in self._searches.events(self._work, gone):
                    await send(_event(name, content))
            except Left:
                return
            except Problem as problem:
                await send(_event("problem", problem.to_dict()))
            except GeoRouteNetError as error:
                await send(_event("problem", Problem(400, str(error)).to_dict()))
            except Exception:
                await send(_event("problem", Problem(500, "the server failed; its log says where").to_dict()))
                raise
            finally:
                await send({"type": "http.response.body", "body": b"", "more_body": False})


def _event(name: str, content: dict[str, Any]) -> dict[str, Any]:
    data = b"event: %s\ndata: %s\n\n" % (name.encode(), to_json(content))
    return {"type": "http.response.body", "body": data, "more_body": True}


def _json(content: Any) -> Response:
    return Response(to_json(content), media_type="application/json")


async def _json_body(request: Request) -> bytes:
    """The body, which must be called JSON: pages of other hosts cannot do so without being allowed to."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(415, f"expected Content-Type: application/json, got {kind[:60] or 'none'!r}")
    return await request.body()


def _exported(body: bytes, form: str, limits: Limits) -> tuple[str, str]:
    """The text of a file and its name."""
    if form not in EXPORTS:
        raise InputError(f"unknown format {form[:40]!r}; allowed: {', '.join(EXPORTS)}")
    content = messages.read_object(body, ("tour", "closed"), "export")
    instance, closed = messages.read_given(content, limits), content.get("closed", True)
    if not isinstance(closed, bool):
        raise InputError(f"closed must be true or false, got {closed!r:.40}")
    text = format_route(content.get("tour", []), instance, f".{form}", closed=closed)
    return text, f"{safe_name(instance.name)}.{form}"


def _weights() -> list[dict[str, Any]]:
    from georoutenet.policy.weights import read_card

    found = []
    for name, path in packaged_weights().items():
        config, card = read_card(path)
        found.append(
            {
                "name": name,
                "description": card.get("description", ""),
                "encoder": config.encoder,
                "cities": None,
            }
        )
    return found
