"""Somebody at the console without a browser: a client that keeps cookies and fills in forms."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import httpx2

from celeriac.ids import DEFAULT_TENANT
from celeriac_api.console.sessions import COOKIE
from tests.api.server import TIMEOUT_SECONDS, Api


@dataclass
class Form:
    """A form as it stands on a page."""

    action: str
    fields: dict[str, str] = field(default_factory=dict)


class Visitor:
    def __init__(self, http: httpx2.Client) -> None:
        self.http = http

    def sign_in(self, token: str, after: str = "/runs") -> httpx2.Response:
        return self.http.post("/sign-in", data={"token": token, "next": after})

    @property
    def cookie(self) -> str | None:
        return self.http.cookies.get(COOKIE)

    def get(self, path: str) -> httpx2.Response:
        return self.http.get(path)

    def read(self, path: str) -> str:
        """A page that is there."""
        response = self.get(path)
        assert response.status_code == 200, response.text
        return response.text

    def form(self, path: str, action: str, **fields: str) -> Form:
        """The form on that page which goes there and has these fields."""
        (found,) = (
            form
            for form in forms(self.read(path))
            if form.action == action and fields.items() <= form.fields.items()
        )
        return found

    def send(self, form: Form, **changed: str | None) -> httpx2.Response:
        """The form with changes; None leaves a field out."""
        fields = {**form.fields, **changed}
        return self.http.post(
            form.action, data={name: each for name, each in fields.items() if each is not None}
        )

    def decision_form(self, approval_id: str, decision: str) -> Form:
        return self.form(
            f"/approvals/{approval_id}", f"/approvals/{approval_id}/decision", decision=decision
        )


class Visitors:
    """Who visits this API's console."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self._clients = ExitStack()

    def stranger(self, headers: Mapping[str, str] | None = None) -> Visitor:
        client = httpx2.Client(
            base_url=self.api.url,
            headers={"Origin": self.api.url} if headers is None else headers,
            timeout=TIMEOUT_SECONDS,
        )
        return Visitor(self._clients.enter_context(client))

    def signed_in(
        self, user: str = "alice", *roles: str, tenant: str = DEFAULT_TENANT, **more: Any
    ) -> Visitor:
        visitor = self.stranger()
        response = visitor.sign_in(self.api.token(user, *roles, tenant=tenant, **more))
        assert response.status_code == 303, response.text
        return visitor

    def close(self) -> None:
        self._clients.close()


def forms(page: str) -> list[Form]:
    """All forms of a page, with what is filled in."""
    reader = _FormReader()
    reader.feed(page)
    return reader.found


class _FormReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Form] = []
        self._form: Form | None = None
        self._area: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._form = Form(given.get("action", ""))
            self.found.append(self._form)
        elif self._form is not None and tag == "input" and "name" in given:
            self._form.fields[given["name"]] = given.get("value", "")
        elif self._form is not None and tag == "textarea":
            self._area = given["name"]
            self._form.fields[self._area] = ""

    def handle_data(self, data: str) -> None:
        if self._form is not None and self._area is not None:
            self._form.fields[self._area] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            assert self._form is not None
            assert self._area is not None
            text = self._form.fields[self._area]
            # As a browser reads and sends it.
            self._form.fields[self._area] = text.removeprefix("\n").replace("\n", "\r\n")
            self._area = None
        elif tag == "form":
            self._form = None
