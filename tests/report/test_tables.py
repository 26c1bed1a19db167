"""Tables on a page: nothing that is nowhere, nothing that is everywhere, and all of it in files."""

import csv
import io

from setwise.report.page import Page
from setwise.report.tables import Table

ROWS = [["a", 1, "yes", None, 2.0], ["b", 1, "yes", None, 3.0], ["c", 1, "yes", None, None]]


def test_a_page_says_once_what_all_rows_share(tree_of):
    page = Page("t")
    Table("x", ("row", "n", "verdict", "paper", "value"), ROWS, "caption").onto(page)
    texts = tree_of(page.html())
    assert texts.texts("strong") == ["caption (verdict: yes)"]
    assert texts.texts("th") == ["row", "n", "value", "a", "b", "c"], "numbers stay, and a column of nothing goes"
    assert texts.texts("td") == ["1", "2.00", "1", "3.00", "1", "-"]


def test_two_rows_keep_what_they_share(tree_of):
    page = Page("t")
    Table("x", ("row", "n", "verdict", "paper", "value"), ROWS[:2], "caption").onto(page)
    assert tree_of(page.html()).texts("td").count("yes") == 2


def test_a_table_without_rows_has_its_columns(tree_of):
    page = Page("t")
    Table("x", ("row", "n"), [], "caption").onto(page)
    assert tree_of(page.html()).texts("th") == ["row", "n"]


def test_a_page_has_the_columns_that_are_shown_and_files_have_all(tree_of):
    table = Table("x", ("row", "n", "verdict", "paper", "value"), ROWS, "caption", shown=("row", "value"))
    page = Page("t")
    table.onto(page)
    assert tree_of(page.html()).texts("th")[:2] == ["row", "value"]
    assert table.brief().markdown().splitlines()[2] == "| row | value |"
    assert table.markdown().splitlines()[2] == "| row | n | verdict | paper | value |"
    assert next(csv.reader(io.StringIO(table.csv()))) == ["row", "n", "verdict", "paper", "value"]
