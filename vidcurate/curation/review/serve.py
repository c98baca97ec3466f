"""Serve command: bind a loopback port, print the address, run until Ctrl-C."""

import asyncio
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vidcurate.curation.review.access import cookie_name
from vidcurate.curation.review.session import Session
from vidcurate.curation.review.transcode_cache import FOLDER
from vidcurate.errors import InputError, StorageError

if TYPE_CHECKING:
    import uvicorn

HOST = "127.0.0.1"
PORT = 8765


def bind(port: int | None) -> socket.socket:
    """Return a socket that listens on 127.0.0.1; port 0: a free one; None: 8765, or else a free one.

    Raises StorageError.
    """
    if port is None:
        try:
            return bind(PORT)
        except StorageError:
            return bind(0)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(512)  # from here on a browser that is early waits
    except OSError as error:
        listener.close()
        raise StorageError(
            f"port {port} of {HOST}: cannot be opened ({error.strerror}). Add --port 0 for a free one."
        ) from error
    return listener


async def run_server(server: "uvicorn.Server", listener: socket.socket) -> None:
    """Serve until the server is asked to stop, then close the connections that browsers still hold open."""
    try:
        await server.serve(sockets=[listener])
    finally:
        for connection in list(server.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()  # a paused video waits for its reader
        await asyncio.sleep(0)


def serve_review(
    run: Path,
    *,
    videos: Path | None,
    port: int | None,
    reviewer: str,
    blind_sample: str | None = None,
    announce: Callable[[str], None],
    token: str | None = None,
) -> None:
    """Serve the review of a run on 127.0.0.1 until Ctrl-C.

    `reviewer` is who decides; `blind_sample` is the drawn sample that alone is shown, without verdicts.
    `announce` receives the address with its token once the port is open; `token` None draws a new one.
    Raises InputError when the extra `review` is not installed or `videos` is no folder; MissingError without
    the sample; StageError, TableError, StorageError.
    """
    try:
        import uvicorn

        from vidcurate.curation.review.app import make_app
    except ImportError as error:
        raise InputError(
            f"{error.name} is not installed, and the review app needs it. Run "
            "pip install 'vidcurate[review]'."
        ) from error
    if videos is not None and not videos.is_dir():
        raise InputError(f"{videos}: no such video folder. Set it with --videos FOLDER.")
    session = Session(run, videos, reviewer, blind_sample)
    token = token or secrets.token_urlsafe(24)
    with bind(port) as listener:
        port = listener.getsockname()[1]
        app = make_app(
            session,
            token=token,
            cookie=cookie_name(port),
            cache=run / FOLDER,
            linked_port=port if blind_sample is None else None,
        )
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=2,
                ws="none",
            )
        )
        announce(f"http://{HOST}:{port}/?token={token}")
        asyncio.run(run_server(server, listener))
