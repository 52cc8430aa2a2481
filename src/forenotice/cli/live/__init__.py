"""What `forenotice watch` shows: what it knows of the server, and how that looks."""
