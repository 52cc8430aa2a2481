"""What operators are shown and send: one struct each, behind JSON, the API's description, the CLI and the pages."""
