"""What stands at the top of RESULTS.md: questions, and the sections that answer them."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks import report


def test_a_question_leads_to_its_section_or_says_that_it_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "RESULTS.md"
    report.write(file, [("Expected SLA and cost, before and after", "| a |\n")])
    top, *sections = file.read_text().split("\n## ")
    assert "[Expected SLA and cost, before and after](#expected-sla-and-cost-before-and-after) |" in top
    assert "| Is it fast on S3, and what do its requests cost? | not in this file yet: On an object store |" in top
    assert sections == ["Expected SLA and cost, before and after\n\n| a |\n"]


def test_a_file_that_is_written_again_stays_as_it_is_and_links_to_new_sections(tmp_path: Path) -> None:
    file = tmp_path / "RESULTS.md"
    report.write(file, [("Publishing", "as fast\n")])
    before = file.read_text()
    report.write(file, [])
    assert file.read_text() == before
    report.write(file, [("On an object store", "fast\n")])
    assert "(#on-an-object-store) |" in file.read_text()
    assert file.read_text().count("| question | section |") == 1
