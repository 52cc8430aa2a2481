"""Settings: flags, then FORENOTICE_* variables, then a TOML file, then defaults."""

from forenotice.settings.loading import (
    AgentSettings,
    DriverSettings,
    EmulatorSettings,
    GuestSettings,
    OperatorSettings,
    Settings,
    load,
    load_agent,
    load_driver,
    load_emulator,
    load_guest,
    load_operator,
)
from forenotice.settings.values import Address, DateForm, Listener, LogFormat, LogLevel, ProxyStyle, SettingError

__all__ = [
    "Address",
    "AgentSettings",
    "DateForm",
    "DriverSettings",
    "EmulatorSettings",
    "GuestSettings",
    "Listener",
    "LogFormat",
    "LogLevel",
    "OperatorSettings",
    "ProxyStyle",
    "SettingError",
    "Settings",
    "load",
    "load_agent",
    "load_driver",
    "load_emulator",
    "load_guest",
    "load_operator",
]
