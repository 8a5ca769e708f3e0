"""Which answers may reach the verifiers of reasoning_gym that evaluate them as Python.

Some of the package's verifiers call `eval`, or SymPy's `parse_expr`, which does the same, on the answer. An answer
comes from a model, so it is parsed here first, and only what is a plain literal, or arithmetic of bounded size, is
passed on. Everything else is no answer that such a task could accept.
"""

from __future__ import annotations

import ast
import math
import re

#: Tasks whose verifier evaluates the answer as a Python literal (a list, a list of lists).
LITERAL_TASKS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
#: Tasks whose verifier evaluates it as an expression.
EXPRESSION_TASKS = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)

_FUNCTIONS = frozenset(
    {
        "exp",
        "log",
        "ln",
        "sqrt",
        "sin",
        "cos",
        "tan",
        "sec",
        "csc",
        "cot",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
    }
    | {"asinh", "acosh", "atanh", "Abs"}
)
_CONSTANTS = frozenset({"pi", "E", "I"})
_SYMBOL = re.compile(r"[A-Za-z]")
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.UAdd, ast.USub)
_MAX_CHARS = 2000
_MAX_NUMBER = 10**12
_MAX_GROWTH = 4096


def may_be_evaluated(task: str, answer: str) -> bool:
    """Whether the verifier of `task` may see `answer`. Always true for tasks that do not evaluate it."""
    if task in LITERAL_TASKS:
        return re.fullmatch(r"[\w\s]*", answer) is not None or _is_literal(answer)
    if task in EXPRESSION_TASKS:
        return _is_arithmetic(answer)
    return True


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return False
    return True


def _is_arithmetic(text: str) -> bool:
    if len(text) > _MAX_CHARS or not text.isascii():
        return False
    try:
        tree = ast.parse(text.strip(), mode="eval")
        return _is_sound(tree.body) and _growth(tree.body) <= _MAX_GROWTH
    except (ValueError, SyntaxError, MemoryError, RecursionError, OverflowError):
        return False


def _is_sound(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=int() | float() as value) if type(value) is not bool:
            return abs(value) <= _MAX_NUMBER
        case ast.Name(id=name):
            return name in _CONSTANTS or _SYMBOL.fullmatch(name) is not None
        case ast.UnaryOp(op=operator, operand=operand):
            return isinstance(operator, _OPERATORS) and _is_sound(operand)
        case ast.BinOp(left=left, op=operator, right=right):
            return isinstance(operator, _OPERATORS) and _is_sound(left) and _is_sound(right)
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]):
            return name in _FUNCTIONS and _is_sound(argument)
    return False


def _growth(node: ast.AST) -> float:
    """A bound on how far the powers in `node` multiply the length of a number; infinite for a tower of powers."""
    inside = max((_growth(child) for child in ast.iter_child_nodes(node)), default=1.0)
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)):
        return inside
    exponent = list(ast.walk(node.right))
    if any(isinstance(part, (ast.Pow, ast.Call)) for part in exponent):
        return math.inf
    numbers = [abs(part.value) for part in exponent if isinstance(part, ast.Constant) and part.value]
    # A number below 1 may stand under a fraction line.
    return _growth(node.left) * math.prod(max(number, 1 / number) for number in numbers)
