"""Ethernet frames as an attacker writes them, byte by byte."""

import ipaddress
import socket
import struct

BROADCAST = "ff:ff:ff:ff:ff:ff"
NOBODY = "00:00:00:00:00:00"
ALL_NODES = "ff02::1"
REQUEST, REPLY = 1, 2
ROUTER_ADVERT, SOLICIT, ADVERT, REDIRECT = 134, 135, 136, 137
ARP, IPV4, RARP, VLAN, IPV6, LLDP = 0x0806, 0x0800, 0x8035, 0x8100, 0x86DD, 0x88CC
OVERRIDE = 0x2000_0000
SECONDS = 60
"""After which a frame does not come any more."""


def mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def ip(text: str) -> bytes:
    return ipaddress.ip_address(text).packed


def ethernet(source: str, kind: int, payload: bytes, to: str = BROADCAST) -> bytes:
    return (mac(to) + mac(source) + struct.pack("!H", kind) + payload).ljust(60, b"\0")


def tagged(frame: bytes, number: int = 0) -> bytes:
    """The same in a VLAN; 0 is no VLAN, only a priority, and receivers take the tag off."""
    return frame[:12] + struct.pack("!HH", VLAN, number) + frame[12:]


def arp(source: str, sender: str, *, target: str | None = None, operation: int = REPLY, hardware: str = "") -> bytes:
    """By default a gratuitous one; `hardware` is what it says, if not the frame's own source."""
    body = struct.pack("!HHBBH", 1, IPV4, 6, 4, operation) + mac(hardware or source) + ip(sender)
    return ethernet(source, ARP, body + mac(BROADCAST) + ip(target or sender))


def rarp(source: str) -> bytes:
    """As qemu announces a VM after its migration."""
    body = struct.pack("!HHBBH", 1, IPV4, 6, 4, 3) + mac(source) + ip("0.0.0.0") + mac(source) + ip("0.0.0.0")
    return ethernet(source, RARP, body)


def udp(source: str, sender: str, to: str, ports: tuple[int, int], gateway: str = BROADCAST) -> bytes:
    body = struct.pack("!HHHH", *ports, 8, 0)
    if ":" in sender:
        checksum = _sum(ip(sender) + ip(to) + struct.pack("!II", len(body), 17) + body)
        return ethernet(source, IPV6, _ipv6(sender, to, 17, body[:6] + struct.pack("!H", checksum)), gateway)
    return ethernet(source, IPV4, _ipv4(sender, to, 17, body), gateway)


def syn(source: str, sender: str, to: str, ports: tuple[int, int], gateway: str) -> bytes:
    """The first packet of a TCP connection."""
    body = struct.pack("!HHIIBBHHH", *ports, 1, 0, 5 << 4, 2, 65535, 0, 0)
    checksum = struct.pack("!H", _sum(ip(sender) + ip(to) + struct.pack("!II", len(body), 6) + body))
    body = body[:16] + checksum + body[18:]
    if ":" in sender:
        return ethernet(source, IPV6, _ipv6(sender, to, 6, body), gateway)
    return ethernet(source, IPV4, _ipv4(sender, to, 6, body), gateway)


def icmpv6(source: str, sender: str, kind: int, rest: bytes, to: str = ALL_NODES) -> bytes:
    body = struct.pack("!BBH", kind, 0, 0) + rest
    checksum = _sum(ip(sender) + ip(to) + struct.pack("!II", len(body), 58) + body)
    return ethernet(source, IPV6, _ipv6(sender, to, 58, body[:2] + struct.pack("!H", checksum) + body[4:]))


def advert(source: str, sender: str, target: str, to: str = ALL_NODES) -> bytes:
    """Unsolicited, and meant to replace what others know."""
    return icmpv6(source, sender, ADVERT, struct.pack("!I", OVERRIDE) + ip(target) + b"\x02\x01" + mac(source), to)


def bpdu(source: str) -> bytes:
    """By which a bridge claims to be the root of the spanning tree."""
    identity = bytes(2) + mac(source)
    times = struct.pack("!HHHH", 0, 20 * 256, 2 * 256, 4 * 256)
    body = b"\x42\x42\x03" + bytes(5) + identity + bytes(4) + identity + b"\x80\x01" + times
    return ethernet(source, len(body), body, "01:80:c2:00:00:00")


def first_fragment(source: str, sender: str, body: bytes, kind: int) -> bytes:
    """Of an IPv6 packet: no more than 8 bytes; `kind` is the header with which they begin."""
    return ethernet(source, IPV6, _ipv6(sender, ALL_NODES, 44, struct.pack("!BBHI", kind, 0, 1, 7) + body[:8]))


def payload(frame: bytes) -> bytes:
    """What an IPv6 packet carries."""
    return frame[54 : 54 + int.from_bytes(frame[18:20], "big")]


def solicit(source: str, sender: str, target: str) -> bytes:
    return icmpv6(source, sender, SOLICIT, bytes(4) + ip(target))


def link_local(source: str) -> str:
    """The address that belongs to a MAC."""
    raw = mac(source)
    return str(ipaddress.ip_address(ip("fe80::")[:8] + bytes([raw[0] ^ 2]) + raw[1:3] + b"\xff\xfe" + raw[3:]))


def _ipv4(sender: str, to: str, protocol: int, body: bytes) -> bytes:
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 7, 0, 64, protocol, 0) + ip(sender) + ip(to)
    return head[:10] + struct.pack("!H", _sum(head)) + head[12:] + body


def _ipv6(sender: str, to: str, protocol: int, body: bytes) -> bytes:
    return struct.pack("!IHBB", 6 << 28, len(body), protocol, 255) + ip(sender) + ip(to) + body


def _sum(data: bytes) -> int:
    data += bytes(len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def receiver(interface: str, size: int = 1 << 20) -> socket.socket:
    """Sees every frame that arrives at an interface of its namespace, and sends any."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    opened.bind((interface, 0))
    opened.settimeout(SECONDS)
    return opened
