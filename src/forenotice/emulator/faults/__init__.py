"""What an endpoint does wrong at times, each under a name, done here on purpose."""
