"""Mutants that mean the same: a rewrite must fit each of them as it fits what was published.

Every generator takes a subject and a random source and yields (kind, text, (old name, new name) or None). What it
yields has been proved harmless where a proof is possible: a layout mutant parses to the very tree of the original.
"""

from __future__ import annotations

import ast
import random
import tokenize
from collections.abc import Callable, Iterator

from tools.drift_subject import Site, Subject, depths, splice

Mutant = tuple[str, str, tuple[str, str] | None]


def mutants(subject: Subject, random_source: random.Random) -> Iterator[Mutant]:
    """Yields every meaning-preserving mutant of a subject."""
    for kind, change in LAYOUT.items():
        text = _layout(subject, change, random_source)
        if text is not None:
            yield kind, text, None
    yield "mixed", _mixed(subject, random_source), None
    yield "CRLF", subject.text.replace("\n", "\r\n"), None
    yield "decoy class", _decoy(subject), None
    for site in subject.sites:
        for text in (*_swapped(subject, site), *_neighbours(subject, site)):
            yield "moved lines", text, None
        yield from _renamed(subject, site, random_source)
        yield from _same_line(subject, site)
        if not site.structural:
            yield "inner decoy", _inner_decoy(subject, site), None


def _layout(subject: Subject, change: Callable[[Subject, random.Random], str], source: random.Random) -> str | None:
    """Makes one layout mutant; None where nothing changed or, seldom, the change was no mere layout."""
    text = change(subject, source)
    if text == subject.text:
        return None
    try:
        same = ast.dump(ast.parse(text)) == ast.dump(subject.tree)
    except SyntaxError:
        return None
    return text if same else None


def reformatted(subject: Subject, source: random.Random) -> str:
    """The tree printed anew: no comments, one quote style, one line a statement."""
    return ast.unparse(subject.tree) + "\n"


def tabs(subject: Subject, source: random.Random) -> str:
    """The same, indented by tabs."""
    plain = Subject(reformatted(subject, source), subject.rewrite)
    changes = []
    for token in _logical_starts(plain):
        start = plain.starts[token.start[0] - 1]
        changes.append((start, start + token.start[1], "\t" * (token.start[1] // 4)))
    return splice(plain.text, changes)


def comments(subject: Subject, source: random.Random) -> str:
    """Comments on lines of their own and at the ends of lines, inside brackets too."""
    changes, commented = [], {token.start[0] for token in subject.tokens if token.type == tokenize.COMMENT}
    for token, depth in depths(subject.tokens):
        ends = token.type == tokenize.NEWLINE or (token.type == tokenize.NL and depth)
        if ends and token.start[0] not in commented and source.random() < 0.5:
            place = subject.offset(*token.start)
            note = source.choice(("  # noqa: E501", "  # type: ignore[arg-type]", "  # if processing_class is None:"))
            changes.append((place, place, note))
    for token in _logical_starts(subject):
        if source.random() < 0.3:
            start = subject.starts[token.start[0] - 1]
            changes.append((start, start, " " * token.start[1] + "# return output\n"))
    return splice(subject.text, changes)


def quotes(subject: Subject, source: random.Random) -> str:
    """The other quotes, and strings cut into two that stand side by side."""
    changes = []
    for token in subject.tokens:
        text = token.string
        if token.type != tokenize.STRING or text[0] not in "\"'" or text[:3] in ('"""', "'''"):
            continue
        body, mark = text[1:-1], {'"': "'", "'": '"'}[text[0]]
        if set(body) & set("\\\"'"):
            continue
        cut = len(body) // 2
        halves = len(body) > 4 and source.random() < 0.2 and depth_at(subject, token)
        new = f"{mark}{body[:cut]}{mark} {mark}{body[cut:]}{mark}" if halves else f"{mark}{body}{mark}"
        changes.append((subject.offset(*token.start), subject.offset(*token.end), new))
    return splice(subject.text, changes)


def depth_at(subject: Subject, wanted: tokenize.TokenInfo) -> int:
    """Number of brackets open at a token."""
    return next(depth for token, depth in depths(subject.tokens) if token is wanted)


def commas(subject: Subject, source: random.Random) -> str:
    """Trailing commas added where there are none and removed where there are."""
    by_end = {subject.offset(*token.end): token for token in subject.tokens}
    changes = []
    for node in ast.walk(subject.function):
        filled = node.args or node.keywords if isinstance(node, ast.Call) else getattr(node, "elts", None)
        if not filled or not isinstance(node, ast.Call | ast.List | ast.Set) or source.random() < 0.3:
            continue
        if isinstance(node, ast.Call) and any(isinstance(part, ast.GeneratorExp) for part in node.args):
            continue
        closing = by_end.get(subject.span(node)[1])
        if closing is None:
            continue
        before = _significant_before(subject, closing)
        place = subject.offset(*before.end)
        changes.append((place - 1, place, "") if before.string == "," else (place, place, ","))
    return splice(subject.text, dict.fromkeys(changes))


def blank_lines(subject: Subject, source: random.Random) -> str:
    """Empty lines, some with white space, between statements."""
    changes = []
    for token in _logical_starts(subject):
        if source.random() < 0.4:
            start = subject.starts[token.start[0] - 1]
            changes.append((start, start, source.choice(("\n", "\n\n", "    \n"))))
    return splice(subject.text, changes)


def line_breaks(subject: Subject, source: random.Random) -> str:
    """Line breaks inside brackets."""
    changes, inside = [], 0
    for token, depth in depths(subject.tokens):
        name = tokenize.tok_name[token.type]
        inside += (name == "FSTRING_START") - (name == "FSTRING_END")
        if not inside and depth and token.type == tokenize.OP and token.string in "([{," and source.random() < 0.4:
            place = subject.offset(*token.end)
            changes.append((place, place, "\n" + " " * source.randrange(0, 20)))
    return splice(subject.text, changes)


def joined_lines(subject: Subject, source: random.Random) -> str:
    """Brackets over several lines put on one."""
    changes, commented = [], {token.start[0] for token in subject.tokens if token.type == tokenize.COMMENT}
    for token, depth in depths(subject.tokens):
        line = token.start[0]
        if token.type == tokenize.NL and depth and line not in commented:
            stop = subject.starts[line]
            stop += len(subject.text[stop:]) - len(subject.text[stop:].lstrip(" "))
            changes.append((subject.offset(*token.start), stop, " "))
    return splice(subject.text, changes)


def continued(subject: Subject, source: random.Random) -> str:
    """Lines continued with a backslash."""
    changes = []
    for token, depth in depths(subject.tokens):
        if not depth and token.string in ("is", "and", "or", "=", "==") and source.random() < 0.7:
            place = subject.offset(*token.end)
            changes.append((place, place, " \\\n        "))
    return splice(subject.text, changes)


def parentheses(subject: Subject, source: random.Random) -> str:
    """Tests and values in brackets that they do not need."""
    changes = []
    for node in ast.walk(subject.function):
        part = getattr(node, "test" if isinstance(node, ast.If) else "value", None)
        if isinstance(node, ast.If | ast.Return | ast.Assign | ast.Expr) and isinstance(part, ast.expr):
            start, stop = subject.span(part)
            if source.random() < 0.6 and subject.text[start:stop].strip():
                changes += [(start, start, "("), (stop, stop, ")")]
    return splice(subject.text, changes)


LAYOUT: dict[str, Callable[[Subject, random.Random], str]] = {
    "reformatted": reformatted,
    "tabs": tabs,
    "comments": comments,
    "quotes": quotes,
    "trailing commas": commas,
    "blank lines": blank_lines,
    "line breaks": line_breaks,
    "joined lines": joined_lines,
    "backslashes": continued,
    "parentheses": parentheses,
}


def _mixed(subject: Subject, source: random.Random) -> str:
    """Several layout changes on top of each other."""
    for change in source.sample((comments, quotes, commas, blank_lines, line_breaks, parentheses), 4):
        subject = Subject(_layout(subject, change, source) or subject.text, subject.rewrite)
    return subject.text.replace("\n", "\r\n") if source.random() < 0.5 else subject.text


def _logical_starts(subject: Subject) -> Iterator[tokenize.TokenInfo]:
    """Yields the first token of every logical line."""
    fresh = True
    for token in subject.tokens:
        if token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            fresh = True
        elif fresh and token.type not in (tokenize.NL, tokenize.COMMENT, tokenize.ENDMARKER, tokenize.ENCODING):
            fresh = False
            yield token


def _significant_before(subject: Subject, token: tokenize.TokenInfo) -> tokenize.TokenInfo:
    index = subject.tokens.index(token) - 1
    while subject.tokens[index].type in (tokenize.NL, tokenize.COMMENT):
        index -= 1
    return subject.tokens[index]


def _decoy(subject: Subject) -> str:
    """The same function in another class, before and after the real one."""
    *_, name = subject.rewrite.qualname.split(".")
    body = [ast.parse(ast.unparse(subject.function)).body[0]]
    decoy = ast.ClassDef("Decoy", [], [], body, [])
    text = ast.unparse(ast.fix_missing_locations(decoy))
    return f"{text}\n\n\n{subject.text.rstrip()}\n\n\n{text.replace('Decoy', f'Decoy_{name}', 1)}\n"


def _inner_decoy(subject: Subject, site: Site) -> str:
    """The anchored statement again, in a function within the function: that is another function."""
    first = subject.function.body[0]
    indent = subject.indent(first)
    copy = ast.unparse(site.node).replace("\n", f"\n{indent}    ")
    place = subject.lines(first)[1] if ast.get_docstring(subject.function) is not None else subject.lines(first)[0]
    return splice(subject.text, [(place, place, f"{indent}def _inner():\n{indent}    {copy}\n")])


def _swapped(subject: Subject, site: Site) -> Iterator[str]:
    """The anchored statement and an independent one beside it, in the other order."""
    if site.structural:
        return
    for other in (site.index - 1, site.index + 1):
        if not 0 <= other < len(site.block):
            continue
        first, second = sorted((site.node, site.block[other]), key=lambda node: node.lineno)
        if independent(first, second) and subject.alone(first) and subject.alone(second):
            one, two = subject.lines(first), subject.lines(second)
            yield splice(subject.text, [(*one, subject.text[slice(*two)]), (*two, subject.text[slice(*one)])])


def independent(first: ast.stmt, second: ast.stmt) -> bool:
    """Whether neither statement binds what the other uses, and neither leaves the block."""
    leave = (ast.Return, ast.Raise, ast.Break, ast.Continue)
    if any(isinstance(part, leave) for node in (first, second) for part in ast.walk(node)):
        return False
    return not (_bound(first) & _used(second) or _bound(second) & _used(first))


def _bound(node: ast.AST) -> set[str]:
    stored = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    return stored | {
        part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
    }


def _used(node: ast.AST) -> set[str]:
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return names | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def _neighbours(subject: Subject, site: Site) -> Iterator[str]:
    """New statements that have nothing to do with the anchor, right before and right after it."""
    if not subject.alone(site.node):
        return
    line = f"{subject.indent(site.node)}_unrelated = len('if processing_class is None: return output')\n"
    start, stop = subject.lines(site.node)
    yield splice(subject.text, [(start, start, line)])
    if not isinstance(site.node, ast.Return | ast.Raise):
        yield splice(subject.text, [(stop, stop, line)])


def _same_line(subject: Subject, site: Site) -> Iterator[Mutant]:
    """Another statement on the anchored statement's own line."""
    if site.structural or not subject.alone(site.node) or hasattr(site.node, "body"):
        return
    start, stop = subject.span(site.node)
    yield "same line", splice(subject.text, [(start, start, "pass; ")]), None
    yield "same line", splice(subject.text, [(stop, stop, "; pass")]), None


def _renamed(subject: Subject, site: Site, source: random.Random) -> Iterator[Mutant]:
    """A local variable that stands in or beside the anchored statement, under another name throughout the function."""
    mine = locals_of(subject.function)
    around = site.block[max(0, site.index - 2) : site.index + 3]
    near = sorted({name for node in around for name in _used(node)} & mine - _used(site.node))
    for name in (*sorted(_used(site.node) & mine)[:3], *source.sample(near, min(2, len(near)))):
        new = f"{name}_under_a_new_name"
        places = [n for n in ast.walk(subject.function) if isinstance(n, ast.Name) and n.id == name]
        text = splice(subject.text, {(*subject.span(node), new) for node in places})
        yield "renamed local", text, (name, new)


def locals_of(function: ast.FunctionDef) -> set[str]:
    """Names that a function binds by assignment alone and that no text inside an f-string or inner scope binds too."""
    stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    other: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            other.add(node.arg)
        elif isinstance(node, ast.alias):
            other.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler):
            other.add(node.name or "")
        elif isinstance(node, ast.Global | ast.Nonlocal):
            other |= set(node.names)
        elif isinstance(node, ast.JoinedStr):  # positions in there are not to be relied on before Python 3.12
            other |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return stored - other
