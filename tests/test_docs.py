"""README and docs say what is so: examples run, commands parse, links lead somewhere, the paper map is true."""

import ast
import pydoc
import re
import shlex
import tomllib
from pathlib import Path

import markdown
import pytest
import torch
import yaml

import setwise as sw
import setwise.register as register
from setwise import cli
from setwise.checks import see
from setwise.evaluation.export import export
from setwise.losses.presets import PRESETS
from setwise.paper.recipes import CELLS, recipe
from setwise.recipe import Recipe, to_toml

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
WRITTEN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
PAPER_MAP = (ROOT / "docs" / "paper-map.md").read_text()
MAPPED = PAPER_MAP + (ROOT / "docs" / "differences.md").read_text()
OPTIONAL = {"timm", "torchvision"}  # of the adapters; not among the dev dependencies


def name_of(path):
    return str(path.relative_to(ROOT))


def blocks(text, language=""):
    """The fenced blocks of that language; with no language, text for a shell."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [block for name, block in fenced if name == language]


def python_blocks(path):
    return blocks(path.read_text(), "python")


pytestmark = pytest.mark.usefixtures("registries")


def test_the_readme_example_runs(capsys):
    (whole,) = python_blocks(ROOT / "README.md")
    exec(compile(whole, "README.md", "exec"), {})
    assert float(capsys.readouterr().out) > 0.9


@pytest.fixture
def one_process():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("path", [path for path in PAGES if python_blocks(path)], ids=name_of)
def test_python_on_the_pages_runs(path, tmp_path, monkeypatch):
    torch.manual_seed(0)
    digits = sw.data.load("digits")
    monkeypatch.chdir(tmp_path)
    if "runs/first/encoder" in path.read_text():
        about = {"name": "conv4", "stem": "cifar", "mean": digits.mean, "std": digits.std, "classes": digits.classes}
        encoder = sw.encoders.create("conv4", channels=1).eval()
        export(encoder, about, tmp_path / "runs" / "first" / "encoder", image_shape=(1, 8, 8))
    z_a, z_b = torch.randn(2, 32, 8).unbind()
    known = {"torch": torch, "sw": sw, "z_a": z_a.requires_grad_(), "z_b": z_b, "your_loss": sw.InfoNCE()}
    known |= {"images": digits.images[:64].numpy(), "labels": digits.labels[:64].numpy()}
    for block in python_blocks(path):
        try:
            exec(compile(block, name_of(path), "exec"), known)
        except ModuleNotFoundError as error:
            if error.name not in OPTIONAL:
                raise
    if "same" in known:
        torch.testing.assert_close(torch.from_numpy(known["same"]), known["features"], rtol=1e-4, atol=1e-5)
    assert torch.isfinite(known.get("value", torch.zeros(())))


class Parsed(BaseException):
    """A command has been understood; nothing of it was run."""


@pytest.fixture
def parse(monkeypatch):
    """Give a command to the command line, up to the point where it would begin."""

    def begin(*args, **options):
        raise Parsed

    for place in (
        *("front.pretrain", "runs.choose_device", "runs.export", "demo.run", "views.preview.write_preview"),
        *("paper.report.report", "paper.reproduce.reproduce", "paper.cluster.reproduce", "report.any_runs.report_runs"),
        *(f"data.manage.{x}" for x in ("show_list", "fetch_and_tell", "check_and_tell")),
    ):
        monkeypatch.setattr(f"setwise.{place}", begin)

    def parse(command):
        try:
            cli.main(shlex.split(command)[1:])
        except Parsed:
            pass
        except SystemExit as stopped:
            if stopped.code:  # not that of --help
                raise ValueError(f"expected a command of setwise, got {command}") from stopped

    return parse


def commands(text):
    """Commands in blocks of text and within lines; not those with a word that stands for another."""
    text = text.replace("\\\n", "")
    lines = [line.partition("#")[0].strip() for block in blocks(text) for line in block.splitlines()]
    lines += re.findall(r"`(setwise [^`\n]+)`", text)
    lines = [line.partition(" > ")[0] for line in lines]
    lines = [re.sub(r"^torchrun .* -m setwise\.cli", "setwise", line).replace("$beta", "0.5") for line in lines]
    return [line for line in lines if line.startswith("setwise ") and not re.search(r"\b[A-Z]+\b|\.\.\.|·|…", line)]


@pytest.mark.parametrize("path", WRITTEN, ids=name_of)
def test_commands_parse(path, parse, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(to_toml(recipe("paper/digits-conv4-simclr").tree()))
    for name in ("examples", "results"):  # `setwise reproduce tuned` wants records of trials
        Path(name).symlink_to(ROOT / name)
    registered = "".join(block for block in python_blocks(path) if "@sw.register" in block)
    for command in commands(path.read_text()):
        if own := re.search(r"--use (\w+\.py)", command):
            Path(own[1]).write_text(f"import torch\nimport setwise as sw\n{registered}")
        parse(command)


@pytest.mark.parametrize("path", [path for path in PAGES if blocks(path.read_text(), "toml")], ids=name_of)
def test_toml_on_the_pages_is_read(path):
    for block in blocks(path.read_text(), "toml"):
        table = tomllib.loads(block)
        assert "project" in table or Recipe.read(table)


def test_commands_that_are_wrong_do_not_parse(parse, capsys):
    assert len(commands((ROOT / "docs" / "overview.md").read_text())) > 8
    for wrong in (
        "setwise pretrian",
        "setwise pretrain --beta 1",
        "setwise pretrain --epoch 1",
        "setwise reproduce table7",
        "setwise data fetch",
    ):
        with pytest.raises(ValueError, match="expected a command of setwise"):
            parse(wrong)
    capsys.readouterr()


def test_symbols_and_tests_of_the_paper_map_exist():
    for symbol in set(re.findall(r"`(setwise\.[\w.]+)`", MAPPED)):
        assert pydoc.locate(symbol).__doc__, symbol
    for path, name in set(re.findall(r"`(tests/[\w./]+)::(\w+)`", MAPPED)):
        assert f"\ndef {name}(" in (ROOT / path).read_text(), (path, name)


def map_rows():
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in PAPER_MAP.splitlines() if "|" in line]
    assert [cell.strip("| ") for cell in rows[0]] == ["paper", "what", "symbol", "test", "experiment"]
    return rows[2:]


def test_every_row_of_the_paper_map_has_an_experiment_or_says_why_not(parse):
    for paper, *_, experiment in map_rows():
        found = re.findall(r"`([^`]+)`", experiment)
        assert found or experiment.startswith("none: "), paper
        for command in found:
            if command.startswith("python "):
                assert (ROOT / command.split()[1]).is_file(), command
            else:
                assert commands(f"`{command}`") == [command]
                parse(command)


def test_every_equation_table_and_figure_is_mapped():
    papers = " ; ".join(row[0] for row in map_rows())
    numbers = {
        kind: {int(n) for part in re.findall(rf"{kind} ((?:\d+(?:, )?)+)", papers) for n in re.findall(r"\d+", part)}
        for kind in (r"Eq\.", "Table", r"Alg\.", r"Fig\.", r"Prop\.")
    }
    assert numbers[r"Eq\."] >= set(range(2, 18))
    assert numbers["Table"] == {1, 2, 3, 4}
    assert numbers[r"Alg\."] == numbers[r"Prop\."] == {1, 2}
    assert numbers[r"Fig\."] >= {2, 3}


def test_the_table_of_rooms_names_real_rooms():
    table = (ROOT / "docs" / "architecture.md").read_text().partition("| room | holds |")[2].partition("\n\n")[0]
    names = [
        name for cell in re.findall(r"^\| (.*?) \|", table, flags=re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)
    ]
    assert len(names) > 10
    for name in names:
        assert any((ROOT / "src" / "setwise" / (name + end)).exists() for end in ("", ".py")), name


def anchors(page):
    """What the site's renderer makes of a page's headings."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["markdown_extensions"]
    known = [next(iter(x)) if isinstance(x, dict) else x for x in settings]
    html = markdown.markdown((ROOT / "docs" / page).read_text(), extensions=known)
    return set(re.findall(r'id="([^"]+)"', html))


def test_errors_lead_to_pages_of_the_site_and_of_the_command_line(capsys):
    nav = (ROOT / "mkdocs.yml").read_text()
    links = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "see":
                links.add(ast.literal_eval(node.args[0]))
    assert len(links) > 8
    for link in links:
        page, _, anchor = link.partition("#")
        assert f"{page}.md" in nav
        assert not anchor or anchor in anchors(f"{page}.md"), f"no {anchor} in {page}"
        cli.main(shlex.split(see(link).removeprefix("see ").strip("`"))[1:])
        shown = capsys.readouterr().out
        assert len(shown.splitlines()) > 2, link
        assert "{#" not in shown
    cli.main(["help"])
    listed = capsys.readouterr().out
    assert "errors#resume" in listed
    assert all(path.stem in listed for path in (ROOT / "docs" / "how-to").glob("*.md"))
    with pytest.raises(SystemExit, match="did you mean 'errors#resume'"):
        cli.main(["help", "errors#resum"])


def test_the_reference_has_all_that_is_public():
    pages = (ROOT / "docs" / "reference.md").read_text()
    for module in (sw, sw.functional, sw.assignment):
        for name in module.__all__:
            thing = getattr(module, name)
            if callable(thing):
                whole = re.search(rf"::: {re.escape(thing.__module__)}(\.{name}\n|\n(?!    options))", pages)
                listed = re.search(rf"::: {re.escape(thing.__module__)}\n.*\n.*\b{name}\b", pages)
                assert whole or listed, f"{thing.__module__}.{name}"


def test_pages_of_methods_and_terms_say_when_and_how(parse, tmp_path, monkeypatch, hooks):
    monkeypatch.chdir(tmp_path)
    each = hooks("each")
    pages = {name: each.method_page(name) for name in register.method}
    assert all("**Choose it** " in page for page in pages.values())
    assert "87.6 %" in pages["byol"], "what methods.md says of digits"
    assert "setwise report runs --by method.name" in pages["byol"], "no run is recorded, so how to make some"
    assert "No run" not in pages["rotation"] + pages["pairs"]
    known = {"torch": torch, "sw": sw}
    for name in register.term:
        pages[name] = each.term_page(name)
        assert "**Use it** " in pages[name]
        (block,) = blocks(pages[name], "python")
        exec(compile(block, name, "exec"), known)
        own = register.term[name].fill({})
        made = known["loss"].regularizer
        z = torch.randn(2, 8, 4)
        torch.testing.assert_close(made(*z), register.term[name].make(**own)(*z))
    for page in pages.values():
        assert commands(page)
        for command in commands(page):
            parse(command)


def test_pages_name_real_recipes():
    for path in WRITTEN:
        for name in re.findall(
            r"\b((?:paper|released|modern|setwise|speedrun)/[a-z0-9]+-[a-z0-9-]+)", path.read_text()
        ):
            begins = name.endswith("-") and any(known.startswith(name) for known in CELLS)  # behind --only
            assert begins or name in CELLS or name in PRESETS, (path.name, name)
