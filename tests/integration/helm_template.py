# SPDX-License-Identifier: MIT
"""Renders the templates of a Helm chart as far as packaging/kubernetes uses the language: paths below .Values, .Release, .Chart
and ".", texts, `if`, `with` and `else`, toYaml, nindent, default and quote. All else is refused."""

import re
import shlex
import textwrap

import yaml

ACTION = re.compile(r"(\s*\{\{-|\{\{)\s*(.*?)\s*(-\}\}\s*|\}\})", re.S)


class BadTemplate(Exception):
    pass


def parse(text):
    """A list of texts, actions as (words,), and blocks as (keyword, expression, list, list for else)."""
    root = []
    stack, at = [(None, root)], 0
    for found in ACTION.finditer(text):
        stack[-1][1].append(text[at:found.start()])
        at = found.end()
        keyword, _, rest = found[2].partition(" ")
        if keyword in ("if", "with"):
            block = (keyword, rest, [], [])
            stack[-1][1].append(block)
            stack.append((block, block[2]))
        elif keyword in ("else", "end"):
            if len(stack) == 1 or rest:
                raise BadTemplate(f"{found[0]!r} has no block")
            block = stack.pop()[0]
            if keyword == "else":
                stack.append((block, block[3]))
        else:
            stack[-1][1].append((found[2],))
    if len(stack) > 1:
        raise BadTemplate(f"a block of {stack[-1][0][0]} has no end")
    return root + [text[at:]]


def look_up(path, root, dot):
    value = dot
    if path != ".":
        value = root if path.split(".")[1] in root else dot
    for name in filter(None, path.split(".")):
        # As in Helm, what no values tell is empty, but what these objects do not have is a mistake.
        if not isinstance(value, dict) or value is root and name not in root:
            raise BadTemplate(f"{path}: there is no {name}")
        value = value.get(name)
    return value


def as_text(value):
    return {True: "true", False: "false", None: ""}.get(value, str(value)) if not isinstance(value, (dict, list)) else str(value)


FUNCTIONS = {
    "toYaml": lambda value: yaml.safe_dump(value, sort_keys=True).rstrip("\n").removesuffix("\n..."),
    "nindent": lambda width, text: "\n" + textwrap.indent(text, " " * int(width)),
    "default": lambda other, value: value or other,
    "quote": lambda value: f'"{as_text(value)}"',
}


def evaluate(expression, root, dot):
    value = None
    for i, stage in enumerate(expression.split("|")):
        words = [word if not word.startswith(".") else look_up(word, root, dot) for word in shlex.split(stage)]
        words += [value] if i else []
        if isinstance(words[0], str) and not stage.strip().startswith((".", '"')):
            if words[0] not in FUNCTIONS:
                raise BadTemplate(f"{stage.strip()}: is not known here")
            words = [FUNCTIONS[words[0]](*words[1:])]
        if len(words) != 1:
            raise BadTemplate(f"{expression}: more than one value")
        value = words[0]
    return value


def output(nodes, root, dot):
    parts = []
    for node in nodes:
        if isinstance(node, str):
            parts.append(node)
        elif len(node) == 1:
            parts.append(as_text(evaluate(node[0], root, dot)))
        else:
            keyword, expression, then, otherwise = node
            value = evaluate(expression, root, dot)
            inner = value if keyword == "with" and value else dot
            parts.append(output(then if value else otherwise, root, inner))
    return "".join(parts)


def render(text, chart, values, release="brumate", namespace="brumate"):
    """The text that a template gives."""
    root = {"Values": values, "Release": {"Name": release, "Namespace": namespace, "Service": "Helm"},
            "Chart": {key[0].upper() + key[1:]: value for key, value in chart.items()}}
    return output(parse(text), root, root)
