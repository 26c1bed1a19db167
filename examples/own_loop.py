"""QARe in a training loop of your own: an encoder of digits, learned without labels in seconds on a CPU."""

import torch

import setwise as sw
from setwise.evaluation import extract, knn_accuracy

torch.manual_seed(0)
train, test = (sw.data.load("digits", split=split) for split in ("train", "test"))
views = sw.views.preset("self-supervised", mean=train.mean, std=train.std)
encoder = sw.encoders.create("conv4", channels=1)
model = torch.nn.Sequential(encoder, sw.encoders.projection_head())
loss = sw.SetContrastive(sw.NTXent(temperature=0.5), beta=0.5)  # pairwise + 0.5 · QARe
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for epoch in range(8):
    for samples in torch.randperm(len(train)).split(128):
        a, b = views.pair(train.images[samples], samples=samples, seed=0, epoch=epoch)
        terms = loss.terms(model(a), model(b))
        optimizer.zero_grad()
        terms["loss"].backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: " + "  ".join(f"{name} {value.item():.3f}" for name, value in terms.items()))

features = [extract(encoder, images, device="cpu") for images in (train, test)]
accuracy = knn_accuracy(features[0], train.labels, features[1], test.labels, classes=10, k=(20,))[20]
print(f"20 nearest neighbours recognise {accuracy:.1%} of the test digits")
