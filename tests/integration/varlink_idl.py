#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A strict reader of varlink interfaces, and a checker of what is said by them.

It takes what https://varlink.org/Interface-Definition allows and nothing else: one namespace for types, methods
and errors, each name given once, each type that is used declared. Run with files, it says what is wrong with them.
"""

import re
import sys

TOKEN = re.compile(r"\s*(?:#[^\n]*(?:\n|$)\s*)*(->|\[string\]|\[\]|[?(),:]|[A-Za-z][A-Za-z0-9_.-]*)")
GAP = re.compile(r"(?:\s|#[^\n]*(?:\n|$))*$")
INTERFACE_NAME = re.compile(r"[A-Za-z](-*[A-Za-z0-9])*(\.[A-Za-z0-9](-*[A-Za-z0-9])*)+$")
MEMBER_NAME = re.compile(r"[A-Z][A-Za-z0-9]*$")
FIELD_NAME = re.compile(r"[A-Za-z](_?[A-Za-z0-9])*$")
KEYWORDS = ("type", "method", "error")
BASIC = {"bool": bool, "int": int, "float": (int, float), "string": str, "object": object}


class Invalid(Exception):
    """An interface that is none, or a value that is not of its type."""


class Interface:
    """name; members: {name: (keyword, fields)}, for a method (keyword, parameters, reply)."""

    def __init__(self, text):
        self.tokens = list(self._split(text))
        self.used = set()
        self.members = {}
        self._take("interface")
        self.name = self._next()
        self._need(INTERFACE_NAME.match(self.name), f"{self.name} is not the name of an interface")
        while self.tokens:
            self._member()
        for name in sorted(self.used):
            self._need(self.members.get(name, [None])[0] == "type", f"type {name} is not declared")

    @staticmethod
    def _need(truth, why):
        if not truth:
            raise Invalid(why)

    @staticmethod
    def _split(text):
        position = 0
        while not GAP.match(text, position):
            token = TOKEN.match(text, position)
            Interface._need(token, f"not a word of an interface: {text[position:position + 40]!r}")
            yield token.group(1)
            position = token.end()

    def _next(self):
        self._need(self.tokens, "it ends too early")
        return self.tokens.pop(0)

    def _take(self, wanted):
        found = self._next()
        self._need(found == wanted, f"{found!r} where {wanted!r} is due")

    def _take_if(self, wanted):
        found = self.tokens[:1] == [wanted]
        if found:
            self.tokens.pop(0)
        return found

    def _member(self):
        keyword, name = self._next(), self._next()
        self._need(keyword in KEYWORDS, f"{keyword!r} is neither of {', '.join(KEYWORDS)}")
        self._need(MEMBER_NAME.match(name), f"{name} is not the name of a {keyword}")
        self._need(name not in self.members, f"{name} is given twice")
        member = [keyword, self._struct(name)]
        if keyword == "method":
            self._take("->")
            member.append(self._struct(name))
        self.members[name] = tuple(member)

    def _struct(self, where):
        """{field: type}, or, for an enum, the list of its values."""
        self._take("(")
        fields, values = {}, []
        while not self._take_if(")"):
            if fields or values:
                self._take(",")
            name = self._next()
            self._need(FIELD_NAME.match(name), f"{where}: {name} is not the name of a field")
            self._need(name not in fields and name not in values, f"{where}: {name} is given twice")
            if self._take_if(":"):
                fields[name] = self._type(f"{where}.{name}")
            else:
                values.append(name)
        self._need(not (fields and values), f"{where} is neither a struct nor an enum")
        return values or fields

    def _type(self, where, optional=True):
        if self._take_if("?"):
            self._need(optional, f"{where}: ? twice")
            return ("?", self._type(where, False))
        for prefix in ("[]", "[string]"):
            if self._take_if(prefix):
                return (prefix, self._type(where))
        if self.tokens[:1] == ["("]:
            return self._struct(where)
        name = self._next()
        if name not in BASIC:
            self._need(MEMBER_NAME.match(name), f"{where}: {name} is not a type")
            self.used.add(name)
        return name

    # What is said by it.
    def check_call(self, method, parameters):
        self._value(self._method(method)[1], parameters, method)

    def check_reply(self, method, parameters):
        self._value(self._method(method)[2], parameters, f"reply of {method}")

    def check_error(self, name, parameters):
        self._need(self.members.get(name, [None])[0] == "error", f"error {name} is not declared")
        self._value(self.members[name][1], parameters, name)

    def _method(self, name):
        self._need(self.members.get(name, [None])[0] == "method", f"method {name} is not declared")
        return self.members[name]

    def _value(self, kind, value, where):
        if isinstance(kind, tuple):
            self._made_of(kind, value, where)
        elif isinstance(kind, list):
            self._need(value in kind, f"{where}: {value!r} is none of {kind}")
        elif isinstance(kind, dict):
            self._fields(kind, value, where)
        elif kind in BASIC:
            self._need(isinstance(value, BASIC[kind]) and value is not None and
                       (kind in ("bool", "object") or not isinstance(value, bool)), f"{where}: {value!r} is no {kind}")
        else:
            self._value(self.members[kind][1], value, where)

    def _made_of(self, kind, value, where):
        prefix, inner = kind
        if prefix == "?":
            if value is not None:
                self._value(inner, value, where)
            return
        self._need(isinstance(value, list if prefix == "[]" else dict), f"{where}: {value!r} is no {prefix}")
        for each in value if prefix == "[]" else value.values():
            self._value(inner, each, where + "[]")

    def _fields(self, fields, value, where):
        self._need(isinstance(value, dict), f"{where}: {value!r} is not an object")
        undeclared = sorted(set(value) - set(fields))
        self._need(not undeclared, f"{where}: not declared: {', '.join(undeclared)}")
        for name, kind in fields.items():
            self._need(name in value or kind[:1] == ("?",), f"{where}: {name} is missing")
            if name in value:
                self._value(kind, value[name], f"{where}.{name}")


def main():
    failed = False
    for path in sys.argv[1:]:
        try:
            with open(path, encoding="utf-8") as file:
                Interface(file.read())
        except Invalid as error:
            print(f"{path}: {error}")
            failed = True
    return failed


if __name__ == "__main__":
    sys.exit(main())
