"""The emulator's page in a browser: the scenario and its timeline, steps, faults, the document, who has called."""
