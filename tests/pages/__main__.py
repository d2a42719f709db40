"""Writes what is generated into the pages and `grafana/`, but for what needs the CDK, and draws the pictures.

python -m tests.pages
"""

from __future__ import annotations

from tests.pages import grafana, paper_figures, speed
from tests.pages.reference import GENERATED
from tests.pages.sources import DOCS, ROOT, write

for name, lines in GENERATED.items():
    write(name, lines())
for name, text in paper_figures.pictures().items():
    (DOCS / "pictures" / name).write_text(text)
speed.PICTURE.write_text(speed.picture())
for name, text in grafana.files().items():
    (ROOT / "grafana" / name).write_text(text)
