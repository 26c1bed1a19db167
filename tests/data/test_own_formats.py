"""Every format and kind of pixels that one's own images may have, against Pillow by hand."""

import struct

import numpy as np
import pytest
from PIL import Image

import setwise as sw
from setwise.data import DataError
from setwise.data.formats.decode import FORMATS, read_image

RNG = np.random.default_rng(0)
NOISE = RNG.integers(0, 256, (20, 30, 3), dtype=np.uint8)
SIXTEEN = RNG.integers(0, 2**16, (20, 30), dtype=np.uint16)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("suffix", [".png", ".tiff"])
def test_the_content_counts_not_the_name(tmp_path, form, suffix):
    path = tmp_path / f"one{suffix}"
    Image.fromarray(NOISE).save(path, form)
    with Image.open(path) as image:
        assert image.format == form
        assert np.array_equal(read_image(path), np.array(image.convert("RGB")))


@pytest.mark.parametrize("name", ["a.png", "a.JPG", "a.jpeg", "a.webp", "a.gif", "a.bmp", "a.tif", "a.TIFF"])
def test_these_endings_are_images(tmp_path, name):
    Image.fromarray(NOISE).save(tmp_path / name)
    assert sw.data.load(tmp_path).paths == (name,)


@pytest.mark.parametrize("form", ["GIF", "WEBP", "TIFF", "PNG"])
def test_of_many_frames_the_first_is_read(tmp_path, form):
    first, second = (Image.new("RGB", (30, 20), colour) for colour in ("red", "blue"))
    options = {"lossless": True} if form == "WEBP" else {}
    first.save(tmp_path / "one", form, save_all=True, append_images=[second], **options)
    assert (read_image(tmp_path / "one") == (255, 0, 0)).all()


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_of_sixteen_bits_the_upper_eight_stay(tmp_path, form):
    Image.fromarray(SIXTEEN).save(tmp_path / "one", form)
    found = read_image(tmp_path / "one")
    assert np.array_equal(found, np.repeat((SIXTEEN // 256).astype(np.uint8)[..., None], 3, axis=2))


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr"])
def test_modes_become_colours_as_pillow_converts_them(tmp_path, mode):
    made = Image.fromarray(NOISE).convert(mode)
    form = {"CMYK": "TIFF", "YCbCr": "TIFF"}.get(mode, "PNG")
    made.save(tmp_path / "one", form)
    assert np.array_equal(read_image(tmp_path / "one"), np.array(made.convert("RGB")))


def test_a_jpeg_of_cmyk(tmp_path):
    Image.new("CMYK", (32, 32), (0, 255, 255, 0)).save(tmp_path / "one", "JPEG", quality=100)
    assert np.abs(read_image(tmp_path / "one").astype(int) - (255, 0, 0)).max() < 8


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L", "RGB"])
def test_what_is_transparent_lies_on_white(tmp_path, mode):
    path = tmp_path / "one.png"
    if mode in ("RGBA", "LA"):
        colours = NOISE if mode == "RGBA" else NOISE[..., :1]
        alpha = np.zeros((20, 30, 1), np.uint8)
        alpha[5:], alpha[10:] = 255, 128
        Image.fromarray(np.concatenate([colours, alpha], axis=2)).save(path)
        share = alpha / 255
        expected = np.rint(np.broadcast_to(colours, (20, 30, 3)) * share + 255 * (1 - share))
    else:  # one colour is transparent
        made = Image.fromarray(NOISE).convert(mode)
        key = made.getpixel((0, 0))
        made.save(path, transparency=key)
        expected = np.array(made.convert("RGB"))
        raw = np.array(made).reshape(20, 30, -1)
        expected[(raw == key).all(2)] = 255
    assert np.abs(read_image(path) - expected).max() <= 1


def test_an_opaque_alpha_changes_nothing(tmp_path):
    Image.fromarray(NOISE).convert("RGBA").save(tmp_path / "one.png")
    assert np.array_equal(read_image(tmp_path / "one.png"), NOISE)


@pytest.mark.parametrize("form", ["JPEG", "WEBP", "PNG", "TIFF"])
def test_every_orientation(tmp_path, form):
    """The EXIF tag says where the first row and the first column of the file are seen."""
    corner = np.zeros((16, 32, 3), np.uint8)
    corner[:8, :8] = 255  # of the file: the first row and column
    seen = {1: "tl", 2: "tr", 3: "br", 4: "bl", 5: "tl", 6: "tr", 7: "br", 8: "bl"}
    for orientation, place in seen.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(corner).save(tmp_path / "one", form, exif=exif)
        found = read_image(tmp_path / "one")
        assert found.shape == ((16, 32, 3) if orientation < 5 else (32, 16, 3))
        rows = slice(1, 7) if place[0] == "t" else slice(-7, -1)
        columns = slice(1, 7) if place[1] == "l" else slice(-7, -1)
        assert found[rows, columns].min() > 200
        assert found.mean() < 80


@pytest.mark.parametrize("mode", ["F", "I"])
def test_pixels_without_a_known_range_are_refused(tmp_path, mode):
    Image.new(mode, (8, 8)).save(tmp_path / "one", "TIFF")
    with pytest.raises(DataError, match=f"one .* pixels of mode {mode}"):
        read_image(tmp_path / "one")


def patched(raw, at, numbers):
    return raw[:at] + numbers + raw[at + len(numbers) :]


LIES = {  # where each format says how large it is: 9,000 x 9,000
    "GIF": lambda raw: patched(raw, 6, struct.pack("<HH", 9000, 9000)),
    "BMP": lambda raw: patched(raw, 18, struct.pack("<ii", 9000, 9000)),
    "WEBP": lambda raw: patched(raw, 21, struct.pack("<I", 8999 | 8999 << 14)),
    "TIFF": lambda raw: raw.replace(struct.pack("<II", 1, 8), struct.pack("<II", 1, 9000), 2),
}


@pytest.mark.parametrize("form", LIES)
def test_headers_that_lie_about_the_size_are_refused(tmp_path, form):
    path = tmp_path / "one"
    Image.new("RGB", (8, 8)).save(path, form, **({"lossless": True} if form == "WEBP" else {}))
    path.write_bytes(LIES[form](path.read_bytes()))
    with pytest.raises(DataError, match="9000 x 9000 pixels in .* bytes, which cannot hold them"):
        read_image(path)


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_libtiff_prints_nothing(tmp_path, capfd):
    Image.fromarray(NOISE).save(tmp_path / "good.png")
    for compression, broken in (("tiff_lzw", slice(200, 400)), ("tiff_deflate", slice(300, 500))):
        path = tmp_path / f"{compression}.tif"
        Image.fromarray(NOISE).save(path, compression=compression)
        raw = bytearray(path.read_bytes())
        raw[broken] = bytes(255 - x for x in raw[broken])
        path.write_bytes(raw)
    assert sw.data.load(tmp_path, options={"skip_broken": True}).paths == ("good.png",)
    assert {path for path, _ in sw.data.survey(tmp_path).broken} == {"tiff_lzw.tif", "tiff_deflate.tif"}
    assert capfd.readouterr().err == ""
    with pytest.raises(OSError, match="decoder error"), Image.open(tmp_path / "tiff_lzw.tif") as image:
        image.load()
    assert capfd.readouterr().err != ""  # elsewhere it speaks as before
