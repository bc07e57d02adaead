"""Scripts, styles and pictures: part of this package, and of no other site."""

import hashlib
from pathlib import Path
from typing import Any

from starlette.responses import Response
from starlette.staticfiles import StaticFiles

_FOLDER = Path(__file__).with_name("static")


def _digest() -> str:
    """Of all files, so that another version of them has another address."""
    content = hashlib.sha256()
    for file in sorted(_FOLDER.iterdir()):
        content.update(file.name.encode() + b"\0" + file.read_bytes())
    return content.hexdigest()[:12]


STATIC_PATH = f"/static/{_digest()}"


class Static(StaticFiles):
    """The files, which a browser may keep: what is at an address never changes."""

    def __init__(self) -> None:
        super().__init__(directory=_FOLDER)

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response
