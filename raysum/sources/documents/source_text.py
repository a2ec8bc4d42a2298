"""Documents that are written as text with markup: Markdown, LaTeX, reStructuredText, AsciiDoc and notebooks."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from raysum.errors import UserError
from raysum.runtime.extras import needs
from raysum.sources.documents.file_positions import OF_MARKDOWN, find_pieces
from raysum.sources.documents.text import DocumentText, decode_text, join_blocks

if TYPE_CHECKING:
    from markdown_it.tree import SyntaxTreeNode

_FRONT_MATTER = re.compile(r"\A(?:---\n.*?\n(?:---|\.\.\.)|\+\+\+\n.*?\n\+\+\+)\n", re.DOTALL)  # YAML or TOML
_TITLE = re.compile(r"^title\s*[:=]\s*(.+)$", re.MULTILINE | re.IGNORECASE)
_HEADING = "\ue000"  # marks the line of a heading
_LATEX_BODY = re.compile(r"\\begin\{document\}(.*?)(?:\\end\{document\}|\\begin\{thebibliography\}|\Z)", re.DOTALL)
_LATEX_TITLE = re.compile(r"\\title(?:\[[^\]]*\])?\{((?:[^{}]|\{[^{}]*\})*)\}")
_COMMENT = re.compile(r"(?<!\\)%.*")
_HEADINGS = ("part", "chapter", "section", "subsection", "subsubsection", "paragraph")
_CITATIONS = "cite citep citet citealp citealt citeauthor citeyear textcite parencite autocite footcite autoref cref"
_LATEX_ARGUMENTS = {  # of macros that pylatexenc does not know: "{" is a required argument, "[" an optional one
    "href": "[{{",
    "hypertarget": "{{",
    "multicolumn": "{{{",
    "multirow": "{[{[{",
    "resizebox": "*{{{",
    "scalebox": "{{",
    "raisebox": "{[[{",
    "definecolor": "{{{",
    "index": "{",
    "thanks": "{",
    "geometry": "{",
    "bibliographystyle": "{",
    "bibliography": "{",
    "addbibresource": "[{",
    "printbibliography": "[",
}
_LATEX_TEXTS = {  # of macros; %(2)s is the second argument
    "href": "%(3)s",
    "url": "%(1)s",
    "hypertarget": "%(2)s",
    "multicolumn": "%(3)s",
    "multirow": "%(5)s",
    "resizebox": "%(4)s",
    "scalebox": "%(2)s",
    "raisebox": "%(4)s",
    "item": "\n\n%(1)s",
}
_LATEX_DROPPED = (
    "ref eqref label maketitle title author date thanks index includegraphics today definecolor geometry "
    "bibliographystyle bibliography addbibresource printbibliography"
)
_NEW_MACRO = re.compile(  # without arguments
    r"\\(?:(?:re)?newcommand\*?\s*\{?\\([A-Za-z]+)\}?|def\s*\\([A-Za-z]+))\s*\{((?:[^{}]|\{[^{}]*\}){1,200})\}"
)
_ROLE = re.compile(r":[\w:+.-]+:`([^`<]+?)(?:\s*<[^`>]*>)?`")  # of Sphinx, which docutils does not know
_NUMBERED = re.compile(r":(pep|rfc):`(\d+)`")  # roles whose text has the name before the number
_SKIPPED = ("comment", "system_message", "substitution_definition", "target", "docinfo", "raw", "math_block")
# Replacements that make Markdown of AsciiDoc, in this order.
_ASCIIDOC: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (r"(?ms)^/{4,}$.*?^/{4,}$|^//.*?$", ""),  # comments
    (r"(?m)^:[\w!-]+:.*$|^\[.*\]$|^(include|image|toc|video)::.*$", ""),
    (r"(?m)^(-{4,}|\.{4,})$", "```"),
    (r"(?m)^(={4,}|\*{4,}|_{4,}|\+{4,}|--|<<<|'''|\|===)$", ""),
    (r"(?m)^(={1,6})[ \t]+(\S.*)$", lambda found: f"\n{'#' * len(found[1])} {found[2]}\n"),
    (r"(?m)^\.([A-Za-z].*)$", r"\n\1\n"),  # title of a block
    (r"(?m)^[ \t]*(?:[*-]+|\.+)[ \t]+(?=\S)", "\n* "),
    (r"(?m)^(\S[^\n]*?):{2,4}[ \t]*(?:\n[ \t]*)?(?=\S)", r"\n\1\n\n"),  # a term and its description
    (r"(?m)^\|", "\n|"),
    (r"(?m)^(NOTE|TIP|IMPORTANT|WARNING|CAUTION):[ \t]+", ""),
    (r"(?:link:|xref:|mailto:|https?://)[^\s\[\]]*\[([^\]]*)\]", r"\1"),
    (r"<<[^,<>]*,([^<>]*)>>", r"\1"),
    (r"(?:footnote|indexterm\d?|kbd|btn|menu|stem|pass):\w*\[([^\]]*)\]", r" \1"),
    (r"\[[.#][^\]]*\](?=[#*_`])", ""),
    (r"(?<![\w#])#([^#\n]+)#(?!\w)", r"\1"),
    (r" \+$", ""),
]


def read_markdown(content: bytes, name: str) -> DocumentText:
    """Return the text of Markdown. Raises UserError if ``content`` is not text."""
    raw = decode_text(content, name)
    document = render_markdown(raw.replace("\r\n", "\n"))
    return replace(document, pieces=find_pieces(document.text, raw, OF_MARKDOWN))


def render_markdown(source: str, title: str = "") -> DocumentText:
    """Return the paragraphs, items and cells of Markdown without markup, separated by blank lines.

    Without ``title``, the title comes from the front matter or the first heading.
    """
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode

    front = _FRONT_MATTER.match(source)
    front_title = _TITLE.search(front[0]) if front else None
    tokens = MarkdownIt("commonmark").enable("table").parse(source[front.end() if front else 0 :])
    blocks = ((node.type, _block_text(node)) for node in SyntaxTreeNode(tokens).walk())
    document = join_blocks((text, text if kind == "heading" else "") for kind, text in blocks if text)
    heading = document.sections[0][1] if document.sections else ""
    return replace(document, title=title or (front_title[1].strip("\"' ") if front_title else heading))


def _block_text(node: "SyntaxTreeNode") -> str:
    """Return the text of a block, or "" for other nodes. The cells of a table row are one block."""
    if node.type == "tr":
        cells = [_inline_text(cell) for cell in node.children]
        return " | ".join(cells) if any(cells) else ""
    if node.type in ("heading", "paragraph"):
        return _inline_text(node)
    return node.content.strip("\n") if node.type in ("fence", "code_block") and node.content.strip() else ""


def _inline_text(block: "SyntaxTreeNode") -> str:
    breaks = {"softbreak": " ", "hardbreak": "\n"}
    tokens = [token for inline in block.children if inline.token for token in inline.token.children or ()]
    parts = (breaks.get(token.type, token.content * (token.type in ("text", "code_inline"))) for token in tokens)
    return "".join(parts).strip()


def read_latex(content: bytes, name: str) -> DocumentText:
    """Return the text between ``\\begin{document}`` and the bibliography, without citations, labels and comments."""
    latex2text, parsing = needs("pylatexenc.latex2text", name), needs("pylatexenc.macrospec", name)
    source = _with_new_macros(_COMMENT.sub("", decode_text(content, name)))
    body, title = _LATEX_BODY.search(source), _LATEX_TITLE.search(source)
    text_macros = [latex2text.MacroTextSpec(macro, f"\n\n{_HEADING}%(3)s\n\n") for macro in _HEADINGS]
    text_macros += [latex2text.MacroTextSpec(macro, "") for macro in f"{_CITATIONS} {_LATEX_DROPPED}".split()]
    text_macros += [latex2text.MacroTextSpec(macro, text) for macro, text in _LATEX_TEXTS.items()]
    text_macros.append(latex2text.MacroTextSpec("verb", lambda node, **_: node.nodeargd.verbatim_text))
    arguments = dict.fromkeys(_CITATIONS.split(), "*[[{") | dict.fromkeys(_HEADINGS, "*[{") | _LATEX_ARGUMENTS
    macros = [parsing.MacroSpec(macro, each) for macro, each in arguments.items()]
    known = latex2text.get_default_latex_context_db()
    known.add_context_category("raysum", prepend=True, macros=text_macros)
    parsed = needs("pylatexenc.latexwalker", name).get_default_latex_context_db()
    parsed.add_context_category("raysum", prepend=True, macros=macros)
    converter = latex2text.LatexNodes2Text(latex_context=known, math_mode="text", strict_latex_spaces=True)
    macro_text = converter.macro_node_to_text

    def known_text(node: Any) -> str:
        with suppress(LookupError, TypeError, AttributeError):  # the macro has other arguments than the library expects
            return str(macro_text(node))
        return ""

    converter.macro_node_to_text = known_text

    def plain(latex: str) -> str:
        return str(converter.latex_to_text(latex, latex_context=parsed, tolerant_parsing=True))

    lines = (" ".join(block.split()) for block in re.split(r"\n\s*\n", plain(body[1] if body else source)))
    blocks = ((line.strip(_HEADING), line.strip(_HEADING) if _HEADING in line else "") for line in lines)
    return join_blocks((block for block in blocks if block[0]), " ".join(plain(title[1]).split()) if title else "")


def _with_new_macros(source: str) -> str:
    """Replace macros without arguments that a document defines, such as the name of a system, by their text."""
    texts = {found[1] or found[2]: found[3] for found in _NEW_MACRO.finditer(source)}
    if not texts:
        return source
    source = _NEW_MACRO.sub("", source)
    return re.sub(r"\\([A-Za-z]+)(?:\{\}|(?![A-Za-z]))", lambda found: texts.get(found[1], found[0]), source)


def read_rst(content: bytes, name: str) -> DocumentText:
    """Return the text of reStructuredText. It never reads other files."""
    core, nodes = needs("docutils.core", name), needs("docutils.nodes", name)
    settings = {"file_insertion_enabled": False, "raw_enabled": False, "report_level": 5, "halt_level": 6}
    source = _ROLE.sub(r"\1", _NUMBERED.sub(lambda found: f"{found[1].upper()} {found[2]}", decode_text(content, name)))
    tree = core.publish_doctree(source, settings_overrides=settings | {"_disable_config": True})

    def blocks(node: Any) -> Iterator[tuple[str, str]]:
        for part in node.children:
            if part.tagname == "row":
                yield " | ".join(" ".join(cell.astext().split()) for cell in part.children), ""
            elif isinstance(part, nodes.TextElement) and part.tagname not in _SKIPPED:
                text = part.astext() if part.tagname == "literal_block" else " ".join(part.astext().split())
                yield text, text if part.tagname in ("title", "subtitle", "rubric") else ""
            elif part.tagname not in _SKIPPED:
                yield from blocks(part)

    return join_blocks(((text, heading) for text, heading in blocks(tree) if text.strip()), tree.get("title", ""))


def read_asciidoc(content: bytes, name: str) -> DocumentText:
    """Return the text of AsciiDoc, read as the Markdown that has its headings, lists and paragraphs."""
    source = decode_text(content, name).replace("\r\n", "\n")
    for pattern, replacement in _ASCIIDOC:
        source = re.sub(pattern, replacement, source)
    return render_markdown(source)


def read_notebook(content: bytes, name: str) -> DocumentText:
    """Return the Markdown of a Jupyter notebook, with the numbers of its cells. Raises UserError if it is none."""
    try:
        cells = json.loads(decode_text(content, name))["cells"]
        sources = [(n, "".join(cell["source"])) for n, cell in enumerate(cells, 1) if cell["cell_type"] == "markdown"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{name} is not a Jupyter notebook of version 4 ({error}); save it again") from None
    parts = [(number, render_markdown(source)) for number, source in sources]
    title = next((part.title for _, part in parts if part.title), "")
    return join_blocks(((part.text, f"cell {number}") for number, part in parts if part.text), title)
