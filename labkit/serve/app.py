"""The paths of the server, and what stands behind each."""

import time
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from labkit.engine.engine import Engine
from labkit.errors import LabError, ParameterError
from labkit.models.model import Model
from labkit.runtimes.settings import settings_of
from labkit.serve.answers import ChatAnswer, CompletionAnswer
from labkit.serve.counters import Counters
from labkit.serve.endpoint import Endpoint
from labkit.serve.errors import SERVER, ApiError
from labkit.serve.gate import Gate
from labkit.serve.limits import Limits
from labkit.serve.prepare import Preparation
from labkit.serve.queue import Queue
from labkit.serve.requests import ChatBody, CompletionBody


class App:
    """The ASGI application over one engine. `key`: what clients must show; None for a server of this machine alone."""

    def __init__(self, engine: Engine, limits: Limits, key: str | None = None) -> None:
        if not isinstance(engine.model, Model):
            raise ParameterError(f"{engine.model.name} is a shape without a tokenizer's texts; serve a model's file")
        self.engine, self.limits = engine, limits
        self.counters = Counters()
        self.queue = Queue(engine, limits.queue, self.counters)
        self._created = int(time.time())
        name, tokenizer = engine.model.name, engine.model.tokenizer
        rest = (self.queue, Preparation(engine, tokenizer), limits, {str(engine.model.path): name})
        completions = Endpoint(CompletionBody, partial(CompletionAnswer, name, tokenizer), *rest)
        chat = Endpoint(ChatBody, partial(ChatAnswer, name, tokenizer), *rest)
        routes = [
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name}", self.model),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
        ]
        app = Starlette(routes=routes, exception_handlers={HTTPException: _refuse, ApiError: _tell, Exception: _broken})
        app.router.redirect_slashes = False
        self.asgi = Gate(
            app,
            key=key,
            paths=[route.path for route in routes],
            open=["/health"],
            counters=self.counters,
            limits=limits,
        )

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        return JSONResponse({"object": "list", "data": [self._model]})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME."""
        asked = request.path_params["name"]
        if asked != self.engine.model.name:
            raise ApiError(404, f"The model '{asked[:80]}' does not exist.", param="model", code="model_not_found")
        return JSONResponse(self._model)

    async def health(self, request: Request) -> Response:
        """GET /health: 200 while requests are taken, else 503."""
        try:
            self.engine.alive()
        except LabError:
            return JSONResponse({"status": "the engine has stopped"}, 503)
        if self.queue.stopping:
            return JSONResponse({"status": "stopping"}, 503)
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """GET /metrics."""
        text = self.counters.text(self.engine, self.queue.taken, self.queue.capacity)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    @property
    def _model(self) -> dict[str, object]:
        engine = self.engine
        return {
            "id": engine.model.name, "object": "model", "created": self._created, "owned_by": "labkit",
            "max_model_len": engine.context, "settings": settings_of(engine),
        }  # fmt: skip


async def _tell(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response


async def _broken(request: Request, error: Exception) -> Response:
    """A fault of the server; the gate logs it."""
    return ApiError(500, "The server had an error; its log says which.", type=SERVER).response


async def _refuse(request: Request, error: Exception) -> Response:
    """A path that is not there, or a method that it does not take."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"Not allowed to {request.method[:20]} on {path}: it takes {allowed}."
        return ApiError(405, message, code="method_not_allowed", headers={"Allow": allowed}).response
    return ApiError(error.status_code, f"Invalid URL ({request.method[:20]} {path})", code="unknown_url").response
