"""What a client is told went wrong, in the shape of OpenAI's API: one JSON object, whatever the cause."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from starlette.responses import JSONResponse, Response

from labkit.errors import LabError, ParameterError

INVALID, SERVER, BUSY = "invalid_request_error", "server_error", "requests"
MOST_CHARACTERS = 600  # of a message; what a client sent is not sent back to it whole


class ApiError(Exception):
    """An answer other than 200: its HTTP status and the four fields of OpenAI's error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.type, self.param, self.code = status, type, param, code
        self.message = message if len(message) <= MOST_CHARACTERS else message[:MOST_CHARACTERS] + " ..."
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object a client gets."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    @property
    def response(self) -> Response:
        """The whole answer."""
        return JSONResponse(self.body, self.status, headers=self.headers)


def of_lab_error(error: LabError, hidden: Mapping[str, str]) -> ApiError:
    """A client's own mistake is 400 in the engine's words; anything else is 500. `hidden`: texts to put another for, such
    as the path of the model's file."""
    text = str(error)
    for secret, shown in hidden.items():
        text = text.replace(secret, shown)
    if isinstance(error, ParameterError):
        return ApiError(400, text, code="invalid_value")
    return ApiError(500, text, type=SERVER)


def of_validation(error: ValidationError) -> ApiError:
    """The first thing wrong with a body, named as OpenAI's server names it."""
    first = error.errors(include_url=False, include_input=False)[0]
    kind, place, message = first["type"], _place(first["loc"]), first["msg"].removeprefix("Value error, ")
    if kind == "json_invalid":
        return ApiError(400, f"The body is not valid JSON: {message.removeprefix('Invalid JSON: ')}.")
    if kind == "missing":
        return ApiError(400, f"Missing required parameter: '{place}'.", param=place, code="missing_required_parameter")
    if kind == "extra_forbidden":
        return ApiError(400, f"Unknown parameter: '{place}'.", param=place, code="unknown_parameter")
    if not place:
        return ApiError(400, f"{message}." if kind == "value_error" else "The body is not a JSON object.")
    code = (
        "invalid_type" if kind.endswith("_type") else "unsupported" if "not supported" in message else "invalid_value"
    )
    return ApiError(400, f"Invalid value for '{place}': {message}.", param=place, code=code)


def _place(parts: tuple[int | str, ...]) -> str:
    """Where it is, as `messages.0.role`; without the names of the types that were tried."""
    kept: list[str] = []
    for part in parts:
        if isinstance(part, str) and kept and (part == "str" or "[" in part or "-" in part):
            break
        kept.append(str(part)[:80])
    return ".".join(kept)
