"""The site: pictures, the pages that are computed from the records, what a message shows that links to it."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace

import pytest
from PIL import Image
from scipy.stats import t as student

import setwise as sw
import setwise.records as records
import setwise.register as register
from setwise.paper.recipes import recipe

ROOT = Path(__file__).parent.parent


def test_the_picture_shows_what_the_page_says(hooks):
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


def test_the_picture_turns_in_a_browser(shown, hooks):
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


def test_the_picture_of_documents_finds_translations_that_nobody_gave(hooks):
    picture = hooks("pictures").on_page_markdown((ROOT / "docs" / "how-to" / "sets.md").read_text())
    *_, found = re.findall(r"<svg.*?</svg>", picture, re.DOTALL)
    assert joined(found) == TRANSLATIONS


def test_the_picture_of_documents_goes_back_in_a_browser(shown, hooks):
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
def test_pages_have_the_tags_of_a_social_card(site, hooks):
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


def test_the_benchmarks_page_is_made_of_the_records(hooks):
    page = hooks().benchmarks_page()
    step = json.loads((ROOT / "results" / "bench-step-h200.json").read_text())["encoders"]
    for row in step.values():
        assert f"{row['setwise_ms']:.3f} ms" in page


def test_large_networks_are_shown_where_records_have_them(tmp_path, hooks):
    assert hooks().large_steps(tmp_path) == ""
    row = {"ms": 100.0, "images_per_second": 2560.0, "share_of_peak": 0.42, "peak_bytes": 50 * 2**30}
    large = {"vit-s16": {"encoder": "timm/vit", "ways": {"setwise": row, "plain": {"ms": 2.5, "images_per_second": 9}}}}
    record = {"hardware": {"name": "a machine"}, "encoders": {}, "large": large}
    (tmp_path / "bench-step-a.json").write_text(json.dumps(record))
    (tmp_path / "bench-step-b.json").write_text(json.dumps({"encoders": {}}))
    page = hooks().large_steps(tmp_path)
    assert "| timm/vit, a machine | setwise | 100.0 ms | 2,560 | 42 % | 50 GiB |" in page
    assert "| plain | 2.5 ms | 9 | – | – |" in page


def test_the_results_page_is_made_of_the_records(tmp_path, hooks):
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


def test_the_page_of_speed_records_is_made_of_the_records(tmp_path, hooks):
    page = (ROOT / "docs" / "speedrun.md").read_text()
    shown = hooks("speed_page").on_page_markdown(page)
    assert shown.count("<svg viewBox") > 1
    assert "dkobak, ResNet-18, 500 epochs" in shown
    assert "No record of ours yet" in hooks("speed_page").speed_records(tmp_path)
    assert hooks("speed_page").speed_tries(tmp_path) == "None yet.\n"
    clock = {"seconds": 240.0, "data": 2.0, "network": 1.0, "kernels": 60.0, "training": 177.0}
    part = {"target": 0.9, "clock": clock, "pflop": 50.0, "gpu": "a GPU", "knn10": 0.902}
    for images in ("test", "validation"):
        record = {"format": records.FORMAT, "name": f"by-{images}", "seed": 1, "final": {"knn10_accuracy": 0.902}}
        record |= {"recipe": recipe("speedrun/cifar10").tree(), "speedrun": part | {"images": images}}
        place = tmp_path / images / "seed-1.json"
        place.parent.mkdir()
        place.write_text(json.dumps(record))
    shown = hooks("speed_page").speed_records(tmp_path)
    assert "| by-test | test | 1 | 90.20 | yes, with 1 of 10 seeds | 4.00 | 3.00 |" in shown
    assert "by-validation" not in shown
    assert "No record" not in shown


def test_the_page_of_speed_records_says_what_was_tried(hooks):
    shown = hooks("speed_page").on_page_markdown((ROOT / "docs" / "speedrun.md").read_text())
    for folder in {path.parent for path in (ROOT / "results" / "speedrun" / "tried").rglob("seed-*.json")}:
        seeds = [json.loads(path.read_text()) for path in folder.glob("seed-*.json")]
        record, part = seeds[0], seeds[0]["speedrun"]
        accuracy = fmean(100 * one["speedrun"]["knn10"] for one in seeds)
        assert f"| {part['pflop']:.3g} | {accuracy:.2f} |" in shown
        if record["recipe"]["objective"].get("temperature") == 0.1 and record["epochs"]["epoch"][-1] == 40:
            assert f"| `objective.temperature=0.1` | 9.28 | {accuracy:.2f} |" in shown
    assert "objective.temperature=0.1" in shown
    steps = json.loads((ROOT / "results" / "bench-resnet18-h200.json").read_text())["ways"]
    assert all(f"| {way['name']} | {way['ms']:.2f} |" in shown for way in steps if "ms" in way)


def test_the_page_of_speed_records_shows_how_its_recipe_came_about(hooks):
    shown = hooks("speed_page").on_page_markdown((ROOT / "docs" / "speedrun.md").read_text())
    folder = ROOT / "results" / "speedrun" / "tried"
    for place, words in hooks("speed_page").PATH.items():
        seeds = [json.loads(path.read_text()) for path in sorted((folder / place).glob("seed-*.json"))]
        part, own = seeds[0]["speedrun"], seeds[0]["recipe"]
        accuracy = fmean(100 * one["speedrun"]["knn10"] for one in seeds)
        assert f"| {words} | {len(seeds)} | {part['pflop']:.3g} | {accuracy:.1f} |" in shown
        muon = "SGD" not in words and place != "prototype/d01-x-9pf"
        assert (own["optimizer"]["name"] == "muon") == muon, place
        assert (own["encoder"]["name"] == "quick") == ("crops" not in place)


def test_the_kernels_of_a_step_are_shown(tmp_path, hooks):
    page = hooks("speed_page")
    assert page.speed_kernels(tmp_path / "none.json") == ""
    kinds = {"convolutions": {"ms": 6.071, "launches": 59.0}, "copies": {"ms": 0.3, "launches": 12.0}}
    step = {"compile": True, "ms": 11.23, "kinds": kinds, "small": {"ms": 0.56, "launches": 260.0}}
    (tmp_path / "steps.json").write_text(json.dumps({"steps": {"a/recipe": step}}))
    shown = page.speed_kernels(tmp_path / "steps.json")
    assert "A step of `a/recipe`, compiled, takes 11.23 ms" in shown
    assert "| convolutions | 6.07 | 59 |" in shown
    assert "260 launches take less than 6 µs each, 0.6 ms together" in shown


def test_methods_stand_beside_published_numbers(tmp_path, hooks):
    page = hooks("speed_page")
    assert "Not run yet: SimCLR, BYOL, Barlow Twins, VICReg" in page.speed_methods(tmp_path)
    clock = {"seconds": 240.0, "data": 2.0, "network": 1.0, "kernels": 60.0, "training": 177.0}
    part = {"target": 0.9, "clock": clock, "pflop": 50.0, "gpu": "a GPU", "images": "test"}
    trees = {name: recipe(f"modern/cifar10-resnet18-{name}").tree() for name in ("simclr", "simclr-qare", "byol")}
    for name, tree in trees.items():
        for seed in (1, 2) if name.startswith("simclr") else (1,):
            final = {"knn10_accuracy": 0.85 + seed / 100, "probe_accuracy": 0.9 + seed / 100}
            record = {"format": records.FORMAT, "name": name, "seed": seed, "final": final, "recipe": tree}
            record |= {"speedrun": part | {"knn10": final["knn10_accuracy"]}, "data": {"name": "cifar10"}}
            place = tmp_path / "methods" / "cifar10" / name / "test" / f"seed-{seed}.json"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(record))
    shown = page.speed_methods(tmp_path)
    deviation = stdev((91, 92))
    assert f"| SimCLR | 2 | 91.50 ± {deviation:.2f} | 86.50 ± {deviation:.2f} | 4.0 | 50 | 90.74 |" in shown
    assert f"| SimCLR, + 1 · `qare` | 2 | 91.50 ± {deviation:.2f} |" in shown
    assert "| BYOL | 1 | 91.00 | 86.00 | 4.0 | 50 | 92.58 |" in shown
    assert shown.index("| SimCLR | 2") < shown.index("| SimCLR, +") < shown.index("| BYOL")
    assert "Not run yet: Barlow Twins, VICReg" in shown
    records_shown = page.speed_records(tmp_path)
    assert "No record of ours yet" in records_shown, "methods make no record"
    assert "simclr-qare, a GPU, n = 2" in records_shown, "but they are in the picture"


def test_every_method_and_term_has_a_page_with_its_options(hooks):
    each, nav = hooks("each"), (ROOT / "mkdocs.yml").read_text()
    for kind, folder, page in (
        (register.method, "methods", each.method_page),
        (register.term, "terms", each.term_page),
    ):
        assert set(re.findall(rf"{folder}/([\w-]+)\.md", nav)) == set(kind)
        for name in kind:
            options = set(re.findall(r"^\| `([\w-]+)` \|", page(name), re.MULTILINE))
            assert {option.replace("-", "_") for option in options} == set(kind[name].options)


def test_pages_of_methods_and_terms_have_the_numbers_of_the_records(hooks):
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


def test_pages_of_terms_count_what_their_tables_say(hooks):
    for name in ("qare", "gap", "frobenius"):
        text = hooks("each").differences_of(name)
        ends = [
            (float(low), float(high))
            for low, high in re.findall(r"\(([-+][\d.]+) to ([-+][\d.]+)\) \|$", text, re.MULTILINE)
        ]
        above, below = sum(low > 0 for low, _ in ends), sum(high < 0 for _, high in ends)
        assert f"Of {len(ends)} comparisons" in text
        assert f"it adds in {above}, takes in {below} and is unclear in {len(ends) - above - below}:" in text


def test_the_page_of_methods_leads_to_their_pages_and_does_not_repeat_them(hooks):
    page = SimpleNamespace(file=SimpleNamespace(src_uri="methods.md"))
    shown = hooks("each").on_page_markdown((ROOT / "docs" / "methods.md").read_text(), page)
    assert "(methods/byol.md)" in shown
    assert "[`rotation`](methods/rotation.md)" in shown
    assert "## byol" not in shown
    assert "## Multi-crop" in shown


def test_tables_say_a_label_once(hooks):
    table = "| claim | n |\n| --- | --- |\n| a | 1 |\n| a | 2 |\n| b | 2 |\n\nA note | of a note.\n"
    assert hooks().said_once(table) == table.replace("| a | 2 |", "|  | 2 |")
