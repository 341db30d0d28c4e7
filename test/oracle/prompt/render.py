"""Renders templates as transformers sets Jinja2 up, at NOW.

Reads lines {"template": ..., "vars": {...}} and writes lines {"text": ...} or
{"error": ...}.
"""
import datetime
import functools
import json
import sys

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


NOW = datetime.datetime(2026, 3, 7, 14, 5, 9, 1234)


class Generation(Extension):
    """{% generation %}, less the tracking."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(line)

    def _support(self, caller):
        return caller()


def raise_exception(message):
    raise TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
env.globals["strftime_now"] = NOW.strftime

compile_template = functools.cache(env.from_string)

for line in sys.stdin:
    case = json.loads(line)
    try:
        answer = {"text": compile_template(case["template"]).render(**case["vars"])}
    except Exception as e:  # any error is the answer
        answer = {"error": type(e).__name__ + ": " + str(e)}
    print(json.dumps(answer), flush=True)
