"""The routes of the service. What they promise is in ``georoutenet.web``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from georoutenet import __version__
from georoutenet.errors import GeoRouteNetError
from georoutenet.io.packaged import packaged_weights
from georoutenet.problem.generate import uniform
from georoutenet.web import describe, messages
from georoutenet.web.examples import EXAMPLES
from georoutenet.web.guard import LOG, Guard
from georoutenet.web.limits import Limits
from georoutenet.web.problems import FAILED, Problem, to_json
from georoutenet.web.searches import Searches, import_all
from georoutenet.web.slots import Admission, Left

STATIC = Path(__file__).parent / "static"
SMALL = 64 << 10
"""Bytes of a body that is read at once: 1,000 cities."""
DESCRIPTION = "Short tours through cities: a neural policy, a local search, and what the network thinks."
Value = TypeVar("Value")


class Service:
    """What the routes share: the limits, the searches, and two threads that read bodies.

    Parsing holds Python's lock, so more threads would not be faster; but a small body must not wait for large
    ones. ``folder`` holds the locks by which several processes share the limits; one alone needs none.
    """

    def __init__(self, limits: Limits | None = None, folder: Path | None = None) -> None:
        self.limits = limits or Limits()
        self.searches = Searches(self.limits, Admission(self.limits, folder))
        self._small, self._large = (ThreadPoolExecutor(1, f"reader-{size}") for size in ("small", "large"))

        self.loaded = False

    def load(self) -> None:
        """In the background: requests are answered meanwhile."""
        try:
            load(self.limits)
            self.loaded = True
        except Exception as error:
            LOG.error("loading failed: %s", error)  # it is about files of ours

    async def read(self, function: Callable[..., Value], body: bytes, *arguments: Any) -> Value:
        """``function(body, ...)`` in a thread."""
        reader = self._small if len(body) <= SMALL else self._large
        return await asyncio.get_running_loop().run_in_executor(reader, function, body, *arguments)


def create_app(service: Service, *, origins: tuple[str, ...] = (), warm: bool = True) -> ASGIApp:
    """The service as an ASGI application.

    ``origins`` are pages of other hosts that may use the service. ``warm`` loads the network beside the first
    requests.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if warm:
            threading.Thread(target=service.load, daemon=True).start()
        yield
        service.searches.close()

    app = FastAPI(
        title="GeoRouteNet",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    handlers: dict[type[Exception], Callable[[Request, Any], Response]] = {
        Problem: lambda _, error: error.response(),
        GeoRouteNetError: lambda _, error: Problem(400, str(error)).response(),
        HTTPException: lambda _, error: Problem(error.status_code, str(error.detail)).response(),
        Left: lambda *_: Response(status_code=499),
        Exception: lambda *_: FAILED.response(),
    }
    for error, handler in handlers.items():
        app.add_exception_handler(error, handler)
    _add_pages(app, service)
    _add_information(app, service)
    _add_work(app, service)
    guarded: ASGIApp = Guard(app, service.limits)
    if origins:
        guarded = CORSMiddleware(
            guarded, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["Content-Type"]
        )
    return guarded


def load(limits: Limits | None = None) -> None:
    """Load, and where need be compile, everything that a first request would wait for."""
    import_all()
    import torch

    from georoutenet.search.local_search import compile_kernels
    from georoutenet.solver.api import available_cores, solve
    from georoutenet.solver.stages import warm_up

    torch.set_num_threads(max(1, available_cores() // (limits or Limits()).searches))
    warm_up()
    for path, matrix in product((False, True), repeat=2):
        compile_kernels(path=path, matrix=matrix, crossed=True)
    for n in (48, 200):  # both forms of the network
        solve(uniform(1, n, 0)[0], first="network", improve=False, views=1)
    solve(uniform(1, 400, 0)[0], decoder="greedy", improve=False)


def _add_pages(app: FastAPI, service: Service) -> None:
    app.mount("/static", StaticFiles(directory=STATIC), name="static")

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def playground() -> Response:
        return FileResponse(STATIC / "index.html")

    @app.get("/api", include_in_schema=False)
    async def description(request: Request) -> Response:
        address = str(request.base_url).rstrip("/")
        return HTMLResponse(describe.page(app.openapi(), service.limits, address))


def _add_information(app: FastAPI, service: Service) -> None:
    @app.get("/healthz")
    async def health() -> Response:
        """Whether the server answers, its version, and whether all that requests need has been loaded."""
        return _json({"status": "ok", "version": __version__, "loaded": service.loaded})

    @app.get("/api/limits")
    async def limits() -> Response:
        """What a request may ask for, and how many searches run and wait at a time."""
        return _json(service.limits.to_dict())

    @app.get("/api/weights")
    async def weights() -> Response:
        """The weights of the network that can be named, and the sizes that each was trained on."""
        return _json(await service.read(_weights, b""))

    @app.get("/api/examples")
    async def examples() -> Response:
        """Instances to begin with, and the lengths of their shortest tours where these are proven."""
        return _json([each.to_dict() for each in EXAMPLES.values()])

    @app.get("/api/examples/{name}")
    async def one_example(name: str) -> Response:
        """An instance, as /api/solve takes it."""
        if name not in EXAMPLES:
            raise Problem(404, f"there is no example {name[:40]!r}; examples: {', '.join(EXAMPLES)}")
        return _json(messages.instance_object(EXAMPLES[name].make()))


def _add_work(app: FastAPI, service: Service) -> None:
    limits, searches, read = service.limits, service.searches, service.read

    @app.post("/api/instance", openapi_extra=describe.file_body())
    async def instance(request: Request) -> Response:
        """The instance in a file, whose content is the body."""
        form = request.query_params.get("format", "")
        return _json(await read(messages.read_file, await request.body(), form, limits))

    @app.post("/api/scores", openapi_extra=describe.scores_body())
    async def scores(request: Request) -> Response:
        """What the network thinks: undirected edges with their probabilities, and the first city's."""
        given = await read(messages.read_scored, await _json_body(request), limits)
        async with searches.admitted(request.receive) as client:
            return _json(await searches.run(lambda _: messages.scores_object(*given, limits.edges), client))

    @app.post("/api/solve", openapi_extra=describe.solve_body(limits))
    async def solve(request: Request) -> Response:
        """A short tour, its length, and a lower bound. A client that leaves stops its search."""
        work = await read(messages.read_work, await _json_body(request), limits)
        async with searches.admitted(request.receive) as client:
            return _json(await searches.solve(work, client))

    @app.post("/api/solve/stream", openapi_extra=describe.solve_body(limits))
    async def stream(request: Request) -> Response:
        """The same search as server-sent events: first, tour, bound, and in the end done or problem."""
        work = await read(messages.read_work, await _json_body(request), limits)
        return EventStream(searches, work)

    @app.post("/api/export", openapi_extra=describe.export_body(tuple(messages.EXPORTS)))
    async def export(request: Request) -> Response:
        """A tour as a file."""
        form = request.query_params.get("format", "")
        text, name = await read(messages.exported, await _json_body(request), form, limits)
        disposition = f"attachment; filename=\"tour.{form}\"; filename*=UTF-8''{quote(name, safe='')}"
        data = text.encode("utf-8", "backslashreplace")  # as files are written
        return Response(data, media_type=messages.EXPORTS[form], headers={"Content-Disposition": disposition})


class EventStream(Response):
    """A search as server-sent events. Whether it is admitted is decided before anything is sent."""

    def __init__(self, searches: Searches, work: messages.Work) -> None:
        super().__init__()
        self._searches, self._work = searches, work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        async with self._searches.admitted(receive) as client:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            try:
                async for name, content in self._searches.events(self._work, client):
                    await send(_event(name, content))
            except Left:
                return
            except Problem as problem:
                await send(_event("problem", problem.to_dict()))
            except GeoRouteNetError as error:
                await send(_event("problem", Problem(400, str(error)).to_dict()))
            except Exception:
                await send(_event("problem", FAILED.to_dict()))
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


@cache
def _weights(_: bytes) -> list[dict[str, Any]]:
    import_all()
    from georoutenet.policy.weights import read_card

    listed = []
    for name, path in packaged_weights().items():
        config, card = read_card(path)
        recipe = card.get("recipe", {})
        sizes = [part["n"] for part in recipe.get("mix") or [recipe] if "n" in part]
        listed.append(
            {
                "name": name,
                "description": card.get("description", ""),
                "encoder": config.encoder,
                "cities": [min(sizes), max(sizes)] if sizes else None,
            }
        )
    return listed
