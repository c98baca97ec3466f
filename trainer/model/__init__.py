"""Model: STDiT3 and rectified flow; no files, no ranks.

`stdit` and `layers` are the network, `rectified_flow` the loss and the sampler, `frame_masks` the masks,
`rng` the counter-based noise, `flops` the cost. `kernels` computes blocks faster, `encoders` has the VAE
and T5.
"""
