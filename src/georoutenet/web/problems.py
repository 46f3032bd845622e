"""Errors as clients see them: problem details (RFC 9457), without a traceback."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

RETRY_SECONDS = 1
"""After which a client that was sent away may come again."""


class Problem(Exception):
    """An answer other than the one asked for."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail

    def to_dict(self) -> dict[str, Any]:
        return {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }

    def response(self) -> Response:
        headers = {"Retry-After": str(RETRY_SECONDS)} if self.status in (429, 503) else None
        return Response(to_json(self.to_dict()), self.status, headers, "application/problem+json")


FAILED = Problem(500, "the server failed; its log says where")


def to_json(value: Any) -> bytes:
    """JSON in which no number is infinite; text that is no Unicode is escaped."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
