"""
What a transformer head clusters
================================

A norm followed by attention is a clustering of the sphere: every key is a von Mises-Fisher
distribution, a bell curve on the sphere, the query is a point, and the attention weights are the
posterior probabilities that the query belongs to each key. This is not an approximation.
:func:`isthmus.attention.vmf_view` reads a layer that you have in this way.

Here we train a tiny GPT-2 on sentences in which the verb agrees with a noun far away, and look at
what its heads have learned to tell apart. It needs ``pip install isthmus[hf]``; nothing is
downloaded, since the model is made from a configuration.
"""

# %%
# A small language
# ----------------
# "The old dog near the barns runs": the verb is singular because *dog* is, and the nearer noun
# *barns* is a distraction. An adjective stands before one of the two nouns, so that the subject is
# not always at the same position.

import matplotlib.pyplot as plt
import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from isthmus.attention import vmf_view

STEPS, SENTENCES = 300, 400
singular, plural = ["dog", "cat", "barn", "tree"], ["dogs", "cats", "barns", "trees"]
words = [
    "the",
    "old",
    "red",
    "near",
    "behind",
    *singular,
    *plural,
    "runs",
    "sleeps",
    "run",
    "sleep",
]
number = {word: i for i, word in enumerate(words)}
rng = np.random.default_rng(0)


def sentence():
    """Draw a sentence of seven words, whose verb agrees with its first noun."""
    subject = rng.choice(singular + plural)
    verb = rng.choice(["runs", "sleeps"] if subject in singular else ["run", "sleep"])
    phrase = ["the", subject, rng.choice(["near", "behind"]), "the", rng.choice(singular + plural)]
    phrase.insert(1 if rng.random() < 0.5 else 4, rng.choice(["old", "red"]))
    return [*phrase, verb]


def batch(n):
    """Draw n sentences as numbers of words: (n, 7)."""
    return torch.tensor([[number[word] for word in sentence()] for _ in range(n)])


print(*sentence())

# %%
# A GPT-2 with one block, two heads and 32 coordinates learns it within seconds.

torch.manual_seed(0)
config = GPT2Config(
    vocab_size=len(words),
    n_positions=7,
    n_embd=32,
    n_layer=1,
    n_head=2,
    bos_token_id=0,
    eos_token_id=0,
    attn_implementation="eager",
    embd_pdrop=0,
    attn_pdrop=0,
    resid_pdrop=0,
)
model = GPT2LMHeadModel(config)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for _ in range(STEPS):
    x = batch(64)
    logits = model(x).logits[:, :-1]  # each word predicts the next
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

x = batch(SENTENCES)
model.eval()
with torch.no_grad():
    output = model(x, output_attentions=True, output_hidden_states=True)
is_plural = torch.tensor([word in ("run", "sleep") for word in words])
guessed = output.logits[:, 5].softmax(-1)[:, is_plural].sum(-1) > 0.5
agrees = (guessed == is_plural[x[:, 6]]).float().mean()
print(f"loss {loss:.2f}; the verb agrees in {agrees:.0%} of new sentences")

# %%
# The layer as a mixture
# ----------------------
# The view takes the block and what goes into it. Its posterior probabilities are the attention
# weights of the model, to rounding.

view = vmf_view(model.transformer.h[0], output.hidden_states[0], is_causal=True)
print(view)
difference = (view.responsibilities() - output.attentions[0]).abs().max()
print(f"largest difference from the attention weights: {difference:.1e}")

# %%
# The word before the verb must find the subject. Each head gives this share of its attention to
# it:

kinds = np.array(
    ["article"] + 2 * ["adjective"] + 2 * ["preposition"] + 8 * ["noun"] + 4 * ["verb"]
)
kind = kinds[x].astype("<U12")
is_subject = (kind == "noun") & ((kind == "noun").cumsum(1) == 1)
kind[is_subject] = "subject"
kind[kind == "noun"] = "other noun"

attention = view.responsibilities()[:, :, 5].numpy()  # (sentences, heads, keys)
shares = (attention * is_subject[:, None]).sum(-1).mean(0)
head = int(shares.argmax())
print("attention to the subject:", shares.round(2))

# %%
# What is a cluster?
# ------------------
# Each key has a direction, a concentration κ and a mixing weight π, its probability before the
# query is seen. The weight of a key grows with κ times the cosine between its direction and the
# query. For the head that finds subjects, and the query of the word before the verb:

query = view.query_direction[:, 5]
cosine = (view.mean_direction[:, head] * query[:, None]).sum(-1).numpy()
concentration = view.concentration[:, head].numpy()
mixing = view.log_mixing[:, head, 5].exp().numpy()
colours = {
    "subject": "#d55e00",
    "other noun": "#e69f00",
    "article": "#0072b2",
    "preposition": "#56b4e9",
    "adjective": "#009e73",
}
print("             cosine      κ      π   attention")
for name in colours:
    columns = (cosine, concentration, mixing, attention[:, head])
    means = [values[kind == name].mean() for values in columns]
    print(f"{name:12s} {means[0]:6.2f} {means[1]:6.2f} {means[2]:6.2f} {means[3]:8.2f}")

# %%
# The picture
# -----------
# Left: the attention of this head in one sentence. Middle: the directions of the keys of all
# sentences, in the plane of their first two principal components. Right: cosine and concentration,
# with lines along which the weight of a key is the same, but for a constant.

directions = view.mean_direction[:, head].numpy()
shown = kind != "verb"  # keys that the word before the verb can see
centred = directions[shown] - directions[shown].mean(0)
plane = np.linalg.svd(centred, full_matrices=False)[2][:2].T

fig, axes = plt.subplots(1, 3, figsize=(12.5, 4.4), layout="constrained")
text = [words[i] for i in x[0]][:-1]
axes[0].imshow(output.attentions[0][0, head, :6, :6].numpy(), cmap="Blues", vmin=0, vmax=1)
axes[0].set_title(f"Attention of head {head} (a row for each query)")
axes[0].set_xticks(range(6), text, rotation=40)
axes[0].set_yticks(range(6), text)

lines = {"colors": "0.8", "linewidths": 1, "linestyles": "solid"}
side = np.linspace(-0.8, 0.9, 100), np.linspace(0, 12, 100)
axes[2].contour(*side, np.multiply.outer(side[1], side[0]), levels=8, **lines)
for name, colour in colours.items():
    chosen = kind == name
    axes[1].plot(*(directions[chosen] @ plane).T, "o", color=colour, ms=5)
    axes[2].plot(cosine[chosen], concentration[chosen], "o", color=colour, ms=4, label=name)
axes[1].set(title="Directions on the sphere", xlabel="first component", ylabel="second component")
axes[1].set_aspect("equal", adjustable="datalim")
axes[2].set(title="Pull of a key", xlabel="cosine with the query", ylabel="concentration κ")
axes[2].legend(loc="upper left", fontsize=9)
plt.show()

# %%
# Keys of the same part of speech point the same way, and the query before the verb points to
# nouns. Direction alone hardly tells the two nouns apart, though. Concentration does: the head has
# learned to give the subject a key about three times as concentrated as that of the other noun.
#
# What to try next: ``view.log_prob()`` is the density of each query under its head, and a query of
# low density belongs to no key. ``isthmus.attention.entanglement(view)`` tells how far
# concentration and weight go together.
