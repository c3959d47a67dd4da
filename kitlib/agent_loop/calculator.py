"""The shipped tool: a calculator that reads numbers, brackets and + - * / // % ** and nothing else.

What it is given was written by a model, so it is data: it is parsed into a syntax tree and walked, never evaluated as
Python, and every number on the way has a largest size. A wrong expression is answered with a line that begins with
"error:", short and in lower case: a shipped model spends a token a character and knows no capitals.

Stands where verl users put a function tool of their own (verl 0.9.1: multi_turn.function_tool_path).
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable

from kitlib.agent_loop.tools import function_tool

Number = int | float

MAX_LENGTH = 100  # characters of an expression
MAX_DIGITS = 30  # of any number, so that 9**9**9 is refused before it is computed

_ALLOWED = re.compile(r"[0-9+\-*/%(). ]+")
_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


class _ExpressionError(ValueError):
    """Says in words what is wrong with an expression."""


@function_tool
async def calculator(expression: str) -> str:
    """Compute an arithmetic expression.

    Args:
        expression: numbers, brackets and + - * / // % **, for example "12*59".
    """
    try:
        return _as_text(evaluate(expression))
    except _ExpressionError as error:
        return f"error: {error}"


def evaluate(expression: str) -> Number:
    """The value of an expression. Raises a ValueError that says what is wrong with it, for the model to read."""
    if not isinstance(expression, str) or not _ALLOWED.fullmatch(expression):
        raise _ExpressionError("not an expression")
    if len(expression) > MAX_LENGTH:
        raise _ExpressionError("too long")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise _ExpressionError("not an expression") from None
    except ZeroDivisionError:
        raise _ExpressionError("division by zero") from None
    except OverflowError:
        raise _ExpressionError("too large") from None


def _value(node: ast.expr) -> Number:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):  # the allowed characters spell no bool
        return _bounded(node.value)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            _check_power(left, right)
        return _bounded(_BINARY[type(node.op)](left, right))
    raise _ExpressionError("not an expression")


def _check_power(base: Number, exponent: Number) -> None:
    """Powers are the one operator whose result can be huge, so its digits are counted before it is computed."""
    if base < 0 and not float(exponent).is_integer():
        raise _ExpressionError("root of a negative number")
    if base and exponent * math.log10(abs(base)) > MAX_DIGITS:
        raise _ExpressionError("too large")


def _bounded(number: Number) -> Number:
    if not abs(number) < 10**MAX_DIGITS:  # false for nan as well
        raise _ExpressionError("too large")
    return number


def _as_text(number: Number) -> str:
    """708 for 708 and for 708.0; at most 12 digits of a fraction."""
    return str(int(number)) if float(number).is_integer() else format(number, ".12g")
