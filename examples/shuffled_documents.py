"""Align the sentences of shuffled documents: all that is known is which two documents say the same.

The example makes its own text: English sentences, and a language of made-up words in another order. The two share no
word, so the encoders have to learn what means what. Nobody tells them which sentence is whose translation.
"""

import itertools
import random

import torch

import setwise as sw

WHO = ["baker", "child", "dog", "farmer", "girl", "king", "nurse", "sailor", "teacher", "uncle", "wolf", "woman"]
DOES = ["buys", "draws", "finds", "hides", "likes", "loses", "paints", "sees", "sells", "takes", "wants", "washes"]
HOW = ["big", "blue", "cheap", "clean", "heavy", "new", "old", "red", "round", "small", "strange", "warm"]
WHAT = ["apple", "boat", "book", "chair", "coat", "drum", "hat", "key", "lamp", "letter", "stone", "wheel"]
WORDS = ["the", "a", *WHO, *DOES, *HOW, *WHAT]
LENGTH = 12  # sentences of a document
draw = random.Random(0)
torch.manual_seed(0)
syllables = ["".join(two) for two in itertools.product("bdfgklmnprstvz", "aeiou")]
made_up = dict(zip(WORDS, ("".join(draw.choices(syllables, k=3)) for _ in WORDS), strict=True))
number = {word: i for words in (made_up, made_up.values()) for i, word in enumerate(words, start=1)}


def document() -> tuple[list[str], list[str], list[int]]:
    """English sentences, their translations in another order, and where each one's is: training leaves that aside."""
    few = [draw.sample(words, 5) for words in (WHO, DOES, HOW, WHAT)]  # the sentences of one document are much alike
    said = draw.sample([*itertools.product(*few)], LENGTH)
    places = draw.sample(range(LENGTH), LENGTH)
    english = [f"the {who} {does} a {how} {what}" for who, does, how, what in said]
    other = [" ".join(made_up[word] for word in (does, "the", who, "a", what, how)) for who, does, how, what in said]
    return english, [other[i] for i in places], [places.index(i) for i in range(LENGTH)]


def embed(documents: list[tuple[list[str], list[str], list[int]]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The embeddings of all English sentences and of all others, and the document of each: the same for both."""
    sides = ([sentence for one in documents for sentence in one[side]] for side in (0, 1))
    ids = (torch.tensor([[number[word] for word in sentence.split()] for sentence in side]) for side in sides)
    z_a, z_b = (encoder(x) for encoder, x in zip(encoders, ids, strict=True))
    return z_a, z_b, torch.arange(len(documents)).repeat_interleave(LENGTH)


def align() -> sw.Alignment:
    """Match the sentences of each new document one to one, and say how many are right."""
    with torch.no_grad():
        z_a, z_b, sets = embed(new)
    found = sw.align(z_a, z_b, sets=(sets, sets))
    truth = torch.cat([LENGTH * i + torch.tensor(places) for i, (_, _, places) in enumerate(new)])
    print(f"{(found.partner == truth).double().mean():.1%} of {len(truth)} sentences have the right partner")
    return found


known, new = ([document() for _ in range(count)] for count in (100, 20))
encoders = torch.nn.ModuleList(sw.encoders.create("bag", channels=1 + len(WORDS), features=32) for _ in range(2))
loss = sw.InfoNCE(temperature=0.1, symmetric=True)
optimizer = torch.optim.Adam(encoders.parameters(), lr=0.02)

print("before: ", end="")
align()
for _ in range(150):
    z_a, z_b, sets = embed(draw.sample(known, 10))
    optimizer.zero_grad()
    loss(z_a, z_b, sets=(sets, sets)).backward()  # which rows are of one document, and no more
    optimizer.step()
print("after:  ", end="")
found = align()
english, other, _ = new[0]
for i in range(3):
    print(f"  {english[i]}  =  {other[found.partner[i]]}  ({found.confidence[i]:.0%} sure)")
