"""Who is calling: by listener, by a trusted proxy's word, by address, or by default, in this order."""

import hashlib
import hmac
import ipaddress
import time

import structlog

from notbefore.clock import Clock
from notbefore.metadata.board import Board, Guest
from notbefore.metadata.gates import Proof
from notbefore.metadata.options import Options, Proxy
from notbefore.metadata.rate import Rate
from notbefore.settings import ProxyStyle

log = structlog.get_logger()


class UnprovenError(Exception):
    """A proxy's proof failed; the request is refused and no other way to know the caller is tried."""


class Callers:
    def __init__(self, board: Board, options: Options, clock: Clock) -> None:
        self._board = board
        self._proxy = options.proxy
        self._default = options.default_vm
        self._clock = clock
        self._log_rate = Rate(1, 10)
        self._log_full_at = 0.0
        self._unlogged = 0

    def trusts(self, address: str | None) -> bool:
        """Whether a metadata proxy calls from there."""
        if self._proxy is None or address is None:
            return False
        caller = ipaddress.ip_address(address)
        return any(caller in network for network in self._proxy.trusted)

    def known(self, listener_vm: str | None, address: str | None) -> Guest | None:
        """Who calls from a connection, its requests' headers apart."""
        board = self._board
        if listener_vm is not None:
            return board.by_name.get(listener_vm)
        found = board.by_address.get(address) if address is not None else None
        if found is None and self._default is not None:
            return board.by_name.get(self._default)
        return found

    def proven(self, proof: Proof) -> Guest | None:
        """Whom a trusted proxy asks for."""
        assert self._proxy is not None
        if self._proxy.style is ProxyStyle.OPENSTACK:
            instance = proof.get(b"x-instance-id", b"")
            _require_signature(self._proxy, instance, proof.get(b"x-instance-id-signature", b""))
            return self._board.by_vm_id.get(instance.decode("latin-1").lower())
        name, at = proof.get(b"x-notbefore-vm", b""), proof.get(b"x-notbefore-time", b"")
        _require_signature(self._proxy, b"%b\n%b" % (name, at), proof.get(b"x-notbefore-signature", b""))
        # Only what is signed is read.
        if not at.isdigit() or abs(self._clock.now().timestamp() - int(at)) > self._proxy.window.total_seconds():
            raise UnprovenError
        return self._board.by_name.get(name.decode("latin-1"))

    def complain(self, message: str, action: str, address: str | None) -> None:
        """A line on a caller that was refused; not one for each of a flood."""
        now = time.monotonic()
        full_at = self._log_rate.take(self._log_full_at, now)
        if full_at < 0:
            self._unlogged += 1
            return
        self._log_full_at = full_at
        log.warning(message, action=action, address=address, unlogged=self._unlogged)
        self._unlogged = 0


def canonical(host: str) -> str:
    """An address as the fleet writes it: without a zone, and an IPv4 address as such on an IPv6 socket."""
    if ":" not in host:
        return host
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _require_signature(proxy: Proxy, message: bytes, signature: bytes) -> None:
    expected = hmac.new(proxy.secret, message, hashlib.sha256).hexdigest().encode()
    if not hmac.compare_digest(expected, signature.lower()):
        raise UnprovenError
