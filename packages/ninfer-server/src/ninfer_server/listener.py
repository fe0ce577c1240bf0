"""The listening socket, bound before a model is loaded so that a taken port is known at once."""

from __future__ import annotations

import errno
import os
import socket

from ninfer_format.errors import ExitCode, NInferError

_BACKLOG = 2048

# A peer that vanished without closing is found even while nothing is sent to it, in 20 seconds.
_PROBE_AFTER_S = 5
_PROBE_EVERY_S = 5
_GIVE_UP_MS = 15_000


class BindError(NInferError):
    """The server cannot listen where it was told to."""

    code = "bind"
    exit_code = ExitCode.FAILED


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; its connections detect vanished peers.

    Args:
        host: Name or address.
        port: Number of the port; 0 takes a free one.

    Raises:
        BindError: The address is in use, unknown or not allowed.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except UnicodeError as error:
        reason = "the name has an empty label or one of more than 63 characters"
        raise BindError(f"cannot listen on {host}:{port}: {reason}") from error
    except OSError as error:
        raise BindError(f"cannot listen on {host}:{port}: {_reason(error)}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _detect_vanished_peers(listener)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise BindError(f"cannot listen on {host}:{port}: {_reason(error)}") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the base URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _detect_vanished_peers(listener: socket.socket) -> None:
    """Set what accepted connections inherit."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_AFTER_S)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY_S)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _GIVE_UP_MS)


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "address in use"
    if isinstance(error, socket.gaierror):
        return str(error.strerror).lower()
    return os.strerror(error.errno).lower() if error.errno else str(error)
