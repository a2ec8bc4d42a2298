"""Small PDF files, written by hand."""

import zlib

LONG = "The ferry across the river Sarsu was opened in 1893 by the town of Arden, and it carried forty passengers."


def pdf(*pages, title="Ferries"):
    """A file by hand, as ISO 32000 says: a catalog, its pages, and on each the lines of text from top to bottom."""
    numbers = [4 + 2 * number for number in range(len(pages))]
    kids = " ".join(f"{number} 0 R" for number in numbers)
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Count {len(pages)} /Kids [{kids}] >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, lines in zip(numbers, pages, strict=True):
        shown = "".join(f"({line}) Tj 0 -14 Td " for line in lines)
        stream = zlib.compress(f"BT /F1 11 Tf 50 700 Td {shown}ET".encode()).hex() + ">"
        filters = "/Filter [/ASCIIHexDecode /FlateDecode]"
        font = "/Resources << /Font << /F1 3 0 R >> >>"
        objects.append(f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] {font} /Contents {number + 1} 0 R >>")
        objects.append(f"<< /Length {len(stream)} {filters} >>\nstream\n{stream}\nendstream")
    objects.append(f"<< /Title ({title}) >>")
    body, places = "%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        places.append(len(body))
        body += f"{number} 0 obj\n{content}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    size = len(objects) + 1
    trailer = f"<< /Size {size} /Root 1 0 R /Info {size - 1} 0 R >>"
    start = f"startxref\n{len(body)}\n%%EOF"
    return f"{body}xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n{trailer}\n{start}".encode()
