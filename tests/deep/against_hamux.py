"""Compare energies and updates of a graph with every Lagrangian with hamux, in float64."""

import numpy as np
import torch

from isthmus.deep import DeepMemory, Dense, Neurons


def main() -> None:
    import hamux
    import jax

    jax.config.update("jax_enable_x64", True)
    shapes = {"identity": 5, "relu": 6, "softmax": 4, "layer_norm": 3, "spherical": 7}
    layers = {name: Neurons(size, name, 1.3) for name, size in shapes.items()}
    pairs = [("identity", "relu"), ("relu", "softmax"), ("softmax", "layer_norm"),
             ("layer_norm", "spherical"), ("identity", "spherical")]  # fmt: skip
    memory = DeepMemory(layers, [Dense(*pair) for pair in pairs], seed=2).double()
    lagrangians = {
        "identity": hamux.lagr_identity,
        "relu": hamux.lagr_relu,
        "softmax": lambda x: hamux.lagr_softmax(x, beta=1.3),
        "layer_norm": lambda x: hamux.lagr_layernorm(x, gamma=1.3),
        "spherical": lambda x: hamux.lagr_spherical_norm(x, gamma=1.3),
    }
    neurons = {name: hamux.NeuronLayer(lagrangians[name], (size,)) for name, size in shapes.items()}
    synapses = {
        str(number): hamux.LinearSynapse(jax.numpy.asarray(each.weight.detach().numpy()))
        for number, each in enumerate(memory.synapses)
    }
    ham = hamux.HAM(neurons, synapses, [(pair, str(at)) for at, pair in enumerate(pairs)])
    generator = torch.Generator().manual_seed(0)
    for point in torch.randn(20, memory.dim, generator=generator, dtype=torch.float64):
        states = {name: part.numpy() for name, part in memory.states(point).items()}
        activations = ham.activations(states)
        energy = float(ham.energy(activations, states))
        np.testing.assert_allclose(memory.energy(point.numpy()), energy, rtol=0, atol=1e-9)
        slopes = ham.dEdact(activations, states)
        expected = np.concatenate([-np.asarray(slopes[name]) for name in shapes])
        np.testing.assert_allclose(memory.update(point).detach(), expected, atol=1e-9)


if __name__ == "__main__":
    main()
