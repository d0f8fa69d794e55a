"""Writes the metadata of the first GGUF files of Llama 3.1, from before llama.cpp's converter knew its scaling:
theta is that of config.json, and rope_freqs.weight is missing (ggml-org/llama.cpp#8676). From the repository:

    python bindings/python/examples/first_llama31.py docs/images/llama31.json first.gguf
    librope diff docs/images/llama31.json first.gguf --plot docs/images/diff.png

Needs gguf; the file has no weights, which say nothing of RoPE.
"""

import json
import pathlib
import sys

import gguf

config = json.loads(pathlib.Path(sys.argv[1]).read_text())
writer = gguf.GGUFWriter(sys.argv[2], "llama")
writer.add_block_count(config["num_hidden_layers"])
writer.add_context_length(config["max_position_embeddings"])
writer.add_embedding_length(config["hidden_size"])
writer.add_head_count(config["num_attention_heads"])
writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
writer.add_rope_freq_base(config["rope_theta"])
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.close()
