"""How quick it is, side by side with nginx and plain SQLite: `make bench`."""
