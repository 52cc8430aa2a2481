"""The command line: operators' commands over the REST API, guests' over the metadata endpoint."""
