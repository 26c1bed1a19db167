"""A vision transformer of timm for small images: `pip install timm torchvision` first.

    setwise pretrain --use examples/timm_vit.py --encoder small-vit --optimizer adamw

It shows an encoder of your own. Networks that timm has by name need no file:

    setwise pretrain photos/ --encoder timm/vit_tiny_patch16_224 --size 64
"""

from torch import nn

import setwise as sw


@sw.register.encoder("small-vit", about="timm's VisionTransformer with small patches, for images of few pixels.")
def small_vit(channels: int, *, size: int = 8, patch: int = 2, width: int = 64, depth: int = 4) -> nn.Module:
    """``size``: height and width of the images; ``width``: how many features there are."""
    from timm.models.vision_transformer import VisionTransformer

    options = {"img_size": size, "patch_size": patch, "in_chans": channels, "num_classes": 0, "global_pool": "avg"}
    network: nn.Module = VisionTransformer(**options, embed_dim=width, depth=depth, num_heads=width // 16)
    network.features = width  # every encoder says it
    return network
