"""The portal in a real browser. A package, so that the browser is closed as soon as its last test is done."""
