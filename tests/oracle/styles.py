"""The letter that the project's survey of RoPE variants gives to an apply style."""

# Styles that a model alone has, by the folder of its code; text part, then vision part.
TEXT = {
    "gpt_oss": "HC", "nanochat": "HN", "clvp": "HV", "gptj": "IG", "codegen": "IG", "roformer": "IR",
    "llama4": "CX", "deepseek_v2": "CX", "deepseek_v4": "TI", "hunyuan_vl": "MX",
    "gemma3n": "H1", "gemma4": "H1", "gemma4_unified": "H1", "diffusion_gemma": "H1",
    "wav2vec2_bert": "HB", "wav2vec2_conformer": "HB",
}
VISION = {
    "pixtral": "VP", "llama4": "VL", "dinov3_vit": "VD", "eomt_dinov3": "VD", "sapiens2": "VD", "gemma4": "VG",
    "sam2_video": "VS", "sam3": "VS", "sam3_tracker_video": "VS", "edgetam_video": "VS", "vjepa2": "VJ",
    "minimax_m3_vl": "V3",
}


def of(record):
    """Letter of a rope record: from the tables, else from what was measured."""
    folder = record["rotary_class"].split(".")[2]
    if record["role"] == "vision":
        return VISION.get(folder, "VH")
    if folder in TEXT:
        return TEXT[folder]
    if record["pairing"] == "interleaved_to_halves":
        return "DI"
    partial = record["rotary_dim"] < record["head_dim"]
    if record["pairing"] == "interleaved":
        return {"cos_sin": "IF", "float32": "IE"}.get(record["rounding"], "IP" if partial else "I")
    if record["axes"] == 3:
        changes = sum(a != b for a, b in zip(record["pair_axis"], record["pair_axis"][1:]))
        return "MI" if changes > 2 else "MR"
    return {"cos_sin": "HQ", "float32": "HF"}.get(record["rounding"], "HP" if partial else "H")
