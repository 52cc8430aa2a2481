"""Control of the emulator over HTTP. Only `listener` is light; the rest is loaded with the first request."""
