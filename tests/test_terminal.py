"""Words from outside: shown as they are, steering nothing."""

import pytest

from setwise.cli import main
from setwise.terminal import visible

NAME = "a[bold]b[/c] :smile: \x1b[31m\u202e"
SHOWN = r"a[bold]b[/c] :smile: \x1b[31m\u202e"


def test_what_steers_is_shown_and_letters_stay():
    assert visible("\x00\x1b[0m\x9b\r\t\x7f\u200f") == r"\x00\x1b[0m\x9b\r\t\x7f\u200f"
    for words in ("two\nlines", "dög – 86 % \u3042 \U0001f600", "half \ud800", r"C:\new"):
        assert visible(words) == words


def test_a_folder_of_data_may_have_any_name(tmp_path, capsys):
    root = tmp_path / NAME / "x"
    (root / "cifar10").mkdir(parents=True)
    main(["data", "list", "--root", str(root)])
    assert "".join(SHOWN.split()) in "".join(capsys.readouterr().out.split()), "a title takes several lines"
    with pytest.raises(SystemExit):
        main(["data", "check", "cifar10", "--root", str(root)])
    assert SHOWN in capsys.readouterr().out


def test_errors_show_names_as_they_are(tmp_path, capsys):
    with pytest.raises(SystemExit) as error:
        main(["probe", str(tmp_path / NAME)])
    assert SHOWN in str(error.value)
    assert NAME not in str(error.value)
