"""Keeps the fleet, what happens to it and the journal: one contract, SQLite or PostgreSQL behind it."""
