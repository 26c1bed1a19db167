"""The pages of images: closed to the outside whatever the files are called, and alive in a browser."""

import base64
import hashlib
import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

import setwise as sw
from setwise.cli import main
from setwise.data.collection import collect
from setwise.evaluation.embedding import ImageEncoder, embed
from setwise.report import map_page as module
from setwise.report.map_page import write_map

HOSTILE = [
    "script><script>alert(1)\"'&.png",  # below a folder "...<" this closes a script
    "\x1b[31m\u202egnp.png",
    "line\nbreak.png",
    "--><img src=x onerror=y>.png",
]
HIDDEN = "</script><!--<script>"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """40 images in 2 classes with hostile names, of two colours, one of them twice, one of another colour."""
    base = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for k in range(40):
        place = base / "photos" / ("red" if k % 2 else "<b>&'blue<")
        place.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 60, (20, 24, 3)).astype(np.uint8)
        pixels[..., 0 if k % 2 else 2] += 190
        Image.fromarray(pixels).save(place / (HOSTILE[k] if k < len(HOSTILE) else f"{k}.png"))
    Image.fromarray(pixels).save(base / "photos" / "red" / "copy.png")
    Image.fromarray(np.full((20, 24, 3), (10, 250, 10), np.uint8)).save(base / "photos" / "red" / "green.png")
    torch.manual_seed(0)
    encoder = ImageEncoder(sw.encoders.create("conv4", channels=3).eval(), (3, 20, 24), (0.5,) * 3, (0.25,) * 3)
    return embed(encoder, collect(base / "photos"), base / "kept", device=torch.device("cpu"), quiet=True)


@pytest.fixture(scope="module")
def page(table, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "map.html"
    write_map(path, table, encoder=HIDDEN, threshold=0.99999)
    return path.read_text()


def data_of(html):
    return json.loads(re.search(r'<script type="application/json" id="map-data">(.*?)</script>', html, re.DOTALL)[1])


def test_the_page_is_closed_and_its_names_are_escaped(page, table, tree_of):
    assert page.isascii()
    tree = tree_of(page)
    scripts = tree.all("script")
    assert [a.get("type") for _, a, _ in scripts] == ["application/json", None, None]
    policy = tree.all("meta", **{"http-equiv": "Content-Security-Policy"})[0][1]["content"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in policy
    for tag, rule, count in (("style", "style-src", 2), ("script", "script-src", 2)):
        codes = tree.texts(tag)[-count:]
        hashes = [base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in codes]
        assert rules[rule] == " ".join(f"'sha256-{one}'" for one in hashes)
        assert not any(re.search(r"https?:|url\(|@import|fetch\(|import\(|innerHTML|eval\(", code) for code in codes)
    for _, attributes, _ in tree.elements:
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        assert attributes.get("src", "data:image/").startswith("data:image/")
        assert attributes.get("href", "#").startswith("#")
    names = data_of(page)["paths"]
    assert len(names) == 42
    assert not any(c < " " or c == "\u202e" for name in names for c in name)
    assert {"red/\\x1b[31m\\u202egnp.png", "<b>&'blue</line\\nbreak.png"} <= set(names)
    assert set(data_of(page)["groups"][0]["names"]) == {"red", "<b>&'blue<"}
    assert HIDDEN in tree.texts("p")[0]


def numbers(data, name, kind):
    return np.frombuffer(base64.b64decode(data[name]), kind)


def test_the_data_are_those_of_the_table(page, table):
    data = data_of(page)
    unit = torch.nn.functional.normalize(table.embeddings.double())
    cosine = (unit @ unit.mT).fill_diagonal_(-2)
    near = numbers(data, "near", "<u4").reshape(42, -1).astype(np.int64)
    best = cosine.topk(near.shape[1]).values
    torch.testing.assert_close(cosine.gather(1, torch.from_numpy(near)), best, atol=1e-5, rtol=0)
    shown = numbers(data, "cosine", "<u2").reshape(42, -1) / 65535 * 2 - 1
    assert np.abs(shown - best.numpy()).max() < 1e-4
    assert len(numbers(data, "x", "<u2")) == len(numbers(data, "y", "<u2")) == 42
    slots, (w, h), pitch = numbers(data, "slots", "<i4"), data["cell"], data["pitch"]
    assert sorted(slots) == list(range(42))
    sheet = np.asarray(Image.open(io.BytesIO(base64.b64decode(data["sheets"][0].split(",")[1]))).convert("RGB"))
    for row, slot in enumerate(slots):  # the thumbnail of each image shows its colour
        y, x = slot // data["columns"] * pitch[1], slot % data["columns"] * pitch[0]
        own = table.collection.picture(row, 96).reshape(-1, 3).mean(0)
        assert np.abs(sheet[y : y + h, x : x + w].reshape(-1, 3).mean(0) - own).max() < 15


def test_near_duplicates_and_outliers_are_listed(page, tree_of):
    tree = tree_of(page)
    rows = {name: row for row, name in enumerate(data_of(page)["paths"])}
    assert "1 pairs of images have a cosine of 0.99999 or more" in page
    listed = [int(a["data-row"]) for _, a, _ in tree.all("li") if "data-row" in a]
    alts = [a["alt"] for _, a, _ in tree.all("img")]
    assert [rows[name] for name in alts] == listed
    parts = re.split(r'<h2 id="[^"]*">(.*?)</h2>', page)
    duplicates = parts[parts.index("Near-duplicates") + 1]
    assert {int(row) for row in re.findall(r'data-row="(\d+)"', duplicates)} == {
        rows["red/39.png"],
        rows["red/copy.png"],
    }
    outliers = parts[parts.index("Outliers") + 1]
    assert int(re.search(r'data-row="(\d+)"', outliers)[1]) == rows["red/green.png"]


def test_thumbnails_stay_within_their_budget(table, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BUDGET", 6_000)
    monkeypatch.setattr(module, "PER_SHEET", 16)
    write_map(tmp_path / "map.html", table, encoder="x")
    html = (tmp_path / "map.html").read_text()
    slots = numbers(data_of(html), "slots", "<i4")
    size = sum(len(base64.b64decode(sheet.split(",")[1])) for sheet in data_of(html)["sheets"])
    assert size <= 6_000
    assert 0 < (slots >= 0).sum() < 42
    assert f"{(slots >= 0).sum()} of the images, drawn at random, have a small picture" in html


def test_of_too_many_images_a_sample_is_shown(table, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST", 30)
    write_map(tmp_path / "map.html", table, encoder="x", number=3)
    html = (tmp_path / "map.html").read_text()
    assert "shows 30 images, drawn at random from 42" in html
    assert len(data_of(html)["paths"]) == 30


ASK = """
const canvas = page.querySelector(".stage > canvas"), view = frame.contentWindow, box = canvas.getBoundingClientRect();
const ink = () => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return data.filter((value, n) => n % 4 === 3 && value).length;
};
const key = name => canvas.dispatchEvent(new view.KeyboardEvent("keydown", {key: name, cancelable: true}));
said.legend = [...page.querySelectorAll(".key button")].map(one => one.textContent);
key("n");
said.first = page.querySelector(".picked b").textContent;
said.near = page.querySelectorAll(".near button").length;
page.querySelector(".near button").click();
said.second = page.querySelector(".picked b").textContent;
page.querySelectorAll(".map input")[1].click();
said.clusters = [...page.querySelectorAll(".key button")].map(one => one.textContent);
page.querySelector(".key button").click();
said.pressed = page.querySelector(".key button").getAttribute("aria-pressed");
page.querySelector(".gallery [data-row]").click();
said.listed = page.querySelector(".picked b").textContent;
said.focusable = [...page.querySelectorAll(".gallery [data-row]")].every(one => one.tabIndex === 0);
said.scripts = page.querySelectorAll("img[onerror], b[onclick]").length;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_map_lives_on_a_telephone(page, on_a_telephone, scheme):
    said = on_a_telephone(page, ASK, f"blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}")
    data = data_of(page)
    near = numbers(data, "near", "<u4").reshape(42, -1)
    assert said["legend"] == ["<b>&'blue<20", "red22"]
    assert said["first"] == data["paths"][0]
    assert said["near"] == near.shape[1] == 6
    assert said["second"] == data["paths"][near[0, 0]]
    assert said["clusters"][0].startswith("Cluster 1, ")
    assert said["pressed"] == "true"
    assert said["listed"] in data["paths"]
    assert said["focusable"]
    assert said["scripts"] == 0


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    base = tmp_path_factory.mktemp("run")
    sw.pretrain("digits", changes={"epochs": 1}, out=base / "first", evaluate=False)
    return base / "first"


def test_the_commands_draw_digits(run, capsys, tree_of, monkeypatch):
    monkeypatch.setattr("setwise.evaluation.layout.FITTED", 300)
    main(["map", str(run), "digits", "--clusters", "10"])
    assert capsys.readouterr().out.strip() == str(run / "map.html")
    html = (run / "map.html").read_text()
    assert len(data_of(html)["paths"]) == 1797
    assert [len(one["names"]) for one in data_of(html)["groups"]] == [10, 10]
    main(["neighbours", str(run), "digits", "--query", "test/0", "train/7", "--count", "5"])
    printed, words = capsys.readouterr()
    assert "embedded" not in words, "the embeddings of the map are used again"
    tree = tree_of((run / "neighbours.html").read_text())
    shown = [a["alt"] for _, a, _ in tree.all("img")]
    assert [shown[0], shown[6]] == ["test/0", "train/7"]
    table = sw.load_run(run).embed("digits")
    unit = torch.nn.functional.normalize(table.embeddings.double())
    for query, names in (("test/0", shown[1:6]), ("train/7", shown[7:])):
        own = table.paths.index(query)
        cosine = unit @ unit[own]
        cosine[own] = -2
        found = torch.stack([cosine[table.paths.index(name)] for name in names])
        torch.testing.assert_close(
            found, cosine.topk(5).values, rtol=0, atol=1e-6
        )  # which of two equally near comes first is chance
        assert all(f"{float(cosine[table.paths.index(name)]):.4f}  {name}" in printed for name in names)


def test_a_query_may_be_a_file(tmp_path, capsys):
    generator = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for k in range(20):
        pixels = np.full((16, 16, 3), generator.integers(0, 256, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{k}.png")
    (tmp_path / "query.png").write_bytes((tmp_path / "photos" / "7.png").read_bytes())
    run = tmp_path / "run"
    sw.pretrain(tmp_path / "photos", changes={"epochs": 1, "batch": 10}, out=run, evaluate=False)
    command = ["neighbours", str(run), str(tmp_path / "photos"), "--count", "1", "--query"]
    main([*command, str(tmp_path / "query.png")])
    assert re.search(r"  1\.0000  7\.png", capsys.readouterr().out)
    main([*command, str(tmp_path / "photos" / "7.png")])
    assert "  7.png" not in capsys.readouterr().out, "its own neighbour"
    with pytest.raises(SystemExit, match=r"expected a query that is an image file, .* got 'nothing.png'"):
        main([*command, "nothing.png"])
    (tmp_path / "query.png").write_bytes(b"no image")
    with pytest.raises(SystemExit, match="query.png"):
        main([*command, str(tmp_path / "query.png")])
