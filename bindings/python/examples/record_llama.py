"""Records what a Llama of transformers rotates after model.to(torch.bfloat16). From the repository:

    python bindings/python/examples/record_llama.py docs/images/llama31.json run.safetensors
    librope check docs/images/llama31.json run.safetensors --picture docs/images/check.png

The RoPE is that of Llama 3.1; the layers are few and the weights random, which changes no angle.
"""

import json
import pathlib
import sys

import torch
import transformers

from librope import record

config = json.loads(pathlib.Path(sys.argv[1]).read_text())
config.update(hidden_size=512, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
              intermediate_size=64, vocab_size=64)  # fmt: skip
torch.manual_seed(0)
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
model.to(torch.bfloat16)

with torch.no_grad(), record.watch(model) as recording:
    model(torch.randint(0, 64, (1, 512)))
recording.save(sys.argv[2])
