"""Which addresses and names mean this machine alone."""

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to that address, or has that name."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_loopback_header(host: str) -> bool:
    """The same of a request's Host header, which may name a port.

    A web page can give its own name the address 127.0.0.1 and then read whatever listens there as
    its own (DNS rebinding). The name in the request still is the page's.
    """
    name, colon, port = host.rpartition(":")
    return is_loopback(name if colon and port.isdigit() else host)
