"""Routes of the review app: the page, its data as JSON, posters and videos."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import anyio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from vidcurate.curation.report import review_link
from vidcurate.curation.review.access import Access
from vidcurate.curation.review.decide import DecisionRequest, UndoRequest
from vidcurate.curation.review.query import Range
from vidcurate.curation.review.session import Session
from vidcurate.curation.review.transcode_cache import BusyError, TranscodeCache
from vidcurate.curation.review.video_files import Posters, how_played
from vidcurate.errors import InputError, MediaError, StageError, StorageError, VidcurateError
from vidcurate.recipe import recipe as recipes
from vidcurate.recipe.recipe import Recipe
from vidcurate.storage import atomic_file

T = TypeVar("T")
M = TypeVar("M", bound=Recipe)
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_VIDEO_TYPES = {".mp4": "video/mp4", ".m4v": "video/mp4", ".mov": "video/mp4", ".webm": "video/webm"}
_NO_FRAME = (
    b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 160 90">'
    b'<g fill="none" stroke="#8a9099" stroke-width="2">'
    b'<rect x="50" y="20" width="60" height="50" rx="4" stroke-dasharray="5 4"/>'
    b'<path d="M68 33l24 24M92 33L68 57"/></g></svg>'
)
_MOST_BODY_BYTES = 1 << 20
_BODY_SECONDS = 10.0
_QUERY_THREADS, _POSTER_THREADS = 2, 2


class TrialRequest(Recipe):
    """Thresholds to try; `name` saves them as a recipe."""

    limits: dict[str, Range]
    """column → both ends; an end of null asks for nothing"""
    name: str | None = None
    """the recipe's name"""


def static_files() -> dict[str, bytes]:
    """Return name → bytes of the page's files: nothing else is served from the disk by name."""
    folder = files("vidcurate.curation.review").joinpath("static")
    return {
        one.name: one.read_bytes()
        for one in folder.iterdir()
        if one.is_file() and Path(one.name).suffix in _TYPES
    }


class Routes:
    """Handlers of one server. Work on the table runs in threads, so that slow readers hold nobody up."""

    def __init__(self, session: Session, videos: TranscodeCache) -> None:
        self._session, self._transcoded = session, videos
        self._static = static_files()
        self._posters = Posters()
        self._queries = anyio.CapacityLimiter(_QUERY_THREADS)
        self._decoders = anyio.CapacityLimiter(_POSTER_THREADS)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self._queries)

    async def page(self, request: Request) -> Response:
        """Return one of the page's own files."""
        name = request.path_params.get("name", "index.html")
        if name not in self._static:
            return _error(404, f"no page {name}.")
        kind = f"{_TYPES[Path(name).suffix]}; charset=utf-8"
        return Response(self._static[name], headers={"content-type": kind, "cache-control": "no-cache"})

    async def open(self, _: Request) -> Response:
        """Return the page of links from elsewhere: it opens the app from the app's own site."""
        return Response(self._static["open.html"], headers={"content-type": "text/html; charset=utf-8"})

    async def run(self, request: Request) -> Response:
        return _json(await self._in_thread(self._session.describe))

    async def clips(self, request: Request) -> Response:
        query = self._session.parse(request.query_params.get("q", ""))
        offset, limit = _whole(request, "offset", 0), _whole(request, "limit", 60)
        return _json(await self._in_thread(partial(self._session.page, query, offset, limit)))

    async def facets(self, request: Request) -> Response:
        query = self._session.parse(request.query_params.get("q", ""))
        return _json(await self._in_thread(partial(self._session.facets, query)))

    async def histogram(self, request: Request) -> Response:
        query = self._session.parse(request.query_params.get("q", ""))
        name = request.query_params.get("column", "")
        return _json(await self._in_thread(partial(self._session.histogram, query, name)))

    async def clip(self, request: Request) -> Response:
        return _json(await self._in_thread(partial(self._session.clip, request.path_params["row"])))

    async def trial(self, request: Request) -> Response:
        """Return what other thresholds would keep."""
        wanted = await _body(request, TrialRequest)
        return _json(await self._in_thread(partial(self._session.trial, wanted.limits)))

    async def decide(self, request: Request) -> Response:
        """Record a decision; the answer means that it is on the disk."""
        wanted = await _body(request, DecisionRequest)
        return _json(await self._in_thread(partial(self._session.decide, wanted)))

    async def undo(self, request: Request) -> Response:
        """Take a decision back."""
        wanted = await _body(request, UndoRequest)
        return _json(await self._in_thread(partial(self._session.undo, wanted)))

    async def recipe(self, request: Request) -> Response:
        """Return the thresholds as YAML; with a name, also write them to RUN/recipes."""
        wanted = await _body(request, TrialRequest)
        return _json(await self._in_thread(partial(self._session.recipe, wanted.limits, wanted.name)))

    async def poster(self, request: Request) -> Response:
        """Return a still picture of a clip."""
        found = await self._in_thread(partial(self._session.file, request.path_params["row"]))
        if found is None:
            return _error(404, "no file for this clip.")
        async with self._decoders:
            if await request.is_disconnected():  # scrolled away
                return Response(status_code=204)
            try:
                made = await anyio.to_thread.run_sync(partial(self._posters.of, *found))
            except MediaError:  # a broken file is no broken page
                return Response(_NO_FRAME, media_type="image/svg+xml", headers={"cache-control": "no-store"})
        return Response(made, media_type="image/jpeg", headers={"cache-control": "private, max-age=3600"})

    async def video(self, request: Request) -> Response:
        """Return the clip's file as it is, or any range of it, for formats that browsers play."""
        found = await self._in_thread(partial(self._session.file, request.path_params["row"]))
        if found is None or how_played(found[1]) != "file":
            return _error(404, "no file for this clip that a browser plays.")
        kind = _VIDEO_TYPES.get(found[0].suffix.lower(), "application/octet-stream")
        return FileResponse(found[0], media_type=kind, headers={"cache-control": "private, max-age=60"})

    async def transcoded(self, request: Request) -> Response:
        """Return the clip as mp4, transcoded at the first request."""
        found = await self._in_thread(partial(self._session.file, request.path_params["row"]))
        if found is None:
            return _error(404, "no file for this clip.")
        path, clip = found
        try:
            made = await self._transcoded.clip(path, clip.get("start_seconds"), clip.get("end_seconds"))
        except BusyError:
            return _error(503, "too many clips wait for a transcoding; try again.")
        return FileResponse(made, media_type="video/mp4", headers={"cache-control": "private, max-age=60"})


def _json(value: Any, status: int = 200) -> Response:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(
        text.encode("utf-8", "replace"),
        status,
        headers={"content-type": "application/json", "cache-control": "no-store"},
    )


def _error(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status, headers={"cache-control": "no-store"})


def _whole(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.isascii() or not text.isdecimal() or len(text) > 12:
        raise InputError(f"{name}={text[:40]}: a whole number is needed.")
    return int(text)


async def _body(request: Request, model: type[M]) -> M:
    """Return the request's JSON as a `model`; at most 1 MiB, within 10 s. Raises RecipeError, InputError."""
    data = b""
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                data += chunk
                if len(data) > _MOST_BODY_BYTES:
                    raise InputError(f"the request is larger than {_MOST_BODY_BYTES:,} bytes.")
    except TimeoutError as error:
        raise InputError(f"the request did not arrive within {_BODY_SECONDS:g} s.") from error
    return recipes.parse(data.decode("utf-8", "replace"), model, where="request.json")


async def _left(_: Request, __: Exception) -> Response:
    """Answer a browser that left in the midst of its request."""
    return Response(status_code=400)


async def _failed(_: Request, error: Exception) -> Response:
    """Return an error of the project as one line: 409 while a stage writes, 415 for a video, else 400."""
    status = 409 if isinstance(error, StageError) else 415 if isinstance(error, MediaError) else 400
    return _error(status, str(error))


@contextmanager
def _linked(run: Path, port: int | None) -> Iterator[None]:
    """Let RUN/review.html lead to the app on `port`, and to no app afterwards; None: leave the page alone.

    A run that cannot be written is reviewed without such a page. The page of an app that was started later
    stays.
    """
    target, own = run / review_link.PAGE, review_link.page(port)
    if port is not None:
        with suppress(StorageError):
            atomic_file.write_bytes(target, own)
    yield
    with suppress(StorageError, OSError):
        if port is not None and target.read_bytes() == own:
            atomic_file.write_bytes(target, review_link.page(None))


def make_app(
    session: Session, *, token: str, cookie: str, cache: Path, linked_port: int | None = None
) -> Starlette:
    """Return the app of one run. `cache` is the folder of transcoded clips.

    While the app runs, the links of the reports lead to `linked_port`; None: they do not lead to it.
    """
    transcoded = TranscodeCache(cache)
    routes = Routes(session, transcoded)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        with _linked(session.run, linked_port):
            yield
        await transcoded.close()

    return Starlette(
        routes=[
            Route("/", routes.page),
            Route(review_link.OPEN, routes.open),
            Route("/static/{name}", routes.page),
            Route("/api/run", routes.run),
            Route("/api/clips", routes.clips),
            Route("/api/facets", routes.facets),
            Route("/api/histogram", routes.histogram),
            Route("/api/clip/{row:int}", routes.clip),
            Route("/api/trial", routes.trial, methods=["POST"]),
            Route("/api/decide", routes.decide, methods=["POST"]),
            Route("/api/undo", routes.undo, methods=["POST"]),
            Route("/api/recipe", routes.recipe, methods=["POST"]),
            Route("/media/poster/{row:int}", routes.poster),
            Route("/media/file/{row:int}", routes.video),
            Route("/media/transcoded/{row:int}", routes.transcoded),
        ],
        middleware=[Middleware(Access, token=token, cookie=cookie)],
        exception_handlers={VidcurateError: _failed, ClientDisconnect: _left},
        lifespan=lifespan,
    )
