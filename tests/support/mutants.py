"""Changes to Python source as upstream makes them: some leave the meaning alone, some take a statement's away.

Each takes the text of a module and a source of randomness and returns another text. None needs to import anything.
"""

import ast
import io
import tokenize

from patcher._layout import Layout


def tokens(text):
    return list(tokenize.generate_tokens(io.StringIO(text).readline))


def splice(text, changes):
    """The text with ``(start, stop, new)`` changes made, offsets being those of the text."""
    for start, stop, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[stop:]
    return text


def _offsets(text):
    layout = Layout(text)
    return layout, lambda place: layout.starts[place[0] - 1] + place[1]  # tokenize counts characters, not bytes


def _some(rng, items, share=0.3):
    return [item for item in items if rng.random() < share]


def add_trailing_comments(text, rng):
    _, at = _offsets(text)
    words = ["  # noqa: E501", "  # type: ignore", " # why: (", "  # '\"", "  # if x is None:", "\t#"]
    ends = [t for t in tokens(text) if t.type == tokenize.NEWLINE]
    bare = [t for t in ends if "#" not in t.line]
    return splice(text, [(at(t.start), at(t.start), rng.choice(words)) for t in _some(rng, bare)])


def add_comment_lines(text, rng):
    layout = Layout(text)
    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.stmt) and layout.opens_line(n)]
    starts = {layout.begin(n) - len(layout.indent(n)): layout.indent(n) for n in nodes}
    picked = _some(rng, sorted(starts.items()), 0.2)
    return splice(text, [(s, s, rng.choice(["\n", f"{i}# return\n", "# x\n", f"{i}#\n\n\n"])) for s, i in picked])


def swap_quotes(text, rng):
    _, at = _offsets(text)
    changes = []
    for t in tokens(text):
        body = t.string[1:-1]
        plain = t.type == tokenize.STRING and len(t.string) > 2 and t.string[0] in "'\""
        if plain and not set(body) & set("'\"\\\n") and rng.random() < 0.5:
            quote = "'" if t.string[0] == '"' else '"'
            changes.append((at(t.start), at(t.end), quote + body + quote))
    return splice(text, changes)


def break_lines(text, rng):
    """Line breaks and spaces where brackets allow them."""
    _, at = _offsets(text)
    changes, depth, inside_string = [], 0, 0
    for t in tokens(text):
        name = tokenize.tok_name[t.type]
        inside_string += (name == "FSTRING_START") - (name == "FSTRING_END")
        if t.type != tokenize.OP or inside_string:
            continue
        depth += (t.string in "([{") - (t.string in ")]}")
        if depth and t.string in "([{," and rng.random() < 0.2:
            changes.append((at(t.end), at(t.end), rng.choice(["\n", "  ", "\n        ", "  # why\n    "])))
    return splice(text, changes)


def add_trailing_commas(text, rng):
    layout = Layout(text)
    ends = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or isinstance(getattr(node, "func", None), ast.JoinedStr):
            continue
        arguments = [*node.args, *(k.value for k in node.keywords)]
        alone = len(arguments) == 1 and isinstance(arguments[0], ast.GeneratorExp)
        before = text[: layout.end(node) - 1].rstrip()
        if arguments and not alone and text[layout.end(node) - 1] == ")" and before[-1] not in "(,#":
            ends.add((layout.end(node) - 1, before[before.rfind("\n") + 1 :]))
    inside = _fstring_spans(text)
    safe = sorted(e for e, line in ends if "#" not in line and not any(a <= e < b for a, b in inside))
    return splice(text, [(e, e, ",") for e in _some(rng, safe)])


def _fstring_spans(text):
    layout = Layout(text)
    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.JoinedStr)]
    return [(layout.begin(n), layout.end(n)) for n in nodes]


def parenthesize_tests(text, rng):
    layout = Layout(text)
    tests = [n.test for n in ast.walk(ast.parse(text)) if isinstance(n, ast.If | ast.While)]
    spans = [(layout.begin(t), layout.end(t)) for t in tests if t.lineno == t.end_lineno]
    return splice(text, [(a, b, f"({text[a:b]})") for a, b in _some(rng, spans)])


def reprint(text, rng):
    """As a formatter that shares nothing with upstream's."""
    return ast.unparse(ast.parse(text)) + "\n"


def carriage_returns(text, rng):
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def rename(old):
    """Renames a local variable wherever it stands as a name."""

    def change(text, rng):
        layout = Layout(text)
        inside = _fstring_spans(text)
        new = rng.choice(["batch", "výsledek", "_out", "output_"])
        names = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name) and n.id == old]
        spans = [(layout.begin(n), layout.end(n)) for n in names]
        if any(a <= s < b for s, _ in spans for a, b in inside):
            return text
        return splice(text, [(a, b, new) for a, b in spans])

    return change


HARMLESS = [
    add_trailing_comments,
    add_comment_lines,
    swap_quotes,
    break_lines,
    add_trailing_commas,
    parenthesize_tests,
    reprint,
]


def statement(text, matches):
    """Layout and body with the one statement of the first function of the first class for which ``matches`` holds."""
    function = ast.parse(text).body[-1].body[-1]
    (index,) = [i for i, node in enumerate(function.body) if matches(node)]
    return Layout(text), function.body, index


def _lines(layout, node):
    first = layout.line_of(layout.begin(node))
    return layout.starts[first], layout.starts[node.end_lineno]


def move(text, rng, matches):
    """Puts the statement elsewhere in the body, never behind its end."""
    layout, body, index = statement(text, matches)
    start, stop = _lines(layout, body[index])
    other, _ = _lines(layout, body[rng.randrange(1, len(body))])
    if start <= other < stop:
        return text
    return splice(text, [(start, stop, ""), (other, other, text[start:stop])])


def remove(text, rng, matches):
    layout, body, index = statement(text, matches)
    start, stop = _lines(layout, body[index])
    return splice(text, [(start, stop, f"{layout.indent(body[index])}pass\n")])


def duplicate(text, rng, matches):
    layout, body, index = statement(text, matches)
    start, stop = _lines(layout, body[index])
    other, _ = _lines(layout, body[rng.randrange(1, index + 1)])
    return splice(text, [(other, other, text[start:stop])])


def nest(text, rng, matches):
    """Makes the statement conditional."""
    layout, body, index = statement(text, matches)
    start, stop = _lines(layout, body[index])
    block = ast.unparse(ast.parse(ast.unparse(body[index])))
    indent = layout.indent(body[index])
    inner = "".join(f"{indent}    {line}\n" for line in block.split("\n"))
    return splice(text, [(start, stop, f"{indent}if {rng.choice(['self', 'True', 'not self'])}:\n{inner}")])


def invert(text, rng, matches):
    """Turns an ``is`` in the statement's test into ``is not``, or a returned value into something done."""
    layout, body, index = statement(text, matches)
    start, stop = _lines(layout, body[index])
    changed = text[start:stop].replace(" is None", " is not None", 1).replace("return ", "yield ", 1)
    return splice(text, [(start, stop, changed)])


HARMFUL = [remove, duplicate, nest, invert]
