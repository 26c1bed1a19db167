"""Pictures that our own code computes when the site is built. A page asks for one by its comment."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

# Two sets, one of them turned.
TURNS = range(0, 181, 10)  # degrees
FIRST_TURN = 60
STRUCTURE = 128.0  # weight of the structure within each set, against the pairs
FISH_X = (-2.2, -2.2, -1.3, -0.3, -0.3, 0.8, 0.8, 1.5, 2.1)
FISH_Y = (0.9, -0.9, 0.0, 0.9, -0.9, 1.0, -0.7, 0.3, -0.1)
OUTLINE = ((0, 1), (0, 2), (1, 2), (2, 3), (2, 4), (3, 5), (4, 6), (5, 7), (6, 8), (7, 8))
WIDTH, HEIGHT, SCALE = 320, 280, 52.0

# Words of documents that are known to belong together, and no more.
ENGLISH = ["ship", "bread", "moon", "horse", "spoon", "tree", "cloud", "knife", "bird", "king", "snow", "sun"]
GERMAN = [
    "Schiff",
    "Brot",
    "Mond",
    "Pferd",
    "Löffel",
    "Baum",
    "Wolke",
    "Messer",
    "Vogel",
    "König",
    "Schnee",
    "Schlüssel",
]
DOCUMENT = 3  # words of a document
SHOWN = ((0, 1, 2), (3, 4, 5), (6, 7, 8))  # three documents, of different words
ORDER = ((1, 2, 0), (2, 0, 1), (1, 0, 2))  # of their translations
STEPS = range(0, 61, 3)  # of training
TEMPERATURE = 0.2


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the pictures where a page asks for them."""
    for name, picture in PICTURES.items():
        mark = f"<!-- the picture of {name} -->"
        markdown = markdown.replace(mark, picture()) if mark in markdown else markdown
    return markdown


def turned_sets(degrees: float = FIRST_TURN) -> tuple[Any, Any]:
    """Nine points of a fish, and the same turned and slightly disturbed."""
    import torch

    generator = torch.Generator().manual_seed(3)
    a = torch.tensor([FISH_X, FISH_Y], dtype=torch.float64).T
    angle = math.radians(degrees)
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64)
    return a, a @ turn.T + 0.05 * torch.randn(len(a), 2, generator=generator, dtype=torch.float64)


def by_structure(a: Any, b: Any) -> Any:
    """The best assignment by pairs and structure, max tr(S Yᵀ) + weight/N · tr(S_A Y S_Bᵀ Yᵀ); exact for so few."""
    import setwise as sw
    from setwise.similarity import scores

    s, s_a, s_b = (scores(x, y, similarity="euclidean") for x, y in ((a, b), (a, a), (b, b)))
    return sw.assignment.solve_quadratic(STRUCTURE / len(a) * s_a, s_b, s, maximize=True)


@cache
def alignments(degrees: float) -> dict[str, Any]:
    """Both sets in pixels, whom each item is matched to by pairs and with the structure, and what the losses say."""
    import setwise as sw

    a, b = turned_sets(degrees)
    pixels = [
        [[round(WIDTH / 2 + SCALE * x, 1), round(HEIGHT / 2 - SCALE * y, 1)] for x, y in z.tolist()] for z in (a, b)
    ]
    pairs = sw.AssignmentLoss(mining="one-to-one")(a, b)
    gap = sw.QARe(similarity="euclidean", reference="truth")(a, b)
    return {
        "a": pixels[0],
        "b": pixels[1],
        "linear": sw.match(a, b).assignment.tolist(),
        "quadratic": by_structure(a, b).permutation.tolist(),
        "pairwise": f"{pairs.item():.3f}",
        "gap": f"{abs(gap.item()):.3f}",
    }


def _line(look: str, start: tuple[float, float], end: tuple[float, float]) -> str:
    return f'<line class="{look}" x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}"/>'


def _panel(name: str, title: str) -> str:
    """One drawing: circles joined to the squares they are matched to, solid where that is right."""
    found = alignments(FIRST_TURN)
    partner, marks = found[name], []
    lines = [_line("outline", found[one][i], found[one][j]) for one in "ab" for i, j in OUTLINE]
    for i, (x, y) in enumerate(found["a"]):
        lines.append(_line("right" if partner[i] == i else "wrong", (x, y), found["b"][partner[i]]))
        marks.append(f'<circle cx="{x}" cy="{y}" r="5"/>')
    for x, y in found["b"]:
        marks.append(f'<rect x="{x - 4.5:.1f}" y="{y - 4.5:.1f}" width="9" height="9"/>')
    right = sum(i == j for i, j in enumerate(partner))
    return (
        f'<figure><svg id="sets-{name}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
        f"{''.join(lines)}{''.join(marks)}</svg>"
        f'<figcaption>{title}: <b id="sets-{name}-right">{right}</b> of {len(partner)} right</figcaption></figure>'
    )


LOOK = f"""<style>
.sets {{ display: flex; flex-wrap: wrap; justify-content: center; gap: 0 1rem }}
.sets figure {{ flex: 1 1 260px; max-width: {WIDTH + 60}px; margin: 0 }}
.sets svg {{ width: 100%; height: auto; display: block }}
.sets line {{ stroke-width: 1.8 }}
.sets .outline {{ stroke: currentColor; opacity: .22; stroke-width: 1 }}
.sets .right {{ stroke: #009e73 }}
.sets .wrong {{ stroke: #d55e00; stroke-dasharray: 5 4 }}
.sets circle {{ fill: #0072b2 }}
.sets rect {{ fill: #cc79a7 }}
.sets-turn {{ text-align: center; margin: .6rem 0 }}
.sets-turn input {{ width: min(24rem, 100%); display: block; margin: .3rem auto; accent-color: #0072b2 }}
</style>"""
MOVE = """<script>
(function () {
  const { all, outline } = JSON.parse(document.getElementById("sets-data").textContent);
  const input = document.getElementById("sets-turn");
  const put = (id, text) => { document.getElementById(id).textContent = text; };
  input.addEventListener("input", () => {
    const now = all[input.value];
    put("sets-degrees", input.value); put("sets-pairwise", now.pairwise); put("sets-gap", now.gap);
    for (const name of ["linear", "quadratic"]) {
      const svg = document.getElementById("sets-" + name), partner = now[name];
      const join = (line, [x1, y1], [x2, y2]) =>
        Object.entries({ x1, y1, x2, y2 }).forEach(([key, value]) => line.setAttribute(key, value));
      svg.querySelectorAll(".outline").forEach((line, i) => {
        const set = i < outline.length ? now.a : now.b, [from, to] = outline[i % outline.length];
        join(line, set[from], set[to]);
      });
      svg.querySelectorAll(".right, .wrong").forEach((line, i) => {
        line.setAttribute("class", partner[i] === i ? "right" : "wrong");
        join(line, now.a[i], now.b[partner[i]]);
      });
      svg.querySelectorAll("rect").forEach((rect, i) => {
        rect.setAttribute("x", now.b[i][0] - 4.5); rect.setAttribute("y", now.b[i][1] - 4.5);
      });
      put("sets-" + name + "-right", partner.filter((j, i) => i === j).length);
    }
  });
})();
</script>"""


def alignment_picture() -> str:
    """The two sets, matched by pairs alone and with their structure, and a slider that turns the second."""
    found, data = alignments(FIRST_TURN), {"outline": OUTLINE, "all": {turn: alignments(turn) for turn in TURNS}}
    return "\n".join(
        [
            LOOK,
            f'<div class="sets">{_panel("linear", "pairs alone")}{_panel("quadratic", "pairs and structure")}</div>',
            '<div class="sets-turn"><label>The second set is turned by <b id="sets-degrees">'
            f"{FIRST_TURN}</b> degrees"
            f'<input id="sets-turn" type="range" min="{TURNS[0]}" max="{TURNS[-1]}" step="{TURNS.step}" '
            f'value="{FIRST_TURN}"></label>pairwise loss (Eq. 3) <b id="sets-pairwise">{found["pairwise"]}</b>, '
            f'alignment gap of the sets <b id="sets-gap">{found["gap"]}</b></div>',
            f'<script type="application/json" id="sets-data">{json.dumps(data)}</script>',
            MOVE,
            "",
        ]
    )


@cache
def alignments_by_step() -> dict[int, dict[str, Any]]:
    """After so many steps on whole documents: how much the first word chooses each translation, and what is aligned."""
    import torch

    import setwise as sw
    from setwise.similarity import scores

    generator = torch.Generator().manual_seed(1)
    vectors = [torch.randn(len(ENGLISH), 8, generator=generator).requires_grad_() for _ in range(2)]
    optimizer = torch.optim.Adam(vectors, lr=0.02)
    loss, found = sw.InfoNCE(TEMPERATURE, symmetric=True), {}
    english = [word for one in SHOWN for word in one]
    german = [one[i] for one, order in zip(SHOWN, ORDER, strict=True) for i in order]
    shown = torch.arange(len(english)) // DOCUMENT
    for step in range(STEPS[-1] + 1):
        z_a, z_b = vectors[0][english].detach(), vectors[1][german].detach()
        chosen = (scores(z_a[:1], z_b, similarity="cosine") / TEMPERATURE).softmax(1)[0]
        partner = sw.align(z_a, z_b, sets=(shown, shown)).partner
        found[step] = {
            "chosen": [round(x, 3) for x in chosen.tolist()],
            "set": f"{100 * chosen[:DOCUMENT].sum().item():.0f}",
            "partner": partner.tolist(),
            "right": [english[i] == german[j] for i, j in enumerate(partner.tolist())],
        }
        words = torch.stack([torch.randperm(len(ENGLISH), generator=generator)[:DOCUMENT] for _ in range(16)]).flatten()
        sets = torch.arange(len(words)) // DOCUMENT
        optimizer.zero_grad()
        loss(vectors[0][words], vectors[1][words], sets=(sets, sets)).backward()  # the loss never sees an order
        optimizer.step()
    return {step: found[step] for step in STEPS}


def _height(row: int) -> int:
    """Where a word stands."""
    return 32 + 26 * row + 18 * (row // DOCUMENT)


def _documents(name: str, title: str, between: str) -> str:
    """Nine words and their translations, a box round each document, and what is ``between`` them."""
    boxes = "".join(
        f'<rect class="box{i}" x="{x}" y="{_height(DOCUMENT * i) - 18}" width="76" height="88" rx="8"/>'
        for i in range(len(SHOWN))
        for x in (4, 160)
    )
    german = [one[i] for one, order in zip(SHOWN, ORDER, strict=True) for i in order]
    words = "".join(
        f'<text x="12" y="{_height(row) + 5}">{ENGLISH[word]}</text>'
        f'<text x="228" y="{_height(row) + 5}" text-anchor="end">{GERMAN[german[row]]}</text>'
        for row, word in enumerate(word for one in SHOWN for word in one)
    )
    return (
        f'<figure><svg id="documents-{name}" viewBox="0 8 240 292" role="img" aria-label="{name}">{boxes}{between}'
        f"{words}</svg><figcaption>{title}</figcaption></figure>"
    )


DOCUMENTS_LOOK = """<style>
.documents { display: flex; flex-wrap: wrap; justify-content: center; gap: .4rem 1rem }
.documents figure { flex: 1 1 190px; max-width: 290px; margin: 0 }
.documents svg { width: 100%; height: auto; display: block }
.documents text { font-size: 15px; fill: currentColor }
.documents figcaption { max-width: none; font-style: normal; text-align: center; margin: .5em auto 1em }
.documents rect { stroke-width: 1.5; fill-opacity: .12 }
.documents .box0 { stroke: #0072b2; fill: #0072b2 }
.documents .box1 { stroke: #cc79a7; fill: #cc79a7 }
.documents .box2 { stroke: #b8860b; fill: #b8860b }
.documents .band { stroke: none; fill-opacity: .3 }
.documents .right { stroke: #009e73 }
.documents .wrong { stroke: #d55e00; stroke-dasharray: 5 4 }
.documents .inside { stroke: #009e73 }
.documents .outside { stroke: currentColor; opacity: .55 }
.documents-steps { text-align: center; margin: .6rem 0 }
.documents-steps input { width: min(24rem, 100%); display: block; margin: .3rem auto; accent-color: #0072b2 }
</style>"""
DOCUMENTS_MOVE = """<script>
(function () {
  const all = JSON.parse(document.getElementById("documents-data").textContent);
  const input = document.getElementById("documents-steps");
  const put = (id, text) => { document.getElementById(id).textContent = text; };
  const lines = (name) => document.querySelectorAll("#documents-" + name + " line");
  input.addEventListener("input", () => {
    const now = all.steps[input.value];
    put("documents-step", input.value); put("documents-set", now.set);
    put("documents-right", now.right.filter((x) => x).length);
    lines("compared").forEach((line, i) => line.setAttribute("stroke-width", all.thin + all.thick * now.chosen[i]));
    lines("found").forEach((line, i) => {
      line.setAttribute("class", now.right[i] ? "right" : "wrong");
      line.setAttribute("y2", all.heights[now.partner[i]]);
    });
  });
})();
</script>"""
THIN, THICK = 0.4, 12  # pixels of a line: at least, and for all of a choice


def documents_picture() -> str:
    """What is known of documents, what the loss compares, what comes out; and a slider over the steps of training."""
    states, last = alignments_by_step(), STEPS[-1]
    now, heights = states[last], [_height(row) for row in range(DOCUMENT * len(SHOWN))]
    bands = "".join(
        f'<rect class="band box{i}" x="80" y="{_height(DOCUMENT * i) + 16}" width="80" height="20"/>'
        for i in range(len(SHOWN))
    )
    choices = "".join(
        f'<line class="{"inside" if row < DOCUMENT else "outside"}" stroke-width="{THIN + THICK * share:.2f}" '
        f'x1="80" y1="{heights[0]}" x2="160" y2="{heights[row]}"/>'
        for row, share in enumerate(now["chosen"])
    )
    pairs = "".join(
        f'<line class="{"right" if right else "wrong"}" stroke-width="2" '
        f'x1="80" y1="{heights[row]}" x2="160" y2="{heights[partner]}"/>'
        for row, (partner, right) in enumerate(zip(now["partner"], now["right"], strict=True))
    )
    panels = [
        _documents("known", "<b>1. Known:</b> which documents say the same", bands),
        _documents(
            "compared",
            f"<b>2. Compared:</b> “{ENGLISH[0]}” chooses a word of its own document with "
            f'<b id="documents-set">{now["set"]}</b> %; the loss asks for 100 %',
            choices,
        ),
        _documents(
            "found",
            f'<b>3. Found:</b> <b id="documents-right">{sum(now["right"])}</b> of {len(heights)} translations, '
            "which nobody gave",
            pairs,
        ),
    ]
    data = {"steps": states, "heights": heights, "thin": THIN, "thick": THICK}
    return "\n".join(
        [
            DOCUMENTS_LOOK,
            f'<div class="documents">{"".join(panels)}</div>',
            f'<div class="documents-steps"><label>After <b id="documents-step">{last}</b> steps of training'
            f'<input id="documents-steps" type="range" min="0" max="{last}" step="{STEPS.step}" value="{last}"></label>'
            "</div>",
            f'<script type="application/json" id="documents-data">{json.dumps(data)}</script>',
            DOCUMENTS_MOVE,
            "",
        ]
    )


PICTURES = {"the two sets": alignment_picture, "the documents": documents_picture}
