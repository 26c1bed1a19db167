"""SimCLR with QARe in PyTorch Lightning, which `pip install lightning` adds: `python examples/lightning_module.py`.

On many GPUs (strategy="ddp") the loss is that of the whole batch: see ``on_fit_start``.
"""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import setwise as sw


class SetContrastiveModule(lightning.LightningModule):
    """An encoder and a head, trained on two views of each image."""

    def __init__(self, data: sw.data.ImageSet, beta: float = 0.5, lr: float = 1e-3) -> None:
        super().__init__()
        self.encoder = sw.encoders.create("conv4", channels=data.images.shape[1])
        self.head = sw.encoders.projection_head(self.encoder.features, 256, 64)
        self.views = sw.views.preset("self-supervised", mean=data.mean, std=data.std)
        self.loss = sw.SetContrastive(sw.InfoNCE(temperature=0.05), beta=beta)
        self.lr = lr

    def on_fit_start(self) -> None:
        self.loss = sw.distributed(self.loss)

    def training_step(self, batch: list[torch.Tensor], step: int) -> torch.Tensor:
        images, samples = batch
        pair = self.views.pair(images, samples=samples, seed=0, epoch=self.current_epoch)  # [2, B, C, H, W]
        z_a, z_b = self.head(self.encoder(pair.flatten(0, 1))).chunk(2)
        terms = self.loss.terms(z_a, z_b)
        self.log_dict(terms, on_step=False, on_epoch=True, prog_bar=True)
        return terms["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


if __name__ == "__main__":
    digits = sw.data.load("digits", split="train")
    samples = TensorDataset(digits.images, torch.arange(len(digits)))
    loader = DataLoader(samples, batch_size=128, shuffle=True, drop_last=True)
    trainer = lightning.Trainer(max_epochs=20, logger=False, enable_checkpointing=False)
    trainer.fit(SetContrastiveModule(digits), loader)
    print({name: round(value.item(), 3) for name, value in trainer.callback_metrics.items()})
