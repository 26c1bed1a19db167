"""What still needs a GPU, in order of worth. Seconds are of an H200 with 16 cores; or a guess."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from gpu_queue import RESULTS, SCRATCH, Job

Left = Callable[[Path], float | None]
CIFAR10, CIFAR100, MULTI30K, TINY = "cifar-10-batches-bin", "cifar-100-binary", "multi30k", "tiny-imagenet-200"
START = 30.0  # seconds until a process has imported torch, compiled kernels and captured its first step


def read(path: Path) -> dict:
    """A JSON file; nothing of one that is not there."""
    return json.loads(path.read_text()) if path.exists() else {}


# --- tests ---

TESTS = {
    "kernels": ["tests/kernels", "--ignore=tests/kernels/test_views.py"],
    "losses": ["tests/losses", "tests/assignment"],
    "views": ["tests/kernels/test_views.py", "tests/evaluation", "tests/methods", "tests/runs"],
    "training": ["tests/training"],
}


def tests(name: str) -> Job:
    """The GPU tests of some rooms."""
    file = f"logs/tests-{name}.xml"
    options = ("-m", "gpu", "-v", "--continue-on-collection-errors", "-p", "no:cacheprovider")
    words = ("-m", "pytest", *TESTS[name], *options, f"--junitxml={{out}}/{file}")
    return Job(f"tests-{name}", f"GPU tests of {name}: does it compute what a CPU computes?", words, 75, leaves=(file,))


# --- measurements, which run alone ---

LARGE = "bench-large-batches-{gpu}.json"
WAYS = "bench-resnet18-{gpu}.json"


def row_left(out: Path) -> float:
    """The last of the large batches: a million rows with QARe."""
    files = (out / RESULTS).glob(LARGE.format(gpu="*"))
    rows = [row for file in files for row in read(file).get("rows", [])]
    return 0.0 if any(row["loss"] == "float16 + qare" and row["n"] == 2**20 for row in rows) else 60.0


def ways_left(out: Path) -> float:
    """Ways of a ResNet-18 step that are not measured: each compiles for up to a minute."""
    from resnet18_step import WAYS as ways

    files = (out / RESULTS).glob(WAYS.format(gpu="*"))
    known = {row["name"] for file in files for row in read(file).get("ways", [])}
    missing = sum(way.name not in known for way in ways)
    return START + 35.0 * missing if missing else 0.0


def measurements() -> list[Job]:
    """Times, on a quiet device."""
    large, sets, start = (
        f"{RESULTS}/{LARGE}",
        f"{RESULTS}/bench-sets-{{gpu}}.json",
        f"{RESULTS}/bench-start-{{gpu}}.json",
    )
    images = ("{out}/" + f"{SCRATCH}/jpegs", "--make", "100000", "--again", "2", "--device", "cuda")
    return [
        Job(
            "large-batches",
            "docs/scale.md: InfoNCE with QARe of a million rows",
            ("benchmarks/large_batches.py", "--parts", "large", "--out", "{out}/" + large),
            60,
            "four steps of 10 s, as bench-large-batches-h200.json has them",
            left=row_left,
        ),
        Job(
            "sets",
            "a step that knows only sets, against one that knows pairs",
            ("benchmarks/sets.py", "--root", "{data}", "--device", "cuda", "--out", "{out}/" + sets),
            60,
            leaves=(sets,),
            data=(MULTI30K,),
        ),
        Job(
            "start",
            "how long `setwise pretrain FOLDER` takes to its first step, of 100,000 JPEGs",
            ("benchmarks/start.py", *images, "--out", "{out}/" + start),
            180,
            leaves=(start,),
        ),
    ]


# --- the speed record ---

TRIALS = 16


def trials_left(out: Path) -> float:
    """Trials of the search that have no record."""
    missing = TRIALS - len(list((out / "search" / "runs").rglob("seed-*.json")))
    return START + 90.0 * missing if missing > 0 else 0.0


STEP = Job(
    "resnet18-step",
    "docs/speedrun.md: which way to take a ResNet-18 step is fastest",
    ("benchmarks/resnet18_step.py", "--out", "{out}/" + f"{RESULTS}/{WAYS}"),
    765,
    left=ways_left,
    piece=100,
)
KERNELS = f"{RESULTS}/bench-launches-{{gpu}}.json"
SEEN = ("speedrun/cifar10", "modern/cifar10-resnet18-simclr-qare")


def seen(recipe: str) -> Job:
    """The kernels of a step."""

    def left(out: Path) -> float:
        files = (out / RESULTS).glob(Path(KERNELS).name.format(gpu="*"))
        return 0.0 if any(recipe in read(file).get("steps", {}) for file in files) else 40.0

    words = ("benchmarks/step_kernels.py", recipe, "--compile", "--device", "cuda", "--out", "{out}/" + KERNELS)
    name = f"kernels-{recipe.replace('/', '-')}"
    return Job(name, "docs/speedrun.md: what a step is made of", words, 40, "it compiles for 25 s", left=left)


SPEEDRUN = ("-m", "setwise", "speedrun", "--compile", "--device", "cuda", "--root", "{data}")
PLACES = ("--out", "{out}/" + f"{SCRATCH}/runs", "--results", "{out}/" + RESULTS)
FRESH = range(101, 111)  # seeds that no choice has seen


def race(
    name: str, about: str, words: str, kind: str, seeds: Sequence[int], seconds: float, data: str = CIFAR10
) -> Job:
    """Runs under the clock, of several seeds one after the other."""
    leaves = tuple(f"{RESULTS}/speedrun/{name}/{kind}/seed-{seed}.json" for seed in seeds)
    options = (*words.split(), "--seeds", *map(str, seeds), "--name", f"speedrun/{name}")
    words_of_all = (*SPEEDRUN, *options, *PLACES)
    title = f"speedrun-{name.replace('/', '-')}"
    return Job(title, about, words_of_all, seconds * len(seeds), "9 to 11 ms a step", leaves, data=(data,))


TERM = [
    race(
        f"{name}-short",
        "docs/speedrun.md: does QARe help the record's recipe, seed by seed, at a third of its length",
        f"--change epochs=28 warmup=1.75 {term}",
        "validation",
        FRESH,
        27,
    )
    for name, term in (("plain", ""), ("qare", "--term qare=0.5"))
]


# The table of methods: which term SimCLR has beside it is chosen on validation images, then all are run.
LENGTHS = {"simclr": (200, 245), "byol": (200, 320), "barlow-twins": (200, 260), "vicreg": (200, 260)}
LENGTHS |= {"many-patches": (30, 370)}  # epochs, and seconds of a run with its evaluation
CHOICES = ("", "qare=0.5", "qare=2", "gap=0.5", "coding-rate=0.1")


def compared() -> list[Job]:
    """The runs of the table of methods, plain."""
    made = []
    for data, place in (("cifar10", CIFAR10), ("cifar100", CIFAR100)):
        about, start = "docs/speedrun.md: which term do validation images choose", f"--recipe modern/{data}-resnet18-"
        for term in CHOICES:
            name, words = term.replace("=", "-") or "none", f"--term {term}" if term else ""
            more = f"{start}simclr --change epochs=40 warmup=2 {words}"
            made.append(race(f"terms/{data}/{name}", about, more, "validation", (1,), 55, place))
        for method, (epochs, seconds) in LENGTHS.items():
            more, seeds = f"{start}{method} --change epochs={epochs} --test", (1, 2, 3) if method == "simclr" else (1,)
            about = "docs/speedrun.md: the table of methods"
            made.append(race(f"methods/{data}/{method}", about, more, "test", seeds, seconds, place))
    about, more = "docs/speedrun.md: the record's recipe on CIFAR-100", "--change data.source=cifar100 --test"
    return [*made, race("methods/cifar100/small-parts", about, more, "test", (1,), 90, CIFAR100)]


SEARCH = Job(
    "speedrun-search",
    "docs/speedrun.md: recipes that reach 90 % for less",
    (
        *("benchmarks/speedrun_search.py", "--trials", str(TRIALS), "--at-once", "2", "--minutes", "10"),
        *("--results", "{out}/search", "--root", "{data}", "--device", "cuda"),
    ),
    660,
    "a guess; it is given ten minutes at a time",
    left=trials_left,
    piece=300,
    beside=True,
    cores=16,
    data=(CIFAR10,),
)

# --- records of runs ---

HALVES, PARTS = f"{RESULTS}/sets-halves.json", 21  # as many parts as settings


def halves_left(out: Path) -> float | None:
    """None while a tuned run of a setting lacks: parts are not counted apart."""
    from sets_study import SEEDS, settings

    tuned = sum("/tuned/" in key for key in read(out / HALVES))
    wanted = len(SEEDS) * sum(setting.data == "halves" for setting in settings("halves"))
    return 0.0 if tuned == wanted else None


def halves(part: int) -> Job:
    """A setting of the study of halves."""
    words = ("benchmarks/sets_study.py", "{data}", "--study", "halves", "--data", "halves", "--part", f"{part}/{PARTS}")
    return Job(
        f"halves-{part}",
        "docs on sets: halves of all 50,000 images in sets of 1 to 128",
        (*words, "--device", "cuda", "--out", "{out}/" + HALVES),
        360,
        left=halves_left,
        piece=60,
        beside=True,
        data=(CIFAR10,),
    )


def runs(name: str, about: str, words: str, seconds: float, *, at_once: int, speed: float, piece: float) -> Job:
    """Runs of `setwise reproduce`: ``at_once`` side by side, which makes ``speed`` times as many as one at a time."""
    tables, *options = words.split(" --")
    given = {key: values for key, *values in (option.split() for option in options)}
    data = given.get("data", ["cifar10"])[0]

    def left(out: Path) -> float:
        from setwise.paper.jobs import expand
        from setwise.paper.reproduce import estimate

        jobs = expand(tables.split(), data=data, only=given.get("only", ()), results=out / RESULTS)
        missing = [job for job in jobs if not job.record(out / RESULTS).exists()]
        return START + sum(filter(None, estimate(missing, out / RESULTS))) / speed if missing else 0.0

    places = ("--results", "{out}/" + RESULTS, "--scratch", "{out}/" + f"{SCRATCH}/reproduce", "--root", "{data}")
    return Job(
        name,
        about,
        (
            "-m",
            "setwise",
            "reproduce",
            *words.split(),
            *places,
            "--at-once",
            str(at_once),
            "--forget",
            "--device",
            "cuda",
        ),
        seconds,
        "from bench-step*.json",
        left=left,
        piece=piece,
        beside=True,
        cores=at_once,
        data=({"cifar10": CIFAR10, "cifar100": CIFAR100, "tiny-imagenet": TINY}[data],),
    )


CONV4 = {"at_once": 15, "speed": 3.3, "piece": 150.0}  # 15 runs of 200 epochs took 140 s, one alone 31 s
RESNET32 = {"at_once": 6, "speed": 1.6, "piece": 180.0}  # 6 made 40 runs an hour, one alone 24
LONG = RESNET32 | {"at_once": 3, "piece": 360.0}  # of 200 epochs: what is not done in the end is lost


TUNED = "findings: SimCLR and SimCLR with each term, equally well tuned"


def findings() -> list[Job]:
    """Tables that the findings lack."""
    return [
        runs("tuned-cifar10", f"{TUNED}; Conv-4", "tuned", 330, **CONV4),
        runs("tuned-cifar100", f"{TUNED}; Conv-4", "tuned --data cifar100", 500, **CONV4),
        runs("map", "findings: where a set-level term pays", "map", 900, **CONV4),
    ]


def tables() -> list[Job]:
    """The others, the short ones and those that teach most first."""
    return [
        runs("tuning-resnet32", f"{TUNED}; trials of ResNet-32", "tuning --only resnet32", 800, **RESNET32),
        runs("tuned-resnet32", f"{TUNED}; ResNet-32", "tuned --only resnet32", 900, **LONG),
        runs(
            "tiny-conv4",
            "tables 2 and 3 on tiny-ImageNet",
            "table2 table3 --data tiny-imagenet --only conv4",
            4400,
            **CONV4,
        ),
        runs("map-cifar100", "findings: does a term pay on other data, too", "map --data cifar100", 900, **CONV4),
        runs("tables-resnet32", "tables 2 and 3, ResNet-32", "table2 table3 --only resnet32", 3400, **LONG),
        runs("tables-cifar100", "tables 2 and 3 on CIFAR-100", "table2 table3 --data cifar100", 3600, **LONG),
        runs("fig-beta-resnet32", "figure 2, ResNet-32", "fig-beta --only resnet32", 4000, **LONG),
    ]


JOBS = (
    *measurements(),
    *TERM,
    *map(seen, SEEN),
    *findings(),
    *compared(),
    STEP,
    SEARCH,
    *map(tests, TESTS),
    *tables(),
    *(halves(part) for part in range(1, PARTS + 1)),
)
