"""Records what llama.cpp's own converter writes about RoPE into GGUF files, for the models of
tests/data/oracle.

    LLAMA_CPP=<source package of llama-cpp-python 0.3.36>/vendor/llama.cpp
    gcc -O1 -shared -fPIC -I$LLAMA_CPP/ggml/include tests/gguf/ggml_rope.c -o libggmlrope.so
        -Wl,--start-group libggml.a libggml-cpu.a libggml-base.a -Wl,--end-group -lstdc++ -lm -lpthread
    LLAMA_CPP=$LLAMA_CPP GGML_ROPE=libggmlrope.so <python of tests/oracle/setup> tests/gguf/record.py

Needs the environment of tests/oracle (torch, transformers), and tqdm, PyYAML and requests for the
converter; bench/peers builds ggml's libraries. No weights are involved: the converter gets a
configuration, as transformers completes it, and is asked for its keys (set_gguf_parameters) and its
generated tensors (rope_freqs, rope_factors_*). A head of each kind of layer then goes through
ggml's own rope (ggml.py) with what llama.cpp makes of these keys (llama_cpp.py). Writes tests/data/gguf.json.
Which models were left out, and why, is printed.
"""

import base64
import ctypes
import dataclasses
import json
import os
import pathlib
import struct
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LLAMA_CPP = pathlib.Path(os.environ["LLAMA_CPP"])
sys.path[:0] = [str(LLAMA_CPP / "gguf-py"), str(LLAMA_CPP)]

import conversion
import gguf
import numpy
import transformers
from transformers.models.auto import modeling_auto

import ggml
import llama_cpp

# Keys that say nothing about which channels turn, how far, and in which layers.
IRRELEVANT = ("feed_forward", "expert", "norm", "vocab_size", "logit", "softcapping", "value_length",
              "lora_rank", "ssm.", "_scale", "shortconv", "altup", "per_layer", "activation",
              "causal", "pooling", "hyper_connection", "engram", "ple.", "xielu", "swiglu")


# What converters ask of every model, and recorded configurations lack: nothing of RoPE.
UNRELATED = {"vocab_size": 1000, "intermediate_size": 1024, "moe_intermediate_size": 1024,
             "first_k_dense_replace": 1, "n_shared_experts": 1, "n_routed_experts": 8, "scale_emb": 1.0,
             "scale_depth": 1.0, "dim_model_base": 256, "expert_intermediate_size": 1024,
             "num_hash_layers": 0, "routed_scaling_factor": 1.0, "norm_topk_prob": True,
             "num_experts_per_tok": 2, "moe_layer_freq": 1, "kv_lora_rank": 512}

# Classes of remote code, and those that transformers has under another name.
NAMED = {"internlm2": "InternLM2ForCausalLM", "minicpm": "MiniCPMForCausalLM", "orion": "OrionForCausalLM",
         "deepseek": "DeepseekForCausalLM", "kimi_k2": "DeepseekV3ForCausalLM",
         "nemotron-nas": "DeciLMForCausalLM", "phimoe": "PhiMoEForCausalLM",
         "internlm": "InternLM2ForCausalLM"}


def class_name(model_type: str) -> str | None:
    """The class that a config.json of this type names in `architectures`."""
    if model_type in NAMED:
        return NAMED[model_type]
    for table in ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
                  "MODEL_FOR_MASKED_LM_MAPPING_NAMES", "MODEL_MAPPING_NAMES"):
        names = getattr(modeling_auto, table).get(model_type)
        for name in [names] if isinstance(names, str) else names or ():
            if name in conversion.TEXT_MODEL_MAP:
                return name
    return None


class Recorder:
    """One converter, without tensors and tokenizer. Some look into the folder again."""

    def __init__(self, hparams: dict, name: str, folder: pathlib.Path):
        base = conversion.base.ModelBase
        base.index_tensors = lambda self, remote_hf_model_id=None: {}
        (folder / "config.json").write_text(json.dumps(hparams))
        (folder / "tokenizer_config.json").write_text("{}")
        cls = conversion.get_model_class(name)
        model = cls(folder, gguf.LlamaFileType.MOSTLY_F16, folder / "out.gguf", hparams=hparams,
                    dry_run=True)
        self.model = getattr(model, "impl", model)  # Mistral 3 stands for two

    def keys(self) -> dict:
        self.model.set_gguf_parameters()
        out = {}
        for key, value in self.model.gguf_writer.kv_data[0].items():
            if not key.startswith(self.model.gguf_writer.arch + ".") and key != "general.architecture":
                continue
            if any(word in key.split(".", 1)[1] for word in IRRELEVANT):
                continue
            said = value.value
            if said is None:
                raise ValueError(f"no value for {key}")
            if value.type == gguf.GGUFValueType.FLOAT32:  # the number that the file holds
                said = struct.unpack("<f", struct.pack("<f", said))[0]
            kind = value.type.name.lower()
            if value.type == gguf.GGUFValueType.ARRAY:
                kind = "bool" if isinstance(said[0], bool) else gguf.GGUFValueType.get_type(said[0]).name.lower()
                said = list(said)
                kind += "[]"
            out[key] = [kind, said]
        return out

    def tensors(self) -> dict:
        out = {}
        for name, tensor in self.model.generate_extra_tensors():
            if name.startswith("rope_"):
                out[name] = base64.b64encode(tensor.float().numpy().astype("<f4").tobytes()).decode()
        return out


# Rotated by ggml: positions on the axes t, h, w and on ggml's fourth axis, which stands still in
# librope where no section has it.
POSITIONS = [[3, 1021], [5, 517], [2, 260], [3, 1021]]
REFUSED = {"dflash", "jamba", "nemotron_h_moe"}


def rotate(library: ctypes.CDLL, layer: llama_cpp.Layer, tensors: dict) -> str:
    factors = None
    if layer.factors:
        factors = numpy.frombuffer(base64.b64decode(tensors[layer.factors]), dtype="<f4").copy()
    return ggml.rotate(library, layer, POSITIONS, factors)


def add_rotations(records: list[dict], library: ctypes.CDLL) -> None:
    """Of each kind of layer, in one model of each architecture and kind of scaling."""
    types, seen = llama_cpp.rope_types(LLAMA_CPP / "src"), set()
    for entry in records:
        arch = entry["keys"]["general.architecture"][1]
        form = (arch, str(entry["keys"].get(f"{arch}.rope.scaling.type")), *entry["tensors"],
                f"{arch}.rope.dimension_sections" in entry["keys"])
        if form in seen or arch in REFUSED or "longrope" in form[1] and not entry["tensors"]:
            continue
        seen.add(form)
        entry["ggml"], done = [], set()
        for tokens in (1, 1 << 30) if "rope_factors_long.weight" in entry["tensors"] else (1,):
            for number, layer in enumerate(llama_cpp.layers_of(entry, types, tokens)):
                lacks_sections = layer is not None and layer.mode & 8 and not any(layer.sections)
                if layer is None or layer.n_dims % 2 or lacks_sections or dataclasses.astuple(layer) in done:
                    continue  # the defaults of some classes are no model
                done.add(dataclasses.astuple(layer))
                entry["ggml"].append({"layer": number, "tokens": tokens,
                                      "rotated": rotate(library, layer, entry["tensors"])})


def complete(config: dict, model_type: str) -> dict:
    hparams = transformers.AutoConfig.for_model(**{**config, "model_type": model_type}).to_dict()
    return {**config, **json.loads(json.dumps(hparams, default=str))}


def record(case: dict) -> dict:
    model_type = case["model_type"]
    name = class_name(model_type)
    if name is None:
        raise ValueError(f"no converter for {model_type}")
    hparams = case["config"] if case["run_as"] else complete(case["config"], model_type)
    hparams["architectures"] = [name]
    for key, value in UNRELATED.items():
        hparams.setdefault(key, value)
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(hparams, name, pathlib.Path(folder))
        tensors = recorder.tensors()  # some keys are written with them
        return {"case": case["name"], "converter": name, "keys": recorder.keys(),
                "tensors": tensors}


def main() -> None:
    records, left_out = [], []
    for path in sorted((ROOT / "tests/data/oracle").glob("*.json")):
        case = json.loads(path.read_text())
        if "ropes" not in case or case["layers"] is None:
            continue
        try:
            records.append(record(case))
        except Exception as error:  # noqa: BLE001, whatever the converter stumbles over without weights
            left_out.append(f"{case['name']}: {type(error).__name__}: {str(error)[:150]}")
    add_rotations(records, ctypes.CDLL(os.environ["GGML_ROPE"]))
    out = {"source": "the converter (conversion/) and ggml of llama-cpp-python 0.3.36, MIT",
           "versions": {"gguf": "0.19.0", "transformers": transformers.__version__},
           "positions": POSITIONS, "records": records}
    text = json.dumps(out, indent=None, separators=(",", ":"))
    text = text.replace('{"case"', '\n{"case"')
    (ROOT / "tests/data/gguf.json").write_text(text + "\n")
    print("\n".join(left_out))
    print(f"{len(records)} records, {len(left_out)} left out")


if __name__ == "__main__":
    main()
