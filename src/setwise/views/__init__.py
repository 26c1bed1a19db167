"""Augmentations of whole batches on the device, their parameters drawn per sample from (seed, epoch, sample, view)."""

from setwise.kernels.views import Parameters
from setwise.views.pipeline import PRESETS, Views, preset
from setwise.views.preview import contact_sheet

__all__ = ["PRESETS", "Parameters", "Views", "contact_sheet", "preset"]
