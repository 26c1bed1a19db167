"""The fused kernel against plain torch: the same parameters to the bit, the same pixels to rounding."""

from dataclasses import replace

import pytest
import torch

from setwise.views import PRESETS, Parameters, Views, draw, preset, render

SIZES = [(3, 32, 32), (1, 8, 8), (3, 64, 64), (3, 128, 64), (3, 7, 45), (1, 1, 1), (3, 224, 160)]


def batch(n, channels, height, width):
    shape = (n, channels, height, width)
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(height), dtype=torch.uint8)


@pytest.mark.gpu
class TestKernels:
    @pytest.mark.parametrize("name", [name for name in PRESETS if name != "parts"])
    @pytest.mark.parametrize(("channels", "height", "width"), SIZES)
    def test_same_views(self, name, channels, height, width):
        views, images, samples = (
            preset(name, mean=0.4, std=0.5),
            batch(50, channels, height, width),
            torch.arange(50),
        )
        keys = {"seed": 2**40 + 3, "epoch": 7, "view": 3}
        here = views.draw(samples.cuda(), (height, width), **keys)
        there = views.draw(samples, (height, width), **keys)
        for got, expected in zip(here, there, strict=True):
            assert torch.equal(got.cpu(), expected)
        expected = views.apply(images, there)
        for got in (
            views.apply(images.cuda(), here),
            views(images.cuda(), samples=samples.cuda(), **keys),
        ):
            away = (got.cpu() - expected).abs()
            assert away.max() < 0.1 / 255
            assert away.mean() < 1e-6

    @pytest.mark.parametrize("seed", [0, 2**63 - 1])
    @pytest.mark.parametrize("size", [(32, 32), (128, 64), (9, 31), (500, 375)])
    def test_many_parameters_to_the_bit(self, size, seed):
        samples = torch.cat([torch.arange(200_000), 2**40 + torch.arange(1000)])
        wide = Views(crop="resized", area=(0.01, 0.9), aspect=(0.1, 9.0), hue=0.5, jitter=0.3, grey=0.7, contrast=1.7)
        for views in (preset("self-supervised"), preset("supervised"), wide):
            here = views.draw(samples.cuda(), size, seed=seed, epoch=2**32 - 1, view=2**20)
            there = views.draw(samples, size, seed=seed, epoch=2**32 - 1, view=2**20)
            for got, expected in zip(here, there, strict=True):
                assert got.dtype == expected.dtype
                assert torch.equal(got.cpu(), expected)

    def test_plain_torch_on_the_device(self):
        views, samples = preset("self-supervised"), torch.arange(500).cuda()
        images, ranges, key = batch(500, 3, 32, 32).cuda(), views.ranges((32, 32)), torch.tensor(5).cuda()
        plain = draw.draw(ranges, samples, key, key, 1, (32, 32))
        for got, expected in zip(views.draw(samples, (32, 32), seed=5, epoch=5, view=1), plain, strict=True):
            assert torch.equal(got, expected)
        out = render.apply(images, plain, views.finish(3, torch.float32, False))
        torch.testing.assert_close(views.apply(images, plain), out, rtol=0, atol=0.1 / 255)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("channels_last", [False, True])
    def test_formats(self, dtype, channels_last):
        views = preset("self-supervised", mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
        images, samples = batch(33, 3, 32, 32), torch.arange(33)
        options = {"seed": 1, "epoch": 2}
        got = views.pair(images.cuda(), samples=samples.cuda(), dtype=dtype, channels_last=channels_last, **options)
        expected = views.pair(images, samples=samples, **options)
        assert got.dtype == dtype
        assert got[0].is_contiguous(memory_format=torch.channels_last) == channels_last
        assert got[0].is_contiguous() != channels_last
        torch.testing.assert_close(got.cpu().float(), expected, rtol=2**-8 if dtype == torch.bfloat16 else 0, atol=1e-3)
        one = views(images.cuda(), samples=samples.cuda(), view=1, dtype=dtype, channels_last=channels_last, **options)
        assert torch.equal(one, got[1])
        strided = images.cuda().to(memory_format=torch.channels_last)
        assert torch.equal(views.pair(strided, samples=samples.cuda(), dtype=dtype, **options), got)

    @pytest.mark.parametrize("name", ["self-supervised", "byol"])
    def test_parts_of_the_same_places(self, name):
        views, images, rows = replace(preset(name), crop="part", size=(9, 14)), batch(50, 3, 32, 24), torch.arange(50)
        keys = {"seed": 2**40 + 3, "epoch": 7, "first": 2, "channels_last": True}
        here = views.several(images.cuda(), 3, samples=rows.cuda(), **keys)
        there = views.several(images, 3, samples=rows, **keys)
        assert here.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
        away = (here.cpu() - there).abs()
        assert away.max() < 0.1 / 255
        assert away.mean() < 1e-6

    @pytest.mark.parametrize("part", [False, True])
    @pytest.mark.parametrize("name", ["self-supervised", "byol"])
    def test_capture_and_replay(self, name, part):
        views = replace(preset(name), crop="part", size=(16, 16)) if part else preset(name)
        images, samples = batch(40, 3, 32, 32).cuda(), torch.arange(40).cuda()
        seed, epoch = torch.tensor(3).cuda(), torch.tensor(0).cuda()
        views.pair(images, samples=samples, seed=seed, epoch=epoch)  # compiles
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = views.pair(images, samples=samples, seed=seed, epoch=epoch)
        seen = []
        for step in range(3):
            epoch.fill_(step)
            samples.add_(100)
            images.copy_(batch(40, 3, 32, 32).roll(step, 0))
            graph.replay()
            fresh = views.pair(images, samples=samples.clone(), seed=3, epoch=step)
            assert torch.equal(out, fresh)
            seen.append(out.clone())
        assert not torch.equal(seen[0], seen[1])

    def test_capture_before_the_first_use(self):
        views = Views(flip=0.123)
        images, samples, key = batch(4, 3, 8, 8).cuda(), torch.arange(4).cuda(), torch.tensor(0).cuda()

        def capture():
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                key.add_(1)  # torch warns of an empty graph
                views(images, samples=samples, seed=key, epoch=key)

        with pytest.raises(RuntimeError, match="run one step outside of the capture first"):
            capture()

    def test_batches_do_not_matter(self):
        views, images, samples = preset("self-supervised"), batch(67, 3, 32, 32).cuda(), torch.arange(67).cuda()
        whole = views(images, samples=samples, seed=5, epoch=2)
        for part in (*samples.split(5), samples[:0]):
            assert torch.equal(views(images[part], samples=part, seed=5, epoch=2), whole[part])

    def test_given_parameters(self):
        images = batch(64, 3, 20, 12)
        views = replace(preset("self-supervised"), hue=0.5)
        parameters = views.draw(torch.arange(64), (20, 12), seed=0, epoch=0)
        moved = parameters._replace(box=parameters.box - torch.tensor([3, 5, 0, 0], dtype=torch.int32))
        expected = views.apply(images, moved)
        got = views.apply(images.cuda(), Parameters(*(x.cuda() for x in moved)))
        torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=0.1 / 255)
