"""How the schema came to be, step by step. A new step is a file in `versions` and its name in `store.revisions`."""
