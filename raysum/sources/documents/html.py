"""Web pages: what they tell, without menus, banners and comments."""

from raysum.runtime.extras import needs
from raysum.sources.documents.markdown import rendered
from raysum.sources.documents.text import Text, repaired


def read(content: bytes, name: str) -> Text:
    """The main text of a page, with its headings; all text of a page that is too short to tell what is main.

    Raises UserError where the library that reads pages is not there.
    """
    trafilatura = needs("trafilatura", name)
    page = repaired(content, name) or content
    found = trafilatura.extract(page, output_format="markdown", include_comments=False, include_links=False)
    told = trafilatura.extract_metadata(page)
    title = (told.title if told else None) or ""
    if found:
        return rendered(found, title)
    if not content.strip():
        return Text("", title)
    from lxml.html import HTMLParser, document_fromstring

    deep = HTMLParser(huge_tree=True)  # else what is nested 256 deep is lost
    return Text(" ".join(document_fromstring(page, parser=deep).text_content().split()), title)
