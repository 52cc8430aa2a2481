"""Which VM is calling: by listener, by a trusted proxy's proof, by address, or by default, in this order."""

import hashlib
import hmac
import ipaddress
import re
import time
from collections import Counter
from collections.abc import Callable

from forenotice.clock import Clock
from forenotice.core import fleet
from forenotice.limits import Rate
from forenotice.logs import log
from forenotice.metadata import checks, responses
from forenotice.metadata.checks import Head, Proof
from forenotice.metadata.options import Options, Proxy
from forenotice.metadata.published import Guest, PublishedFleet
from forenotice.metadata.responses import Response
from forenotice.settings import ProxyStyle
from forenotice.wire import errors

STRANGERS = "callers that are no VM"
TIME = re.compile(rb"[0-9]{1,12}")
NONCE = re.compile(rb"[!-~]{16,64}")
NONCES = 2**18
"""Nonces that are remembered: enough for 4,000 requests a second of one proxy."""
UNSOUND = "the proxy's proof of the VM is stale or wrong"
NO_NONCE = "X-Forenotice-Nonce must be 16 to 64 printable characters, new for each request"
TOO_MANY = "the proxy has signed more requests within a minute than are remembered: ask less often"
REPLAYED = "the proxy's proof of the VM has been used before: sign each request with a nonce of its own"
NO_SUCH_VM = responses.error(404, "Not found. There is no such VM")


class UnprovenError(Exception):
    """A proxy's proof failed: the request is refused, and no other way to identify the caller is tried."""


class Nonces:
    """Used nonces, until their timestamp is too old to be accepted.

    Proxies share the space, so that a busy one does not lock out others.
    """

    def __init__(self, most: int = NONCES) -> None:
        self._most = most
        self._seen: dict[int, dict[bytes, str]] = {}
        """By second, which proxy used each nonce."""
        self._held: Counter[str] = Counter()

    def take(self, nonce: bytes, at: int, oldest: float, proxy: str) -> None:
        """UnprovenError: the nonce was used. Requests signed before `oldest` are refused anyway."""
        for second in [second for second in self._seen if second < oldest]:
            self._held -= Counter(self._seen.pop(second).values())
        if any(nonce in seen for seen in self._seen.values()):
            raise UnprovenError(REPLAYED)
        if self._held[proxy] >= self._most // len({*self._held, proxy}):
            raise UnprovenError(TOO_MANY)
        self._seen.setdefault(at, {})[nonce] = proxy
        self._held[proxy] += 1


class Callers:
    def __init__(
        self, published: PublishedFleet, options: Options, clock: Clock, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._published = published
        self._proxy = options.proxy
        self.default = options.default_vm
        self._clock = clock
        self._monotonic = monotonic
        self._nonces = Nonces()
        self._log_rate = Rate(1, 10)
        self._log_full_at = 0.0
        self._unlogged = 0
        proof = () if options.proxy is None else checks.PROOFS[options.proxy.style]
        self._proof = {name.lower().encode(): name for name in proof}
        hint = f"a proxy must prove for which it asks, by {', '.join(proof)}"
        self._unnamed = responses.error(404, f"{errors.UNKNOWN_CALLER}: {hint}")

    def trusts(self, address: str | None) -> bool:
        """Whether a metadata proxy calls from there."""
        if self._proxy is None or address is None:
            return False
        caller = ipaddress.ip_address(address)
        return any(caller in network for network in self._proxy.trusted)

    def share(self, address: str) -> str | None:
        """Whose connection limit a caller counts against; None: a trusted proxy, which has no limit.

        A VM has one limit for all its addresses. All callers that are not a VM share one. With a default VM,
        each IPv4 address and each IPv6 /64 has its own.
        """
        if self.trusts(address):
            return None
        found = self._published.by_address.get(address)
        if found is not None:
            return found.name
        if self.default is None:
            return STRANGERS
        caller = ipaddress.ip_address(address)
        return address if caller.version == 4 else str(ipaddress.ip_network(f"{caller}/64", strict=False))

    def known(self, listener_vm: str | None, address: str | None) -> Guest | None:
        """The VM at the other end of a connection, whatever its requests' headers say."""
        published = self._published
        if listener_vm is not None:
            return published.by_name.get(listener_vm)
        found = published.by_address.get(address) if address is not None else None
        if found is None and self.default is not None:
            return published.by_name.get(self.default)
        return found

    def proven(self, proof: Proof, head: Head, proxy: str | None) -> Guest | None:
        """The VM for which a trusted proxy at that address signed this request."""
        assert self._proxy is not None
        if missing := [name for key, name in self._proof.items() if key not in proof]:
            raise UnprovenError(f"the proxy's proof of the VM lacks {', '.join(missing)}")
        if self._proxy.style is ProxyStyle.OPENSTACK:
            instance = proof[b"x-instance-id"]
            _require_signature(self._proxy, instance, proof[b"x-instance-id-signature"])
            return self._published.by_vm_id.get(instance.decode("latin-1").lower())
        name, at, nonce = proof[b"x-forenotice-vm"], proof[b"x-forenotice-time"], proof[b"x-forenotice-nonce"]
        signed = b"\n".join((name, at, nonce, head.method.encode(), head.target))
        _require_signature(self._proxy, signed, proof[b"x-forenotice-signature"])
        now, window = self._clock.outside().timestamp(), self._proxy.window.total_seconds()
        # Only signed values are parsed, and no number that is too long for a time.
        if not TIME.fullmatch(at) or abs(now - int(at)) > window:
            raise UnprovenError(UNSOUND)
        if not NONCE.fullmatch(nonce):
            raise UnprovenError(NO_NONCE)
        self._nonces.take(nonce, int(at), now - window, proxy or "")
        return self._published.by_name.get(name.decode("latin-1"))

    def unknown(self, proof: Proof, *, trusted: bool) -> Response:
        """The response to a caller that is no VM."""
        if proof:
            return NO_SUCH_VM
        return self._unnamed if trusted else responses.UNKNOWN_CALLER

    def log_refusal(self, message: str, action: str, address: str | None) -> None:
        """Log that a caller was refused; during a flood, not each time."""
        now = self._monotonic()
        full_at = self._log_rate.take(self._log_full_at, now)
        if full_at < 0:
            self._unlogged += 1
            return
        self._log_full_at = full_at
        log.warning(message, action=action, address=address, unlogged=self._unlogged)
        self._unlogged = 0


def canonical(host: str) -> str:
    """An address as the fleet writes it; IPv4 always is."""
    return fleet.canonical_address(host) if ":" in host else host


def _require_signature(proxy: Proxy, message: bytes, signature: bytes) -> None:
    expected = hmac.new(proxy.secret, message, hashlib.sha256).hexdigest().encode()
    if not hmac.compare_digest(expected, signature.lower()):
        raise UnprovenError(UNSOUND)
