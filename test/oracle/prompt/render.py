"""Renders templates as transformers sets Jinja2 up.

Reads lines {"template": ..., "vars": {...}} and writes lines {"text": ...} or
{"error": ...}.
"""
import functools
import json
import sys

from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


def raise_exception(message):
    raise TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception

compile_template = functools.cache(env.from_string)

for line in sys.stdin:
    case = json.loads(line)
    try:
        answer = {"text": compile_template(case["template"]).render(**case["vars"])}
    except Exception as e:  # any error is the answer
        answer = {"error": type(e).__name__ + ": " + str(e)}
    print(json.dumps(answer), flush=True)
