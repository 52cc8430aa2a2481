"""Programs that we run: those of administrators as child processes, our own in the background."""
