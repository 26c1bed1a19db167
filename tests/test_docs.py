"""README and docs say what is so: examples run, commands parse, links lead somewhere, the paper map is true."""

import ast
import importlib.util
import json
import pydoc
import re
import shlex
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace

import markdown
import pytest
import torch
import yaml
from PIL import Image
from scipy.stats import t as student

import setwise as sw
import setwise.records as records
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
    Path("examples").symlink_to(ROOT / "examples")
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


def hooks(name="hooks"):
    specification = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_picture_shows_what_the_page_says():
    made = hooks("pictures")
    for turn in made.TURNS:
        a, b = made.turned_sets(turn)
        assert made.by_structure(a, b).optimal
        assert made.by_structure(a, b).permutation.tolist() == list(range(9))
        assert (sw.match(a, b).accuracy < 0.5) == (turn >= 40)
        assert float(made.alignments(turn)["gap"]) < 0.01
    picture = made.alignment_picture()
    assert picture.count("<circle") == picture.count("<rect") == 18
    assert picture.count('line class="wrong"') == 9 - round(9 * sw.match(*made.turned_sets()).accuracy) == 7
    assert made.on_page_markdown((ROOT / "docs" / "idea.md").read_text()).count("<svg") == 2


def test_the_picture_turns_in_a_browser(shown):
    made = hooks("pictures")
    turn = 'const i = document.getElementById("sets-turn"); i.value = 150; i.dispatchEvent(new Event("input"));'
    page = shown(f"<meta charset=utf-8>{made.alignment_picture()}<script>{turn}</script>")
    found = made.alignments(150)
    assert f'<b id="sets-pairwise">{found["pairwise"]}</b>' in page
    assert '<b id="sets-linear-right">0</b>' in page
    assert '<b id="sets-quadratic-right">9</b>' in page
    assert page.count('class="wrong"') == page.count('class="right"') == 9
    x, y = found["b"][0]
    assert f'x="{x - 4.5:g}" y="{y - 4.5:g}"' in page


def joined(svg):
    """The words that lines of a picture join, by their heights."""
    words = re.findall(r'<text x="(\d+)" y="(\d+)"[^>]*>([^<]+)</text>', svg)
    left, right = ({int(y) - 5: word for x, y, word in words if (int(x) < 100) == first} for first in (True, False))
    ends = re.findall(r'y1="(\d+)" x2="\d+" y2="(\d+)"', svg)
    return {left[int(a)]: right[int(b)] for a, b in ends}


TRANSLATIONS = {
    **{"ship": "Schiff", "bread": "Brot", "moon": "Mond", "horse": "Pferd", "spoon": "Löffel"},
    **{"tree": "Baum", "cloud": "Wolke", "knife": "Messer", "bird": "Vogel"},
}


def test_the_picture_of_documents_finds_translations_that_nobody_gave():
    picture = hooks("pictures").on_page_markdown((ROOT / "docs" / "how-to" / "sets.md").read_text())
    *_, found = re.findall(r"<svg.*?</svg>", picture, re.DOTALL)
    assert joined(found) == TRANSLATIONS


def test_the_picture_of_documents_goes_back_in_a_browser(shown):
    move = 'const i = document.getElementById("documents-steps"); i.value = 0; i.dispatchEvent(new Event("input"));'
    page = shown(f"<meta charset=utf-8>{hooks('pictures').documents_picture()}<script>{move}</script>")
    *_, found = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    right = sum(TRANSLATIONS[english] == german for english, german in joined(found).items())
    assert right < 5, "before training"
    assert f'<b id="documents-right">{right}</b> of 9' in page
    assert found.count('class="right"') == right


class Tags(HTMLParser):
    """The meta tags of a page."""

    def __init__(self):
        super().__init__()
        self.found = {}

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "meta":
            self.found[given.get("property") or given["name"]] = given["content"]


@pytest.mark.parametrize("site", ["", "https://example.org/setwise/"])
def test_pages_have_the_tags_of_a_social_card(site):
    about = "<h1>X</h1><p>Learn from <b>your own</b> &quot;images&quot; &amp; texts.</p><p>More.</p>"
    page = SimpleNamespace(
        title="The idea", content=about, url="idea/", canonical_url=f"{site}idea/", is_homepage=False
    )
    config = SimpleNamespace(site_url=site)
    tags = Tags()
    tags.feed(hooks().on_post_page("<head></head><body></body>", page, config).partition("</head>")[0])
    assert tags.found["og:title"] == "The idea - setwise"
    assert tags.found["og:description"] == 'Learn from your own "images" & texts.'
    assert tags.found["og:image"] == (f"{site}card.png" if site else "../card.png")
    assert tags.found["twitter:card"] == "summary_large_image"
    assert tags.found.get("og:url") == (f"{site}idea/" if site else None)
    with Image.open(ROOT / "docs" / "card.png") as card:
        size = tags.found["og:image:width"], tags.found["og:image:height"]
        assert (card.format, *map(str, card.size)) == ("PNG", *size)


def test_the_reference_has_all_that_is_public():
    pages = (ROOT / "docs" / "reference.md").read_text()
    for module in (sw, sw.functional, sw.assignment):
        for name in module.__all__:
            thing = getattr(module, name)
            if callable(thing):
                whole = re.search(rf"::: {re.escape(thing.__module__)}(\.{name}\n|\n(?!    options))", pages)
                listed = re.search(rf"::: {re.escape(thing.__module__)}\n.*\n.*\b{name}\b", pages)
                assert whole or listed, f"{thing.__module__}.{name}"


def test_the_benchmarks_page_is_made_of_the_records():
    page = hooks().benchmarks_page()
    step = json.loads((ROOT / "results" / "bench-step-h200.json").read_text())["encoders"]
    for row in step.values():
        assert f"{row['setwise_ms']:.3f} ms" in page


def test_large_networks_are_shown_where_records_have_them(tmp_path):
    assert hooks().large_steps(tmp_path) == ""
    row = {"ms": 100.0, "images_per_second": 2560.0, "share_of_peak": 0.42, "peak_bytes": 50 * 2**30}
    large = {"vit-s16": {"encoder": "timm/vit", "ways": {"setwise": row, "plain": {"ms": 2.5, "images_per_second": 9}}}}
    record = {"hardware": {"name": "a machine"}, "encoders": {}, "large": large}
    (tmp_path / "bench-step-a.json").write_text(json.dumps(record))
    (tmp_path / "bench-step-b.json").write_text(json.dumps({"encoders": {}}))
    page = hooks().large_steps(tmp_path)
    assert "| timm/vit, a machine | setwise | 100.0 ms | 2,560 | 42 % | 50 GiB |" in page
    assert "| plain | 2.5 ms | 9 | – | – |" in page


def test_the_results_page_is_made_of_the_records(tmp_path):
    assert "No runs yet" in hooks().results_page(tmp_path)[0]
    for name, shift in (("paper/digits-conv4-simclr", 0.0), ("paper/digits-conv4-simclr-qare", 0.01)):
        for seed in (1, 2):
            final = {"probe_accuracy": 0.5 + shift * seed}
            record = {"format": records.FORMAT, "name": name, "recipe": recipe(name).tree(), "seed": seed}
            place = tmp_path / "runs" / name / f"seed-{seed}.json"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(record | {"final": final, "epochs": []}))
    page, whole = hooks().results_page(tmp_path)
    assert "+1.50" in page  # of 1 and 2 points
    assert "| SimCLR + QARe | " in page
    assert page.count("\n## ") >= 2
    assert "<html" in whole


def test_the_page_of_speed_records_is_made_of_the_records(tmp_path):
    page = (ROOT / "docs" / "speedrun.md").read_text()
    shown = hooks().on_page_markdown(page)
    assert shown.count("<svg viewBox") > 1
    assert "dkobak, ResNet-18, 500 epochs" in shown
    assert "No record of ours yet" in hooks().speed_records(tmp_path)
    assert hooks().speed_tries(tmp_path) == "None yet.\n"
    clock = {"seconds": 240.0, "data": 2.0, "network": 1.0, "kernels": 60.0, "training": 177.0}
    part = {"target": 0.9, "clock": clock, "pflop": 50.0, "gpu": "a GPU", "knn10": 0.902}
    for images in ("test", "validation"):
        record = {"format": records.FORMAT, "name": f"by-{images}", "seed": 1, "final": {"knn10_accuracy": 0.902}}
        record |= {"recipe": recipe("speedrun/cifar10").tree(), "speedrun": part | {"images": images}}
        place = tmp_path / images / "seed-1.json"
        place.parent.mkdir()
        place.write_text(json.dumps(record))
    shown = hooks().speed_records(tmp_path)
    assert "| by-test | test | 1 | 90.20 | yes, with 1 of 10 seeds | 4.00 | 3.00 |" in shown
    assert "by-validation" not in shown
    assert "No record" not in shown


def test_the_page_of_speed_records_says_what_was_tried():
    shown = hooks().on_page_markdown((ROOT / "docs" / "speedrun.md").read_text())
    for path in (ROOT / "results" / "speedrun" / "tried").rglob("seed-*.json"):
        record = json.loads(path.read_text())
        if record["recipe"]["objective"]["temperature"] == 0.1:
            assert f"| `objective.temperature=0.1` | 9.28 | {100 * record['speedrun']['knn10']:.2f} |" in shown
    assert "objective.temperature=0.1" in shown
    steps = json.loads((ROOT / "results" / "bench-resnet18-h200.json").read_text())["ways"]
    assert all(f"| {way['name']} | {way['ms']:.2f} |" in shown for way in steps if "ms" in way)


def test_every_method_and_term_has_a_page_with_its_options():
    each, nav = hooks("each"), (ROOT / "mkdocs.yml").read_text()
    for kind, folder, page in (
        (register.method, "methods", each.method_page),
        (register.term, "terms", each.term_page),
    ):
        assert set(re.findall(rf"{folder}/([\w-]+)\.md", nav)) == set(kind)
        for name in kind:
            options = set(re.findall(r"^\| `([\w-]+)` \|", page(name), re.MULTILINE))
            assert {option.replace("-", "_") for option in options} == set(kind[name].options)


def test_pages_of_methods_and_terms_have_the_numbers_of_the_records():
    def reached(name):
        folder = ROOT / "results" / "runs" / "released" / name
        records = map(json.loads, (path.read_text() for path in folder.glob("seed-*.json")))
        return {record["seed"]: 100 * record["final"]["probe_accuracy"] for record in records}

    each = hooks("each")
    rotation = list(reached("cifar10-conv4-rotation").values())
    row = f"| 200 epochs | 3 | {fmean(rotation):.2f} ± {stdev(rotation):.2f} |"
    assert any(line.endswith(row) for line in each.results_of("rotation").splitlines() if "conv4, released" in line)
    plain, with_term = (
        reached("cifar10-conv4-simclr/validation"),
        reached("cifar10-conv4-simclr/validation-frobenius-1"),
    )
    gains = [with_term[seed] - plain[seed] for seed in with_term]
    half = student.ppf(0.975, len(gains) - 1) * stdev(gains) / len(gains) ** 0.5
    row = f"| 1 | 5 | {fmean(gains):+.2f} ({fmean(gains) - half:+.2f} to {fmean(gains) + half:+.2f}) |"
    assert any(line.endswith(row) for line in each.differences_of("frobenius").splitlines())


def test_pages_of_terms_count_what_their_tables_say():
    for name in ("qare", "gap", "frobenius"):
        text = hooks("each").differences_of(name)
        ends = [
            (float(low), float(high))
            for low, high in re.findall(r"\(([-+][\d.]+) to ([-+][\d.]+)\) \|$", text, re.MULTILINE)
        ]
        above, below = sum(low > 0 for low, _ in ends), sum(high < 0 for _, high in ends)
        assert f"Of {len(ends)} comparisons" in text
        assert f"it adds in {above}, takes in {below} and is unclear in {len(ends) - above - below}:" in text


def test_pages_of_methods_and_terms_say_when_and_how(parse, tmp_path, monkeypatch):
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


def test_the_page_of_methods_leads_to_their_pages_and_does_not_repeat_them():
    page = SimpleNamespace(file=SimpleNamespace(src_uri="methods.md"))
    shown = hooks("each").on_page_markdown((ROOT / "docs" / "methods.md").read_text(), page)
    assert "(methods/byol.md)" in shown
    assert "[`rotation`](methods/rotation.md)" in shown
    assert "## byol" not in shown
    assert "## Multi-crop" in shown


def test_tables_say_a_label_once():
    table = "| claim | n |\n| --- | --- |\n| a | 1 |\n| a | 2 |\n| b | 2 |\n\nA note | of a note.\n"
    assert hooks().said_once(table) == table.replace("| a | 2 |", "|  | 2 |")


def test_pages_name_real_recipes():
    for path in WRITTEN:
        for name in re.findall(
            r"\b((?:paper|released|modern|setwise|speedrun)/[a-z0-9]+-[a-z0-9-]+)\b", path.read_text()
        ):
            assert name in CELLS or name in PRESETS, (path.name, name)
