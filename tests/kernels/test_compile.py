"""Every kernel compiles for every architecture that it is for, on a machine without a GPU: NVRTC needs none."""

import ctypes
from importlib.metadata import PackageNotFoundError, files
from itertools import product

import pytest
import torch

from setwise.kernels import assign, local, scale
from setwise.kernels import views as view_kernels
from setwise.kernels.conv_plan import Layer, convolution, normalisation, weight_gradient
from setwise.kernels.eigh import FILES, LARGEST, threads_for
from setwise.kernels.nvrtc import source
from setwise.views import preset
from setwise.views.pipeline import Views

PACKAGE = "nvidia-cuda-nvrtc"
ARCHITECTURES = ("80", "90", "100")  # A100, H100 and H200, B200


@pytest.fixture(scope="module")
def nvrtc():
    """NVIDIA's compiler, as pip installs it for the tests."""
    try:
        found = [file.locate() for file in files(PACKAGE) or [] if file.name.startswith("libnvrtc.so")]
        return ctypes.CDLL(str(found[0]))
    except (PackageNotFoundError, IndexError, OSError) as error:
        pytest.skip(f"needs the package {PACKAGE}: {error!r}")


def compiled(nvrtc, text, name, architecture):
    """The size of the binary; the compiler's log as an error."""
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None) == 0
    options = [f"--gpu-architecture=sm_{architecture}".encode()]
    nvrtc.nvrtcAddNameExpression(program, name.encode())
    status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert status == 0, log.value.decode()
    lowered = ctypes.c_char_p()
    assert nvrtc.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(lowered)) == 0
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return size.value


def layer(images, side, channels_in, channels_out, kernel, stride, pool, residual):
    return Layer(
        *(images, side, side, channels_in, channels_out, kernel, stride, True, pool, True, residual, residual, False)
    )


LAYERS = [  # a first layer, Conv-4's, ResNet-32's, and a small batch
    layer(256, 32, 3, 8, 3, 1, "average", False),
    layer(256, 4, 32, 64, 3, 1, "global", False),
    layer(256, 32, 16, 16, 3, 1, "none", True),
    layer(256, 16, 32, 64, 3, 2, "none", False),
    layer(5, 8, 64, 64, 3, 1, "global", True),
]


def convolutions():
    for one in LAYERS:
        turned = [False, True] if one.channels_in % 8 == 0 else [False]
        launches = [convolution(one, 132, turned=x) for x in turned]
        for launch in (*launches, *weight_gradient(one, 132), *normalisation(one, 132)):
            yield launch.files, launch.name, launch.defines


def others():
    for name in ("unit_rows", "unit_rows_backward", "spectra_product", "row_losses", "set_losses"):
        yield ("rows.cu",), name, ()
    for name, channels in product(local.NAMES, (local.CHANNELS[0], local.CHANNELS[-1])):
        yield local.FILES, name, (("CHANNELS", channels),)
    for kind in assign.TYPES.values():
        yield assign.FILES, "assign_sets", (("SCORE", kind), ("THREADS", assign.THREADS))
        yield scale.FILES, "scale_sets", (("SCORE", kind), ("THREADS", scale.THREADS))
    for n in (2, 65, LARGEST):
        yield FILES, "eigh", (("N", n), ("THREADS", threads_for(n)))
    for name in ("self-supervised", "supervised"):
        views: Views = preset(name)
        for kernel in ("draw_views", "apply_views", "views"):
            ranges = views.ranges((32, 32))
            finish = view_kernels.Finish((1.0,) * 3, (0.0,) * 3, torch.bfloat16, True)
            yield ("views.cu",), kernel, tuple(view_kernels._defines(ranges, finish).items())


KERNELS = sorted({*convolutions(), *others()}, key=str)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles(nvrtc, architecture):
    for names, name, defines in KERNELS:
        assert compiled(nvrtc, source(names, dict(defines)), name, architecture) > 1000
