"""Which names of a test stand for the code under test."""

from __future__ import annotations

import ast
import builtins
import sys


def standard_modules(test: str) -> frozenset[str]:
    """Names of modules of the standard library whose attributes a test uses without importing them.

    >>> sorted(standard_modules("assert math.isclose(f(2), 4)"))
    ['math']
    """
    tree = ast.parse(test)
    bases = {
        node.value.id for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    return frozenset((bases & sys.stdlib_module_names) - _bound(tree))


def names_of_code(test: str) -> frozenset[str]:
    r"""Names that a test uses, and that neither it, the builtins nor the standard library's modules define.

    >>> sorted(names_of_code("y = 1\nassert math.isclose(f(y), max(y, 2))"))
    ['f']
    """
    tree = ast.parse(test)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return frozenset(used - _bound(tree) - set(dir(builtins)) - standard_modules(test))


def compares_with_own_values(test: str) -> bool:
    """Whether a test is nothing but comparisons of what the code gives with values that the code has no part in.

    >>> compares_with_own_values("assert twice(square, 3) == 81"), compares_with_own_values("assert f(2) == approx(4)")
    (True, False)
    """
    names = names_of_code(test)

    def is_of_code(operand: ast.expr) -> bool:
        return any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(operand))

    return all(
        isinstance(statement, ast.Assert)
        and isinstance(statement.test, ast.Compare)
        and sum(map(is_of_code, [statement.test.left, *statement.test.comparators])) == 1
        for statement in ast.parse(test).body
    )


def _bound(tree: ast.AST) -> set[str]:
    """Names that are given a value anywhere in the test."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.arg():
                names.add(node.arg)
            case ast.alias():
                names.add((node.asname or node.name).partition(".")[0])
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.add(name)
    return names
