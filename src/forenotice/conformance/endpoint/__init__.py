"""Judges an endpoint by PROTOCOL.md, clause by clause, from outside."""
