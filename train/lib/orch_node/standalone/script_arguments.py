"""Print the arguments that a script's parser knows, as JSON: `python script_arguments.py SCRIPT`.

The script runs until it parses its arguments with argparse, or with a parser derived from it such as transformers'
HfArgumentParser. Other parsers get --help, which ends the script. It needs Python 3.7 or newer and no packages.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
from typing import Any

TYPES = {int: "integer", float: "number"}
HF_SWITCH = "string_to_bool"  # the type of a bool in transformers' parser


def main() -> None:
    """Run the script of the command line up to its parser."""
    script = sys.argv[1]
    output = os.dup(1)
    os.dup2(2, 1)  # what the script prints

    def stop(parser: argparse.ArgumentParser, *args: Any, **options: Any) -> None:
        os.write(output, json.dumps(describe(parser)).encode())
        os._exit(0)

    argparse.ArgumentParser.parse_known_args = stop  # type: ignore[method-assign,assignment]
    argparse.ArgumentParser.parse_args = stop  # type: ignore[method-assign,assignment]
    sys.argv = [script, "--help"]
    sys.path[0] = os.path.dirname(script)
    runpy.run_path(script, run_name="__main__")


def describe(parser: argparse.ArgumentParser) -> dict[str, dict[str, Any]]:
    """Return the options of a parser by name, without the dashes."""
    options: dict[str, dict[str, Any]] = {}
    negations: dict[str, str] = {}
    for action in parser._actions:
        names = [name[2:] for name in action.option_strings if name.startswith("--")]
        negated = [name for name in names if name.startswith(("no_", "no-")) and (len(names) > 1 or action.nargs == 0)]
        names = [name for name in names if name not in negated]
        for name in negated:
            negations.setdefault(action.dest, name)
        if names and not isinstance(action, (argparse._HelpAction, argparse._VersionAction)):
            name = next((name for name in names if "_" in name), names[0])
            options[name] = {**describe_action(action), "negation": action.dest}
    for option in options.values():
        option["negation"] = negations.get(option["negation"], "") if option["type"] == "flag" else ""
    return options


def describe_action(action: argparse.Action) -> dict[str, Any]:
    """Return the type, default, description and choices of an option."""
    kind = "flag" if action.nargs == 0 else TYPES.get(action.type, "text")  # type: ignore[call-overload]
    is_switch = getattr(action.type, "__name__", "") == HF_SWITCH
    has_default = isinstance(action.default, (str, int, float)) and action.default != argparse.SUPPRESS
    return {
        "type": "switch" if is_switch else kind,
        "default": action.default if has_default else None,
        "description": " ".join((action.help or "").split()).replace("%%", "%"),
        "needs_value": is_switch and action.nargs is None,
        "choices": [str(getattr(choice, "value", choice)) for choice in action.choices or ()],
    }


if __name__ == "__main__":
    main()
