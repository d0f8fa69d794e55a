"""What transformers takes for the language model of a larger configuration that says its model_type
and nothing else: the sizes of every configuration class.

    "$(tests/oracle/setup)" tests/oracle/classes.py     # writes ../data/classes.json
"""

from __future__ import annotations

import json
import os
import sys
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore")
sys.dont_write_bytecode = True

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import cases


def sizes(model_type):
    """Of the class, as the configurations of LLaVA and others make it from text_config's model_type;
    None if it has none, or no key of RoPE."""
    config = CONFIG_MAPPING[model_type]()
    saved = config.to_dict()  # attributes may differ from layer to layer, and then refuse to be read
    if not any(word in key for key in saved for word in ("rope", "rotary")):
        return None
    names = type(config).attribute_map
    values = {key: saved.get(key, saved.get(names.get(key)))
              for key in ("hidden_size", "num_attention_heads", "num_hidden_layers")}
    if not all(values.values()):
        return None
    width = saved.get("head_dim", saved.get(names.get("head_dim"))) or values["hidden_size"] // values["num_attention_heads"]
    layers = saved.get("layer_types")
    return {**values, "head_dim": width, **({"layer_types": layers} if layers else {})}


def main():
    found = {}
    for model_type in sorted(CONFIG_MAPPING.keys()):
        try:
            made = sizes(model_type)
        except Exception as error:
            print(f"{model_type}: {type(error).__name__}: {str(error)[:100]}", file=sys.stderr)
            continue
        if made:
            found[model_type] = made
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(values)}" for name, values in found.items())
    text = f'{{"transformers": "{transformers.__version__}", "classes": {{\n{lines}\n}}}}\n'
    (cases.DATA / "classes.json").write_text(text)
    print(f"{len(found)} classes", file=sys.stderr)


if __name__ == "__main__":
    main()
