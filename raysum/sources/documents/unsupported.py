"""Files that are no documents or rows: what they are by their first bytes, and what to do with them."""

import re

from raysum.sources.documents.text import unicode_encoding

_OCR, _SPEECH = "run OCR on it first", "transcribe it to subtitles (.srt, .vtt) first"
_UNPACK, _PROGRAM = "unpack it", "leave it out"
_KINDS = {  # patterns of first bytes: a name, and advice
    rb"\x89PNG|\xff\xd8\xff|GIF8|II\*\0|MM\0\*|BM.{4}\0{4}|RIFF....WEBP": ("an image", _OCR),
    rb".{4}ftyp(?:heic|heix|mif1|avif)": ("an image", _OCR),
    rb"ID3|\xff[\xfb\xf3\xf2]|OggS|fLaC|RIFF....WAVE|FORM....AIF": ("audio", _SPEECH),
    rb".{4}ftyp|\x1aE\xdf\xa3|RIFF....AVI |FLV": ("audio or video", _SPEECH),
    rb"%!PS": ("PostScript", "convert it with ps2pdf"),
    rb"AT&TFORM": ("DjVu", "convert it with ddjvu to PDF"),
    rb".{60}BOOKMOBI": ("a Kindle book", "convert it to EPUB with ebook-convert"),
    rb"\xd0\xcf\x11\xe0": ("a document of Office 97 to 2003 or Outlook", "save it as .docx, .pptx, .xlsx or .eml"),
    rb"PK\x03\x04": ("a ZIP archive or a document in one", "let its name end in .zip, .docx, .odt, .epub or .pptx"),
    rb"7z\xbc\xaf|Rar!": ("a 7-Zip or RAR archive", _UNPACK),
    rb"\x1f\x8b": ("gzipped", "let its name end in .gz or .tar.gz"),
    rb"BZh|\xfd7zXZ|\x28\xb5\x2f\xfd": ("compressed", _UNPACK),
    rb"PAR1": ("Parquet", "let its name end in .parquet"),
    rb"ARROW1": ("Arrow", "let its name end in .arrow"),
    rb"SQLite format 3": ("an SQLite database", "let its name end in .sqlite"),
    rb"\x89HDF|\x93NUMPY|\x80[\x02-\x05]": ("an array or a pickle", "save its texts as JSON lines"),
    rb"\x7fELF|MZ|\xca\xfe\xba\xbe|\xcf\xfa\xed\xfe": ("a program", _PROGRAM),
    rb"wOF[F2]|\0\x01\0\0\0|OTTO": ("a font", _PROGRAM),
    rb"\xf7\x02": ("TeX's DVI", "give the .tex file or a PDF"),
    rb"%PDF-": ("PDF", "let its name end in .pdf"),
}
_PATTERNS = [(re.compile(pattern, re.DOTALL), *kind) for pattern, kind in _KINDS.items()]


def identify(head: bytes) -> str:
    """Return what a file with these first bytes (at least 128) is, with advice, or "" if it may be text."""
    for pattern, name, advice in _PATTERNS:
        if pattern.match(head):
            return f"{name}; {advice}"
    is_binary = head.count(0) * 20 > len(head) > 16 and not unicode_encoding(head)
    return "binary; save its text as .txt" if is_binary else ""
