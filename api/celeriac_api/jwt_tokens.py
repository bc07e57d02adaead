"""JWTs of another issuer: whose keys are known, for whom they are, and what their claims mean.

Only asymmetric algorithms, those that the settings name: a token never chooses how it is checked,
neither `none` nor a public key taken for a shared secret (RFC 8725, sections 2.1 and 3.1).
"""

import json
import logging
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import jwt

from celeriac.errors import InvalidInput, Unavailable
from celeriac.ids import TenantId, UserId, is_id
from celeriac.settings import Settings
from celeriac_api.caller import Caller

logger = logging.getLogger(__name__)

KEYS_FRESH_SECONDS = 300.0
KEYS_TIMEOUT_SECONDS = 5.0
UNKNOWN_KEY_SECONDS = 10.0
"""A token that names an unknown key makes us look for new ones, but not more often than this."""

_FAR_SECONDS = 32_503_680_000  # the year 3000: no calendar has the greatest that a token may say


class Issuer:
    """Knows the callers of the JWTs that it has issued."""

    def __init__(
        self,
        *,
        jwks_url: str | None,
        jwks_file: str | None,
        issuer: str,
        audience: str,
        algorithms: list[str],
        leeway_seconds: float,
        tenant_claim: str,
        roles_claim: str,
        default_tenant: TenantId,
    ) -> None:
        """Raises `InvalidInput` for a file of keys that cannot be read."""
        self._issuer = issuer
        self._audience = audience
        self._algorithms = algorithms
        self._leeway_seconds = leeway_seconds
        self._tenant_claim = tenant_claim
        self._roles_claim = roles_claim
        self._default_tenant = default_tenant
        self._keys = _Keys(jwks_url, jwks_file)

    @classmethod
    def of_settings(cls, settings: Settings) -> Self:
        """Of settings that name its keys."""
        assert settings.jwt_issuer is not None
        assert settings.jwt_audience is not None
        return cls(
            jwks_url=settings.jwt_jwks_url,
            jwks_file=settings.jwt_jwks_file,
            issuer=settings.jwt_issuer,
            audience=settings.jwt_audience,
            algorithms=settings.jwt_algorithm_names,
            leeway_seconds=settings.jwt_leeway_seconds,
            tenant_claim=settings.jwt_tenant_claim,
            roles_claim=settings.jwt_roles_claim,
            default_tenant=TenantId(settings.jwt_default_tenant),
        )

    def caller(self, token: str) -> Caller | None:
        """Whose token it is; None if it is not good. Raises `Unavailable` if the issuer's keys were
        never seen and cannot be had just now."""
        try:
            claims = self._claims(token)
        except jwt.PyJWTError as error:
            logger.info("a JWT was refused: %s", error)
            return None
        user = claims.get("sub")
        tenant = claims.get(self._tenant_claim, self._default_tenant)
        roles = claims.get(self._roles_claim, [])
        if not (
            isinstance(user, str) and is_id(user) and isinstance(tenant, str) and is_id(tenant)
        ):
            logger.info("a JWT was refused: its user or its tenant is no id of ours")
            return None
        named = roles.split() if isinstance(roles, str) else roles
        if not isinstance(named, list):
            named = []
        known = frozenset(each for each in named if isinstance(each, str))
        until = datetime.fromtimestamp(min(int(claims["exp"]), _FAR_SECONDS), UTC)
        return Caller(TenantId(tenant), UserId(user), known, None, until)

    def _claims(self, token: str) -> dict[str, Any]:
        header = jwt.get_unverified_header(token)
        # Before the key is looked for: nothing of the token's own is to choose how it is checked.
        if header.get("alg") not in self._algorithms:
            raise jwt.InvalidAlgorithmError("the algorithm is not one of those that are allowed")
        key = self._keys.find(header.get("kid"))
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=self._algorithms,
            audience=self._audience,
            issuer=self._issuer,
            leeway=self._leeway_seconds,
            options={"require": ["exp", "iss", "aud", "sub"]},
        )
        return claims


class _Keys:
    """The issuer's public keys, read again now and then, and soon when one is not known."""

    def __init__(self, url: str | None, file: str | None) -> None:
        self._url = url
        self._file = file
        self._lock = threading.Lock()
        self._known: jwt.PyJWKSet | None = None
        self._read_at = 0.0
        if file is not None:
            self._known = self._parsed(self._of_file(file))
            self._read_at = time.monotonic()

    def find(self, kid: object) -> jwt.PyJWK:
        with self._lock:
            age_seconds = time.monotonic() - self._read_at
            if (
                self._known is None
                or age_seconds > KEYS_FRESH_SECONDS
                or (self._named(kid) is None and age_seconds > UNKNOWN_KEY_SECONDS)
            ):
                self._read()
            key = self._named(kid)
        if key is None:
            raise jwt.InvalidKeyError("the issuer has no key of that name")
        return key

    def _named(self, kid: object) -> jwt.PyJWK | None:
        keys = self._known.keys if self._known is not None else []
        if kid is None and len(keys) == 1:
            return keys[0]
        return next((key for key in keys if key.key_id == kid), None)

    def _read(self) -> None:
        self._read_at = time.monotonic()
        try:
            text = self._of_file(self._file) if self._file is not None else self._fetched()
            self._known = self._parsed(text)
        except (InvalidInput, OSError) as error:
            # The keys that are known stay good: an issuer that is away locks nobody out.
            logger.warning("the issuer's keys cannot be read: %s", error)
            if self._known is None:
                self._read_at = 0.0
                raise Unavailable("the issuer of this token cannot be asked just now") from error

    def _fetched(self) -> str:
        import httpx2

        assert self._url is not None
        try:
            response = httpx2.get(self._url, timeout=KEYS_TIMEOUT_SECONDS)
            response.raise_for_status()
        except httpx2.HTTPError as error:
            raise InvalidInput(f"{self._url} does not give them: {error}") from error
        return response.text

    @staticmethod
    def _of_file(file: str) -> str:
        try:
            return Path(file).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"CELERIAC_JWT_JWKS_FILE {file} cannot be read: {error}") from error

    @staticmethod
    def _parsed(text: str) -> jwt.PyJWKSet:
        try:
            return jwt.PyJWKSet.from_dict(json.loads(text))
        except (ValueError, jwt.PyJWTError, AttributeError, TypeError, KeyError) as error:
            raise InvalidInput(f"these are no keys (a JWK set, RFC 7517): {error}") from error
