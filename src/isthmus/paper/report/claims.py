"""The claims of the paper's text, captions and appendix, each once, and where they stand.

The key is the claim as the page states it, the value the place and the paper's own words. Claims
"in a draft" stand in comments of the paper's source.
"""

from __future__ import annotations

CLAIMS = {
    # Energies
    "An energy is a negative log-likelihood: p = exp(-E)/Z, so that minus its gradient is the "
    "score.": "§1, Eq. 3: “can be expressed in Boltzmann distribution form”",
    "The dynamics of associative memories never raise their energy.": (
        "§1: “the dynamics monotonically non-increase energy functions”"
    ),
    "The dynamics of an associative memory complete data.": (
        "§1: “the dynamics denoise, complete and/or retrieve training data”"
    ),
    "Replacing the memories of a Hopfield network, classical or modern, at once gives the "
    "landscape of the new ones.": "§2: “the energy landscape immediately adjusts”",
    "Other likelihoods can be chosen, for example Laplace, uniform or Lévy.": (
        "§3: “one can, of course, choose other likelihoods”"
    ),
    # In-context energies
    "Energy landscapes sharpen as more data are conditioned upon.": (
        "Fig. 1: “energy landscapes sharpen as additional in-context data are conditioned upon”"
    ),
    "Frozen transformers adapt their energy to new in-context datasets.": (
        "§2, Fig. 1: “computes a new energy function using fixed parameters”"
    ),
    "It is the first in-context learning of transformers whose output space differs from the "
    "input space.": "§1, §2: “the first instance … where the output space differs”",
    "In-context energies can be sampled from by Langevin dynamics with step 3.16 and noise 0.01.": (
        "§2, Sampling: “use Langevin dynamics to iteratively increase the probability”"
    ),
    "The energies of frozen models display in-context learning.": (
        "§2, Experiments: “display clear signs of in-context learning”"
    ),
    "Contrastive divergence with the printed Langevin pair trains transformers whose energies "
    "display in-context learning.": "§2: “we minimize the loss using contrastive divergence”",
    # Learned memories
    "ClAM is akin to generalised EM of a mixture model.": (
        "§3: “ClAM is akin to ‘Generalized Expectation Maximization (EM)’”"
    ),
    "Other mixing proportions give ClAM's weighted clustering, and a von Mises-Fisher likelihood "
    "its spherical clustering.": "§3: “corresponds to ClAM's ‘weighted clustering’”",
    "ClAM+ELBO computes cluster posteriors as the minimum of its energy.": (
        "§3: “computes the cluster assignment posteriors explicitly”"
    ),
    "ClAM+ELBO preserves ClAM's fixed points and their stability.": (
        "§3: “preserves the fixed points and their stability properties”"
    ),
    "The energy of ClAM+ELBO does not change when a constant is added to all logits.": (
        "§3: “the same symmetry exists in the energy function”"
    ),
    "The dynamics of ClAM+ELBO never raise its energy, so they are sure to converge.": (
        "§3: “convergence to a local minimum is guaranteed”"
    ),
    "ClAM+ELBO is competitive with ClAM by scores that see the labels.": (
        "§3, Fig. 3: “competitive with ClAM across benchmark tasks in supervised metrics”"
    ),
    "ClAM+ELBO is competitive with ClAM by scores that do not see the labels.": (
        "§3, Fig. 4: “competitive with ClAM across benchmark tasks in unsupervised metrics”"
    ),
    "With Bayesian nonparametrics a memory learns how many clusters the data need.": (
        "§3: “learn the number of memories as necessitated by the data”"
    ),
    "A larger alpha makes new memories more likely.": (
        "§3, Fig. 5: “controls how quickly new clusters form”"
    ),
    "The discount d controls how quickly existing memories accumulate mass.": (
        "§3: “controls how quickly existing memories accumulate mass”"
    ),
    "ClAM+CRP's energy is the negative log-likelihood of a Chinese-restaurant mixture.": (
        "§3: “via the inverse temperature-scaled negative log likelihood”"
    ),
    "In a finite mixture the basins of clusters can stretch out infinitely far.": (
        "Fig. 5: “each cluster's basin stretching out infinitely far”"
    ),
    "A datum that flows to the origin needs a new memory.": (
        "Fig. 5: “If a datum flows to the origin, we create a new memory for it”"
    ),
    "A higher alpha attracts more points to the origin.": (
        "Fig. 5: “higher α attracting more points to the origin”"
    ),
    "ClAM+CRP+ELBO is a memory that creates memories and computes posteriors.": (
        "§3, Fig. 2: “creating new memories and simultaneously … computing … posteriors”"
    ),
    "The memories of ClAM+CRP+ELBO are self-excitatory and mutually inhibitory, with interactions "
    "given by diag(q) - q q^T.": "§3: “self-excitatory and mutually inhibitory”",
    # Capacity
    "Basins merge when patterns are too many for their space.": (
        "§4, Fig. 6a, App. C: “As more patterns are added, their energy basins (minima) merge”"
    ),
    "Basins merge sooner when the bandwidth is larger.": (
        "App. C, Fig. 7: “more likely to merge when the Gaussian has a larger standard deviation”"
    ),
    "More patterns make retrieval poorer.": (
        "§4, Fig. 6b, Fig. 8: “increasing the number of patterns results in poorer retrieval”"
    ),
    "More dimensions make retrieval better.": (
        "§4, Fig. 6b, Fig. 8: “increasing the number of dimensions results in better retrieval”"
    ),
    "The capacity of a Gaussian KDE is equal to 2^(2(D-1)).": (
        "§4: “the capacity of the Gaussian KDE is shown to be”"
    ),
    "At least 2^(2(D-1)) patterns can be stored in every dimension.": (
        "App. C, proof of the capacity proposition: “at least … patterns can be stored”"
    ),
    "A Gaussian KDE can store exponentially many patterns in the dimension, for M = 2 sqrt(D-1) "
    "and D >= 4, or M = 1.7 sqrt(D-1) and D >= 50.": (
        "App. C, capacity proposition: “can store exponentially many patterns in D”"
    ),
    "The radius of convergence of a well separated pattern is sigma^2 / (N M).": (
        "App. C, first proposition: “has a radius of convergence equal to”"
    ),
    "With patterns on a sphere (appendix), energy and dynamics of the Gaussian KDE are exactly "
    "those of a modern Hopfield network.": "App. C, both theorems",
    "For any patterns (main text), energy and dynamics of the Gaussian KDE are exactly those of a "
    "modern Hopfield network.": "§4: “exactly equivalent to the energy and update rule”",
    # Attention
    "Normalisation followed by self-attention clusters on the sphere, by a mixture of von "
    "Mises-Fisher distributions.": "§5: “clustering with inhomogeneous vMF likelihoods”",
    "RMSNorm in place of LayerNorm produces the same qualitative result.": (
        "§5: “RMS norm produces the same qualitative result”"
    ),
    "Each key controls both the concentration and the mixing proportion of its cluster.": (
        "§5: “controlling both the concentration … as well as the mixing proportion”"
    ),
    "Norms on queries and keys stabilise training at large learning rates.": (
        "§1, §5: “allows for training with large learning rates”"
    ),
    "A layer that gives each key a weight of its own (SALN, in a draft) frees concentration and "
    "weight from each other.": "§5, draft: “Self-Attention Layer-Normalization (SALN)”",
    "SALN (in a draft) saves neither parameters nor operations.": (
        "§5, draft: “does not save any parameters nor reduce the number of operations”"
    ),
}
