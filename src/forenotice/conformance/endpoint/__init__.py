"""Judges an endpoint by the protocol, clause by clause, from outside."""
