"""GPU code behind one door: what encoders and methods use. Each function runs in plain torch where no kernel serves."""

from setwise.kernels.conv import conv_norm, conv_norm_through
from setwise.kernels.conv_plan import Pool, processes_share, share_device
from setwise.kernels.local import local_scores

__all__ = ["Pool", "conv_norm", "conv_norm_through", "local_scores", "processes_share", "share_device"]
