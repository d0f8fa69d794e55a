"""Norm and rotation of q and k in one call, in a Qwen3 of transformers.

    python patch_norms.py

`librope.transformers.patch(model, norms=True)` takes over what a layer does between its projections and attention.
The model is small and made from a config, with random weights, so that nothing is downloaded. It generates from
two prompts, of which one is padded on the left, before and while it is patched: the tokens are the same ones. The
logits differ by no more than sums of squares do that are added in another order.
"""

import torch
import transformers

import librope.transformers

TOKENS, NEW = 24, 16


def tiny_qwen3():
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        hidden_size=128, num_attention_heads=8, num_key_value_heads=2, head_dim=64, num_hidden_layers=3,
        intermediate_size=256, vocab_size=500, max_position_embeddings=4096, rope_theta=1000000.0,
        bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for name, weight in model.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):  # they are all 1 in a new model
            weight.data.normal_(1, 0.25)
        elif weight.dim() == 2:  # so that logits differ enough to tell tokens apart
            weight.data.normal_(0, weight.shape[-1] ** -0.5)
    return model


def run(model, ids, mask):
    """The tokens that follow the prompts, and the logits of prompts and steps."""
    prompts = model(ids, attention_mask=mask).logits[mask.bool()]
    options = {"max_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    out = model.generate(ids, attention_mask=mask, **options)
    return out.sequences[:, TOKENS:], prompts, torch.stack(out.logits, 1)


def main():
    model = tiny_qwen3()
    ids, mask = torch.randint(1, 500, (2, TOKENS)), torch.ones(2, TOKENS, dtype=torch.long)
    ids[0, :7] = mask[0, :7] = 0  # padding
    tokens, prompts, steps = run(model, ids, mask)
    with librope.transformers.patched(model, norms=True) as report:
        print(report)
        assert [(entry.layers, entry.reason) for entry in report.norms] == [(3, "")]
        got_tokens, got_prompts, got_steps = run(model, ids, mask)
    for row in got_tokens.tolist():
        print("generated:", *row)
    assert torch.equal(got_tokens, tokens)
    off = max(float((got - plain).abs().max()) for got, plain in ((got_prompts, prompts), (got_steps, steps)))
    best, second = steps.topk(2).values.unbind(-1)
    lead = float((best - second).min())
    print(f"the tokens of the model as it was; logits differ by {off:.1e}, the best one leads by {lead:.1e} or more")
    assert 0 < off < 1e-4 < lead  # 0: these would be the model's own norms


if __name__ == "__main__":
    with torch.inference_mode():
        main()
