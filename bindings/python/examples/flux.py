"""Rotates q and k of FLUX.1 with librope, beside the code of diffusers.

    pip install torch diffusers
    python bindings/python/examples/flux.py [transformer/config.json]
"""

import sys

import librope
import torch
from diffusers import FluxPipeline
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.transformers.transformer_flux import FluxPosEmbed

config = sys.argv[1] if len(sys.argv) > 1 else {"_class_name": "FluxTransformer2DModel"}
HEIGHT, WIDTH, TEXT, HEADS = 768, 1360, 512, 24
rows, columns = HEIGHT // 16, WIDTH // 16  # the VAE makes 8 x 8 pixels one latent, packing 2 x 2 latents a token

model = librope.Model(config)
rope = model.rope(layout="bshd")
ids = model.latent_ids([(rows, columns)], text=TEXT)

torch.manual_seed(0)
q, k = (torch.randn(1, TEXT + rows * columns, HEADS, rope.head_dim, dtype=torch.bfloat16) for _ in "qk")
ours = rope.apply_qk(q, k, ids[:, None])  # [axes, batch, tokens]

image_ids = FluxPipeline._prepare_latent_image_ids(1, rows, columns, "cpu", torch.float32)
embedding = FluxPosEmbed(theta=10000, axes_dim=[16, 56, 56])(torch.cat([torch.zeros(TEXT, 3), image_ids]))
theirs = [apply_rotary_emb(x, embedding, sequence_dim=1) for x in (q, k)]

for name, a, b in zip("qk", ours, theirs, strict=True):
    different = (a != b).float().mean().item()
    print(f"{name}: {different:.4%} of the values differ, by {(a - b).abs().max().item():.1e} at most")
    # Both round once; cosines that are 1.5e-7 apart fall on different sides now and then.
    assert different < 1e-3
    assert torch.allclose(a.float(), b.float(), rtol=2**-7, atol=1e-6)
