"""Tokens of another issuer: checked by its keys, for us, in time, and by no other algorithm."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from celeriac.errors import InvalidInput
from celeriac.settings import load_settings
from celeriac_api import jwt_tokens
from celeriac_storage.database import Database
from tests.api.server import Api, problem, serving

ISSUER, AUDIENCE = "https://login.example", "celeriac"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PEM = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def jwks(*, with_new: bool = False) -> dict[str, Any]:
    algorithm = jwt.algorithms
    keys = [
        {**algorithm.RSAAlgorithm.to_jwk(RSA.public_key(), as_dict=True), "kid": "rsa"},
        {**algorithm.ECAlgorithm.to_jwk(EC.public_key(), as_dict=True), "kid": "ec"},
    ]
    if with_new:
        new = algorithm.RSAAlgorithm.to_jwk(OTHER.public_key(), as_dict=True)
        keys.append({**new, "kid": "new"})
    return {"keys": keys}


def signed(key: Any = RSA, algorithm: str = "RS256", kid: str | None = "rsa", **more: Any) -> str:
    now = int(time.time())
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": now + 60, "iat": now, **more}
    present = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(present, key, algorithm, headers=None if kid is None else {"kid": kid})


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps(jwks()))
    return {"jwt_jwks_file": str(file), "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE}


@pytest.fixture
def api(database: Database, settings: dict[str, Any]) -> Iterator[Api]:
    with serving(database, **settings) as api:
        yield api


def test_a_good_token_is_its_subject_in_its_tenant_with_its_roles(api: Api) -> None:
    own = api.person("olga", "operator")  # ours go on beside it

    as_alice = api.holder_of(signed())
    as_operator = api.holder_of(signed(roles=["operator", "singer"], tenant="rival"))
    by_ec = api.holder_of(signed(EC, "ES256", "ec", roles="user operator"))

    assert as_alice.get("/v1/runs").status_code == 200
    assert problem(as_alice.get("/v1/runs?user_id=bob")) == (403, "role-missing")
    assert api.denials() == [("alice", "http.list_runs", "/v1/runs")]
    for person in (as_operator, by_ec, own):
        assert person.get("/v1/runs?user_id=bob").status_code == 200
    assert problem(as_operator.get("/v1/runs/r1")) == (404, "unknown-run")
    assert api.rows("SELECT tenant_id, actor, detail -> 'token' FROM celeriac.audit"
                    " WHERE tenant_id = 'rival'") == [("rival", "alice", None)]  # fmt: skip


def test_a_token_that_is_not_good_opens_nothing(api: Api) -> None:
    now = int(time.time())
    none = jwt.encode({"iss": ISSUER, "aud": AUDIENCE, "sub": "a", "exp": now + 60}, "", "none")
    header, payload, signature = signed().split(".")
    bad = {
        "expired": signed(exp=now - 31),
        "not yet good": signed(nbf=now + 60),
        "without an end": signed(exp=None),
        "for somebody else": signed(aud="another"),
        "for nobody": signed(aud=None),
        "of somebody else": signed(iss="https://evil.example"),
        "of nobody": signed(iss=None),
        "without a subject": signed(sub=None),
        "whose subject is no id": signed(sub="a b"),
        "whose tenant is no id": signed(tenant=["default"]),
        "whose tenant is two": signed(tenant="default,rival"),
        "signed by another key": signed(OTHER),
        "with a key that is not known": signed(OTHER, kid="new"),
        "with no key named": signed(kid=None),
        "by an algorithm that is not allowed": signed(RSA, "RS512"),
        "not signed": none,
        "with the public key as a secret": hmac_signed(PEM),
        "of one key, by the other's algorithm": signed(EC, "ES256", "rsa"),
        "with a changed payload": f"{header}.{payload[:-2]}AA.{signature}",
        "cut": f"{header}.{payload}",
        "no token": "x.y.z",
    }

    answers = {name: api.holder_of(token).get("/v1/runs") for name, token in bad.items()}

    assert {name: problem(answer) for name, answer in answers.items()} == dict.fromkeys(
        bad, (401, "unauthenticated")
    )
    assert api.holder_of(signed(exp=now - 20)).get("/v1/runs").status_code == 200  # leeway


def test_keys_are_fetched_and_new_ones_found(
    database: Database, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwt_tokens, "UNKNOWN_KEY_SECONDS", 0.0)
    served: dict[str, Any] = {"keys": None}
    with jwks_server(served) as url:
        settings = {**settings, "jwt_jwks_file": None, "jwt_jwks_url": url}
        with serving(database, **settings) as api:
            before = api.holder_of(signed()).get("/v1/runs")
            served["keys"] = jwks()
            after = api.holder_of(signed()).get("/v1/runs")
            unknown = api.holder_of(signed(OTHER, kid="new")).get("/v1/runs")
            served["keys"] = jwks(with_new=True)
            rotated = api.holder_of(signed(OTHER, kid="new")).get("/v1/runs")
            served["keys"] = None
            still_known = api.holder_of(signed()).get("/v1/runs")

    assert problem(before) == (503, "unavailable")
    assert (after.status_code, unknown.status_code) == (200, 401)
    assert (rotated.status_code, still_known.status_code) == (200, 200)


@pytest.mark.parametrize(
    "changed",
    [
        {"jwt_issuer": None},
        {"jwt_audience": None},
        {"jwt_jwks_file": None},
        {"jwt_jwks_url": "https://login.example/keys"},
        {"jwt_algorithms": "HS256"},
        {"jwt_algorithms": "none"},
        {"jwt_algorithms": "RS256,HS256"},
    ],
)
def test_settings_that_would_let_anybody_in_are_refused(
    settings: dict[str, Any], changed: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput, match="cannot be used"):
        load_settings(**{**settings, **changed})


def hmac_signed(secret: bytes) -> str:
    """What PyJWT would not sign itself: HS256 with a public key as its secret."""
    import base64
    import hashlib
    import hmac

    def part(value: bytes) -> bytes:
        return base64.urlsafe_b64encode(value).rstrip(b"=")

    header = part(json.dumps({"alg": "HS256", "typ": "JWT", "kid": "rsa"}).encode())
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": int(time.time()) + 60}
    signed_part = header + b"." + part(json.dumps(claims).encode())
    signature = hmac.new(secret, signed_part, hashlib.sha256).digest()
    return (signed_part + b"." + part(signature)).decode()


@contextmanager
def jwks_server(served: dict[str, Any]) -> Iterator[str]:
    """Serves `served["keys"]` on loopback, or an error while that is None."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys = served["keys"]
            self.send_response(200 if keys else 500)
            self.end_headers()
            self.wfile.write(json.dumps(keys).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/keys"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
