"""Lets a transformers model use librope, and shows that nothing but the time changes.

    python patch_transformers.py

The model is a small llama with random weights, so that nothing is downloaded.
"""

import time

import torch
import transformers

import librope.transformers


def main():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=512, num_attention_heads=8, num_key_value_heads=2, num_hidden_layers=4,
        intermediate_size=1024, vocab_size=1000, max_position_embeddings=4096,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).eval()
    ids = torch.randint(0, 1000, (1, 512))

    with torch.no_grad():
        before = model(ids).logits
        with librope.transformers.patched(model) as report:
            print(report)
            after = model(ids).logits
            generated = model.generate(ids[:, :16], max_new_tokens=8, do_sample=False)
    print("logits equal bit for bit:", torch.equal(before, after))
    print("generated:", generated[0, 16:].tolist())

    # The function alone, on what a layer of an 8B model gives it.
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as eager

    q = torch.randn(1, 512, 32, 128, dtype=torch.bfloat16).transpose(1, 2)
    k = torch.randn(1, 512, 8, 128, dtype=torch.bfloat16).transpose(1, 2)
    rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(
        transformers.LlamaConfig(head_dim=128)
    )
    cos, sin = rotary(q, torch.arange(512)[None])
    with librope.transformers.patched(type(model)):
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as ours
    for name, function in (("eager", eager), ("librope", ours)):
        best = float("inf")
        with torch.no_grad():
            for _ in range(20):
                start = time.perf_counter()
                function(q, k, cos, sin)
                best = min(best, time.perf_counter() - start)
        print(f"{name:8} {1e6 * best:9.0f} us for 512 tokens")
    return torch.equal(before, after)


if __name__ == "__main__":
    assert main()
