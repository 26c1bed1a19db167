"""open_clip: the values and gradients of its own ``ClipLoss``, in one process and in each form over two (gloo)."""

import importlib.util
import itertools
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.functional import cross_entropy, normalize

import setwise as sw
from setwise.adapters.open_clip import ClipLoss

FORMS = [*itertools.product([False, True], repeat=2)]  # local_loss, gather_with_grad
TOTAL = 6


def their_loss():
    """open_clip's ClipLoss. Its package imports torchvision, which the file of the losses does not need."""
    package = importlib.util.find_spec("open_clip")
    if package is None:
        pytest.skip("needs open_clip_torch, which is not installed here")
    file = Path(package.submodule_search_locations[0]) / "loss.py"
    spec = importlib.util.spec_from_file_location("loss_of_open_clip", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ClipLoss


def dense(images, texts, scale):
    """CLIP's loss, as its paper writes it."""
    logits, truth = scale * images @ texts.T, torch.arange(len(images))
    return (cross_entropy(logits, truth) + cross_entropy(logits.T, truth)) / 2


def batch(dtype=torch.float64):
    """Features [N, E] of images and texts, the logarithm of the scale, and a bias; the features are not normalised."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, TOTAL, 4, generator=generator, dtype=torch.float64).to(dtype).unbind()
    return [x.requires_grad_() for x in (*features, torch.tensor(1.3, dtype=dtype), torch.tensor(-2.0, dtype=dtype))]


def computed(loss, images, texts, log_scale, bias):
    """The value, and its gradients by the four."""
    value = loss(images, texts, log_scale.exp(), bias)
    return value.detach(), *torch.autograd.grad(value, (images, texts, log_scale, bias))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(("local_loss", "gather_with_grad"), FORMS)
def test_equal_in_one_process(dtype, local_loss, gather_with_grad):
    ours, theirs = (loss(local_loss, gather_with_grad) for loss in (ClipLoss, their_loss()))
    torch.testing.assert_close(computed(ours, *batch(dtype)), computed(theirs, *batch(dtype)))
    images, texts, _, _ = batch(dtype)
    for scale in (14.3, 0.0):
        torch.testing.assert_close(ours(images, texts, scale), theirs(images, texts, scale))
    got, expected = (loss(images, texts, 14.3, output_dict=True) for loss in (ours, theirs))
    assert got.keys() == expected.keys()


def test_by_hand_with_a_term():
    images, texts, log_scale, bias = batch()
    loss = ClipLoss(term=sw.QARe(), weight=0.3)
    expected = {"contrastive_loss": dense(images, texts, log_scale.exp()), "set_loss": 0.3 * sw.QARe()(images, texts)}
    torch.testing.assert_close(loss(images, texts, log_scale.exp(), output_dict=True), expected)
    whole = sum(expected.values())
    torch.testing.assert_close(loss(images, texts, log_scale.exp(), bias), whole)
    got = computed(loss, images, texts, log_scale, bias)
    torch.testing.assert_close(got[1:4], torch.autograd.grad(whole, (images, texts, log_scale)))
    assert got[4] == 0, "DDP expects a gradient of every parameter"
    assert "weight=0.3" in repr(loss)


def test_normalised_features_give_the_symmetric_info_nce():
    images, texts = (normalize(z) for z in batch()[:2])
    loss = sw.InfoNCE(temperature=1 / 14.3, symmetric=True)
    torch.testing.assert_close(ClipLoss()(images, texts, 14.3), loss(images, texts))


def test_half_precision_is_compared_in_float32():
    images, texts = (z.detach().half() for z in batch()[:2])
    with torch.autocast("cpu", torch.bfloat16):
        got = ClipLoss()(images, texts, 14.3)
    torch.testing.assert_close(got, dense(images.float(), texts.float(), 14.3))


def test_bad_input():
    images, texts, *_ = batch()
    with pytest.raises(ValueError, match="expected use_horovod=False, got True; start the processes by torchrun"):
        ClipLoss(use_horovod=True)
    with pytest.raises(ValueError, match=r"expected term to be a loss, got the class QARe; QARe\(\) is one"):
        ClipLoss(term=sw.QARe)
    with pytest.raises(ValueError, match="expected weight to be a finite number of at least 0, got -1"):
        ClipLoss(term=sw.QARe(), weight=-1)
    with pytest.raises(ValueError, match=r"expected torch.distributed with rank 1 of 2 processes, got 0 of 1; call"):
        ClipLoss(rank=1, world_size=2)(images, texts, 1.0)
    with pytest.raises(ValueError, match=r"expected z_b of shape \(6, 4\) like z_a, got \(5, 4\)"):
        ClipLoss()(images, texts[:5], 1.0)


def worker(rank, folder, theirs):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    kinds = {"theirs": (their_loss(), {})} if theirs else {}
    kinds |= {"ours": (ClipLoss, {}), "term": (ClipLoss, {"term": sw.QARe(), "weight": 0.3})}
    results = {}
    for (kind, (loss, more)), form in itertools.product(kinds.items(), FORMS):
        images, texts, log_scale, bias = batch()
        own = [z.detach().chunk(2)[rank].clone().requires_grad_() for z in (images, texts)]
        results[kind, form] = computed(loss(*form, rank=rank, world_size=2, **more), *own, log_scale, bias)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def of_two_processes(tmp_path_factory):
    """What each of two processes computes, by (loss, form): the value, and its gradients by the four."""
    folder = tmp_path_factory.mktemp("processes")
    mp.spawn(worker, args=(str(folder), importlib.util.find_spec("open_clip") is not None), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("form", FORMS, ids=["whole", "whole-grad", "local", "local-grad"])
def test_equal_in_two_processes(of_two_processes, form):
    their_loss()
    for results in of_two_processes:
        torch.testing.assert_close(results["ours", form], results["theirs", form])


@pytest.mark.parametrize("form", FORMS, ids=["whole", "whole-grad", "local", "local-grad"])
def test_two_processes_by_hand(of_two_processes, form):
    """What the forms mean, without open_clip; and the term, which always is of the whole batch."""
    local_loss, gather_with_grad = form
    images, texts, log_scale, _ = batch()
    whole, term = dense(images, texts, log_scale.exp()), 0.3 * sw.QARe()(images, texts)
    gradients = torch.autograd.grad(whole, (images, texts, log_scale))
    of_term = torch.autograd.grad(term, (images, texts))
    plain, with_term = ([results[kind, form] for results in of_two_processes] for kind in ("ours", "term"))
    values, by_images, by_texts, by_scale, _ = zip(*plain, strict=True)
    torch.testing.assert_close(torch.stack(values).mean(), whole.detach())
    torch.testing.assert_close(torch.stack(by_scale).mean(), gradients[2])
    assert torch.equal(*values) is not local_loss
    factor = 2 if gather_with_grad else 1  # DDP divides by the number of processes
    if gather_with_grad or not local_loss:
        torch.testing.assert_close(torch.cat(by_images), factor * gradients[0])
        torch.testing.assert_close(torch.cat(by_texts), factor * gradients[1])
    for rank in range(2):
        value, *by_features = (x - y for x, y in zip(with_term[rank][:3], plain[rank][:3], strict=True))
        torch.testing.assert_close(value, term.detach())
        torch.testing.assert_close(by_features, [factor * x.chunk(2)[rank] for x in of_term])
