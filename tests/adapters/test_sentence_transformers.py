"""sentence-transformers: the values, gradients and training steps of its own losses; terms, hard negatives, caching."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import setwise as sw

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (*SPECIAL, "the", "a", "cat", "dog", "bird", "sees", "hears", "finds", "red", "blue", "old", "new")
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "other-libraries.md"
pytestmark = pytest.mark.filterwarnings("ignore")  # their own, about each other


@pytest.fixture
def adapter(package):
    """Our module, where theirs imports."""
    package("sentence_transformers")
    import setwise.adapters.sentence_transformers as adapter

    return adapter


@pytest.fixture
def losses(package):
    return package("sentence_transformers.losses")


@pytest.fixture
def new_model(adapter, package, tmp_path):
    """Makes the same small random BERT each time, in float64; ``dropout``: whether it is in training mode."""
    transformers, theirs = package("transformers"), package("sentence_transformers")
    models = package("sentence_transformers.models")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    folder = tmp_path / "bert"
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=16, **sizes)
    transformers.BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)

    def make(dropout=False):
        transformer = models.Transformer(str(folder))
        pooling = models.Pooling(transformer.get_word_embedding_dimension())
        return theirs.SentenceTransformer(modules=[transformer, pooling], device="cpu").double().train(dropout)

    return make


def sentences(columns, rows=7):
    """Texts of different lengths, by column."""
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(len(SPECIAL), len(WORDS), (columns, rows, 6), generator=generator).tolist()
    lengths = torch.randint(2, 7, (columns, rows), generator=generator).tolist()
    return [
        [" ".join(WORDS[i] for i in text[:length]) for text, length in zip(*column, strict=True)]
        for column in zip(words, lengths, strict=True)
    ]


def features(model, columns):
    return [model.tokenize(texts) for texts in sentences(columns)]


def computed(loss, columns, scale=1.0):
    """The value of a loss and the gradients of all parameters of its model."""
    torch.manual_seed(3)
    value = loss(features(loss.model, columns), None)
    (scale * value).backward()
    return value.detach(), {name: x.grad for name, x in loss.model.named_parameters()}


@pytest.mark.parametrize("columns", [2, 3, 4])
def test_equal_to_multiple_negatives_ranking(adapter, losses, new_model, columns):
    ours, theirs = (loss(new_model()) for loss in (adapter.SetLoss, losses.MultipleNegativesRankingLoss))
    torch.testing.assert_close(computed(ours, columns), computed(theirs, columns))


@pytest.mark.parametrize("columns", [2, 4])
def test_equal_to_the_cached_one(adapter, losses, new_model, columns):
    kinds = (adapter.SetLoss, losses.CachedMultipleNegativesRankingLoss)
    ours, theirs = (loss(new_model(dropout=True), mini_batch_size=3) for loss in kinds)
    got, expected = computed(ours, columns, scale=0.25), computed(theirs, columns, scale=0.25)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("columns", [2, 3])
def test_cached_batches_change_nothing(adapter, new_model, columns):
    loss = sw.SetContrastive(sw.NTXent(0.1), 0.5, sw.QARe(reference="truth"))
    whole, parts = (adapter.SetLoss(new_model(), loss, mini_batch_size=size) for size in (None, 2))
    torch.testing.assert_close(computed(parts, columns, scale=0.25), computed(whole, columns, scale=0.25))
    with torch.no_grad():
        values = [loss(features(loss.model, columns)) for loss in (whole, parts)]
    torch.testing.assert_close(*values)


def test_a_term_by_hand(adapter, new_model):
    model = new_model()
    a, b, c, d = (model(x)["sentence_embedding"] for x in features(model, 4))
    loss = adapter.SetLoss(model, sw.SetContrastive(sw.InfoNCE(0.1), 0.3, alpha=0.7))
    unit = [z / z.norm(dim=1, keepdim=True) for z in (a, b, c, d)]
    scores = unit[0] @ torch.cat(unit[1:]).T / 0.1
    pairwise = torch.nn.functional.cross_entropy(scores, torch.arange(len(a)))
    torch.testing.assert_close(loss(features(model, 4)), 0.7 * pairwise + 0.3 * sw.functional.qare(a, b))
    torch.testing.assert_close(loss(features(model, 4)[:2]), loss.loss(a, b))


@pytest.fixture
def trained(package, tmp_path):
    """Trains a loss's model for two steps on (anchor, positive, negative) and gives its parameters."""
    for name in ("datasets", "accelerate"):
        package(name)
    theirs, datasets = package("sentence_transformers"), package("datasets")

    def train(loss, **more):
        columns = dict(zip(("anchor", "positive", "negative"), sentences(3, rows=8), strict=True))
        options = {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "use_cpu": True}
        quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "logging_strategy": "no"}
        arguments = theirs.SentenceTransformerTrainingArguments(str(tmp_path / "run"), **options, **quiet, **more)
        trainer = theirs.SentenceTransformerTrainer(
            loss.model, arguments, train_dataset=datasets.Dataset.from_dict(columns), loss=loss
        )
        trainer.train()
        assert trainer.state.global_step == 2
        return dict(loss.model.named_parameters())

    return train


@pytest.mark.parametrize("cached", [False, True], ids=["whole", "cached"])
def test_two_steps_of_their_trainer(adapter, losses, new_model, trained, cached):
    theirs = losses.CachedMultipleNegativesRankingLoss if cached else losses.MultipleNegativesRankingLoss
    options = {"mini_batch_size": 2} if cached else {}
    start = dict(new_model().named_parameters())
    made = [loss(new_model(), **options) for loss in (adapter.SetLoss, theirs)]
    for module in (module for loss in made for module in loss.model.modules()):
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    ours, expected = (trained(loss, gradient_accumulation_steps=2) for loss in made)
    torch.testing.assert_close(ours, expected)
    assert max((x - start[name]).abs().max() for name, x in ours.items()) > 1e-3


def test_their_trainer_learns_a_temperature(adapter, new_model, trained):
    temperature = torch.nn.Parameter(torch.tensor(0.05))
    trained(adapter.SetLoss(new_model(), sw.InfoNCE(temperature)))
    assert abs(temperature.item() - 0.05) > 1e-4


def embeddings():
    return torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def worker(rank, folder):
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    from setwise.adapters.sentence_transformers import SetLoss

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    results = []
    theirs = MultipleNegativesRankingLoss(None, gather_across_devices=True)
    for loss in (SetLoss(None, sw.distributed(sw.InfoNCE())), theirs):
        own = [z.chunk(2)[rank].clone().requires_grad_() for z in embeddings()]
        value = loss.compute_loss_from_embeddings(own, None)
        results.append((value.detach(), *torch.autograd.grad(value, own)))
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_as_they_gather_across_devices(adapter, tmp_path):
    mp.spawn(worker, args=(str(tmp_path),), nprocs=2)
    both = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for ours, theirs in both:
        torch.testing.assert_close(ours[1:], theirs[1:])
        torch.testing.assert_close(ours[0], torch.stack([x[0] for _, x in both]).mean())  # theirs: of its own rows
        torch.testing.assert_close(ours[0], sw.functional.info_nce(*embeddings()))


def test_config(adapter, new_model):
    loss = adapter.SetLoss(new_model(), sw.SetContrastive(sw.InfoNCE(0.1)), mini_batch_size=8)
    told = json.loads(json.dumps(loss.get_config_dict()))
    assert told["mini_batch_size"] == 8
    assert "temperature=0.1" in told["loss"]
    assert "\n" not in told["loss"]


def test_bad_input(adapter, package, new_model):
    model = new_model()
    with pytest.raises(ValueError, match=r"expected loss to be a loss, got the class InfoNCE; InfoNCE\(\) is one"):
        adapter.SetLoss(model, sw.InfoNCE)
    with pytest.raises(ValueError, match="expected mini_batch_size to be None or a positive integer, got 0"):
        adapter.SetLoss(model, mini_batch_size=0)
    with pytest.raises(ValueError, match='expected a loss on="embeddings", got on="features"'):
        adapter.SetLoss(model, sw.SetContrastive(sw.InfoNCE(), on="features"))
    with pytest.raises(ValueError, match="expected a loss without parameters for mini_batch_size, got a learned one"):
        adapter.SetLoss(model, sw.InfoNCE(torch.nn.Parameter(torch.tensor(0.1))), mini_batch_size=2)
    with pytest.raises(ValueError, match="expected columns anchor and positive at least, got 1"):
        adapter.SetLoss(model)(features(model, 1))
    tokenizer, static = model.tokenizer, package("sentence_transformers.models").StaticEmbedding
    words = package("sentence_transformers").SentenceTransformer(modules=[static(tokenizer, embedding_dim=4)])
    with pytest.raises(ValueError, match="expected a model whose batches can be split for mini_batch_size, got a Stat"):
        adapter.SetLoss(words, mini_batch_size=2)
    adapter.SetLoss(words)(features(words, 3)).backward()


def test_the_page_is_right(adapter, package, new_model, tmp_path, monkeypatch):
    for name in ("datasets", "accelerate"):
        package(name)
    monkeypatch.chdir(tmp_path)
    new_model().save("my-model")
    (block,) = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    exec(compile(block, PAGE.name, "exec"), {"sw": sw})
