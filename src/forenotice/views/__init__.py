"""What operators are shown and send: one struct each, behind JSON, the API's description, the CLI and the pages."""

TYPE_CHECKING = False  # without importing typing
if TYPE_CHECKING:
    from forenotice.views import base, edges, emulator, fleet, history, maintenance, rollouts, subscriptions, tokens

    __all__ = ["base", "edges", "emulator", "fleet", "history", "maintenance", "rollouts", "subscriptions", "tokens"]
else:

    def __getattr__(name: str) -> object:
        # Only when it is used: the help of a command needs no struct.
        from importlib import import_module

        try:
            return import_module(f"{__name__}.{name}")
        except ModuleNotFoundError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
