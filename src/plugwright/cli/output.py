"""YAML as we print it: everything written out, lists indented, texts of several lines as they are."""

import yaml

__all__ = ["Dumper"]


class Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """What begins with a digit is quoted: other readers of YAML take 5e71 for a number."""
    style = "|" if "\n" in text else "'" if text[:1].isdigit() else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Dumper.add_representer(str, _text)
