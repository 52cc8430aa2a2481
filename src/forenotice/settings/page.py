"""The table of settings as the docs show it; `python -m forenotice.settings.page` prints it."""

from forenotice.settings import table


def rows() -> list[str]:
    lines = ["| flag | variable | key in the file | default | meaning |", "|---|---|---|---|---|"]
    for setting in table.everything().values():
        flag = " ".join(part for part in (setting.flag, setting.metavar) if part)
        default = "" if setting.default is None else f"`{setting.default}`"
        if setting.demo is not None:
            default = f"{default or 'none'}, with `--demo` `{setting.demo}`"
        key = f"`{setting.name}`" if setting.in_file else "not in the file"
        lines.append(f"| `{flag}` | `{setting.variable}` | {key} | {default or 'none'} | {setting.help} |")
    return lines


if __name__ == "__main__":
    print("\n".join(rows()))
