"""The listening socket."""

import socket

import pytest

from ninfer_server.listener import BindError, bind, url_of


def test_accepted_connections_detect_peers_that_vanished():
    with (
        bind("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        give_up_ms = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert idle + give_up_ms / 1000 <= 20


def test_port_0_takes_a_free_one():
    with bind("127.0.0.1", 0) as one, bind("127.0.0.1", 0) as other:
        assert one.getsockname()[1] > 0
        assert url_of(one) != url_of(other)
        assert url_of(one) == f"http://127.0.0.1:{one.getsockname()[1]}"


def test_url_of_an_ipv6_address_has_brackets():
    if not socket.has_ipv6:
        pytest.skip("this host has no IPv6")
    with bind("::1", 0) as listener:
        assert url_of(listener) == f"http://[::1]:{listener.getsockname()[1]}"


def test_names_are_resolved():
    with bind("localhost", 0) as listener:
        assert listener.getsockname()[0] in ("127.0.0.1", "::1")


def test_taken_address_is_named():
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(BindError, match=f"127.0.0.1:{port}: address in use"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["a..b", "x" * 70])
def test_name_that_cannot_be_one_is_told(host):
    with pytest.raises(BindError, match=r"cannot listen on .* label"):
        bind(host, 0)


def test_port_of_connections_that_just_ended_can_be_taken_again():
    with bind("127.0.0.1", 0) as listener:
        address = listener.getsockname()
        client = socket.create_connection(address)
        # Who closes first keeps the address for a while.
        listener.accept()[0].close()
        client.close()
    bind(*address).close()
