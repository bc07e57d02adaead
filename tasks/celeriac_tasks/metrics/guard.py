"""Who may read a process's figures: whoever knows the token, or asks from this machine itself."""

import hmac
from collections.abc import Mapping

from pydantic import SecretStr

from celeriac.loopback import is_loopback, is_loopback_header

_OF_PROXIES = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
CHALLENGE = 'Bearer realm="celeriac-metrics"'


def may_read(token: SecretStr | None, peer: str, headers: Mapping[str, str]) -> bool:
    """Whether a request from the address `peer` with these headers may. Their names are in small
    letters.

    The token is CELERIAC_METRICS_TOKEN. Without it this machine alone may, under its own name and
    past no proxy, as far as the request shows one.
    """
    given = headers.get("authorization", "")
    if token is not None and given:
        expected = f"Bearer {token.get_secret_value()}"
        return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())
    is_direct = not any(name in headers for name in _OF_PROXIES)
    return is_direct and is_loopback(peer) and is_loopback_header(headers.get("host", ""))
