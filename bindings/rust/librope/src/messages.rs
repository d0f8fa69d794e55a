//! The messages of the C library in the words of this crate: `rope_apply_qk: args->fused->cache->k.heads (3)
//! must be that of args->k (2)` becomes `Context::append: the heads of the cache's k (3) must be that of k (2)`.

/// A message of the library, or of this crate, as one of this function. Those of functions that read a
/// `config.json` or a GGUF file have its names, which stay.
pub(crate) fn of_function(function: &str, message: &str) -> String {
    let (head, rule) = match message.split_once(": ") {
        Some((head, rule)) if !head.contains(' ') => (head, rule),
        _ => ("", message),
    };
    let reads_text = function.starts_with("Model::from_") || function == "Model::load_gguf";
    if !head.starts_with("rope_") || reads_text {
        return format!("{function}: {rule}");
    }
    let mut rule = translate(rule);
    if function == "Context::move_slots" {
        // Where keys are read is the same memory.
        for field in ["k", "v", "pages", "page size"] {
            rule = rule.replace(&format!("the source's {field}"), &format!("the cache's {field}"));
        }
    }
    format!("{function}: {rule}")
}

fn translate(rule: &str) -> String {
    let of_rows = rule.contains("cos_sin->") || rule.contains("out->");
    let rule = rule.replace("stride_batch, stride_token and stride_head", "strides");
    let (mut out, mut rest) = (String::new(), &rule[..]);
    while let Some(first) = rest.chars().next() {
        // Where memory lies helps nobody, and is not for strangers to read in an answer of a server.
        if let Some(end) = address(rest) {
            rest = &rest[end..];
            continue;
        }
        let end = if first.is_ascii_alphabetic() {
            let end = chain_end(rest);
            match &rest[..end] {
                // Prose has its own article.
                prose @ ("cache" | "source") if has_article(&out) => out.push_str(prose),
                chain => out.push_str(&name(chain, of_rows)),
            }
            end
        } else {
            out.push(first);
            first.len_utf8()
        };
        rest = &rest[end..];
    }
    out
}

/// Whether the text ends with the word `a` or `the`, and what is behind a word.
fn has_article(text: &str) -> bool {
    let words = text.strip_suffix(' ').unwrap_or_default();
    let last = words.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next();
    matches!(last, Some("a" | "the"))
}

/// The length of ` (0x7f..)`, if the text begins with it.
fn address(text: &str) -> Option<usize> {
    let digits = text.strip_prefix(" (0x")?;
    let end = digits.find(|c: char| !c.is_ascii_hexdigit())?;
    digits[end..].starts_with(')').then_some(" (0x".len() + end + 1)
}

/// How long the chain of C's names at the beginning is: `args->positions.cu_seqlens`, `configs[3]->theta`,
/// `ROPE_SCALING_YARN`, a word.
fn chain_end(text: &str) -> usize {
    let word =
        |text: &str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let mut end = word(text);
    loop {
        let mut rest = &text[end..];
        if let Some(index) = rest.strip_prefix('[') {
            let digits = index.find(|c: char| !c.is_ascii_digit()).unwrap_or(index.len());
            if digits > 0 && index[digits..].starts_with(']') {
                rest = &index[digits + 1..];
            }
        }
        let field = rest.strip_prefix("->").or_else(|| rest.strip_prefix('.'));
        let Some(field) = field.filter(|f| f.starts_with(|c: char| c.is_ascii_alphabetic())) else {
            return text.len() - rest.len();
        };
        end = text.len() - field.len() + word(field);
    }
}

/// One chain in the words of this crate.
fn name(chain: &str, of_rows: bool) -> String {
    let mut chain = chain;
    for of_c in ["args->", "config->", "data->", "fused->", "positions.", "positions->"] {
        chain = chain.strip_prefix(of_c).unwrap_or(chain);
    }
    let fields = chain.replace("->", ".");
    let mut fields = fields.split('.');
    let first = fields.next().unwrap_or_default();
    let mut name = match first {
        "cache" | "source" => match fields.next() {
            None => format!("the {first}"),
            Some(field @ ("k" | "v" | "pages" | "page_size")) => {
                format!("the {first}'s {}", word(field, of_rows))
            }
            // The others belong to the slots of the step.
            Some(field) if first == "cache" => word(field, of_rows),
            Some(field) => format!("the source's {}", word(field, of_rows)),
        },
        _ => word(first, of_rows),
    };
    for field in fields {
        let field = field.split('[').next().filter(|&f| f == "x").unwrap_or(field); // x[0], a pointer
        name = match field {
            "x" => format!("what {name} was given"),
            _ if name.contains(' ') => format!("the {} of {name}", word(field, of_rows)),
            _ => format!("{name}.{}", word(field, of_rows)),
        };
    }
    name
}

/// One name; words of prose stay as they are.
fn word(word: &str, of_rows: bool) -> String {
    let (name, index) = word.split_at(word.find('[').unwrap_or(word.len()));
    if let Some(constant) = name.strip_prefix("ROPE_") {
        return of_kind(constant).unwrap_or_else(|| name.to_string());
    }
    if let Some(norm) =
        ["q_norm", "k_norm", "v_norm"].into_iter().find(|&norm| name.starts_with(norm))
    {
        let of = format!("{}'s norm", &norm[..1]);
        return match name.strip_prefix(norm).and_then(|field| field.strip_prefix('_')) {
            Some(field) => format!("the {field} of {of}"),
            None => of,
        };
    }
    if let Some(of) = name.strip_suffix("_scales").filter(|of| !of.is_empty()) {
        return format!("the scales of {}", self::word(of, of_rows));
    }
    let known = match name {
        "NULL" => "None",
        "cache_k" => "the cache's k",
        "cache_v" => "the cache's v",
        "page_size" => "page size",
        "cos_sin" => "rows",
        "from_positions" => "from",
        "ids_i32" | "ids_i64" | "ids_f32" => "ids",
        "offsets_i32" | "offsets_i64" => "offsets",
        "slots_i32" | "slots_i64" => "slots",
        "slots_length" => "the number of slots",
        "page_table_stride" => "width",
        "table_length" => "the length of the tables",
        "stride_token" if of_rows => "stride",
        "stride_head" if of_rows => "head_stride",
        "stride_axis" => "strides.axis",
        "stride_batch" => "strides.batch",
        "stride_token" => "strides.token",
        "stride_head" => "strides.head",
        "rope_apply_qk" => "Context::apply",
        "rope_prepared_apply" => "apply",
        // What is left of constants where the message says of what they are one.
        "FORWARD" | "BACKWARD" | "INVERSE" | "SHIFT" | "REROTATE" => {
            return format!("Operation::{}", camel(name));
        }
        "F32" | "F16" | "BF16" | "I8" | "E8M0" => return format!("DType::{}", camel(name)),
        "BSHD" | "BHSD" | "SBHD" | "NHD" | "HND" | "STRIDED" => {
            return format!("Layout::{}", camel(name));
        }
        "SEQ_OFFSETS" => "Positions::SeqOffsets",
        "MAPPED" => "Slots::Mapped",
        _ => name,
    };
    format!("{known}{index}")
}

/// A constant, without `ROPE_`.
fn of_kind(constant: &str) -> Option<String> {
    const KINDS: [(&str, &str); 16] = [
        ("PAIRING_", "Pairing"),
        ("SCALING_", "Scaling"),
        ("ANGLE_", "Angle"),
        ("ROUNDING_", "Rounding"),
        ("DTYPE_", "DType"),
        ("DEVICE_", "Device"),
        ("DIGEST_", "Digest"),
        ("LAYOUT_", "Layout"),
        ("POSITIONS_", "Positions"),
        ("OPERATION_", "Operation"),
        ("SLOTS_", "Slots"),
        ("NORM_KIND_", "NormKind"),
        ("NORM_SPAN_", "NormSpan"),
        ("NORM_ORDER_", "NormOrder"),
        ("NORM_ROUNDING_", "NormRounding"),
        ("COS_SIN_", "CosSin"),
    ];
    let of = |prefix: &str| constant.strip_prefix(prefix);
    if let Some(scheme) = of("SHARD_") {
        return Some(format!("Shard::{}", scheme.to_lowercase())); // constructors, as those of rows
    }
    let (rest, kind) = KINDS.into_iter().find_map(|(prefix, kind)| Some((of(prefix)?, kind)))?;
    let variant = match rest {
        _ if kind == "CosSin" => rest.to_lowercase(),
        "IDS_T" => "Tokens".into(),
        "IDS_BT" => "BatchTokens".into(),
        "IDS_ABT" => "AxesBatchTokens".into(),
        "IDS_BTA" => "BatchTokensAxes".into(),
        "IDS_STRIDED" => "Strided".into(),
        "LONGROPE" => "LongRope".into(),
        "F8_E4M3" | "F8_E5M2" | "E8M0" => rest.replace('_', ""),
        _ => camel(rest),
    };
    Some(format!("{kind}::{variant}"))
}

fn camel(name: &str) -> String {
    if name == "E8M0" {
        return name.into();
    }
    let capital = |word: &str| -> String {
        let mut letters = word.chars();
        letters.next().into_iter().chain(letters.flat_map(char::to_lowercase)).collect()
    };
    name.split('_').map(capital).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::of_function;
    use crate::enums::{DType, NormSpan, Numbered, Operation};

    /// The function that was called, the message of the library, and what a user reads.
    const CASES: &[(&str, &str, &str)] = &[
        (
            "Context::apply",
            "rope_apply_qk: args->q.heads (0) must be positive",
            "Context::apply: q.heads (0) must be positive",
        ),
        (
            "Context::append",
            "rope_apply_qk: args->fused->cache->k.scale (0x7ffe4fb3ac48) must be NULL with dtype \
             (ROPE_DTYPE_F32), which is none of 8 bits",
            "Context::append: the scale of the cache's k must be None with dtype (DType::F32), \
             which is none of 8 bits",
        ),
        (
            "Context::append",
            "rope_apply_qk: args->fused->cache->k.heads (3) must be that of args->k (2)",
            "Context::append: the heads of the cache's k (3) must be that of k (2)",
        ),
        (
            "Context::append",
            "rope_apply_qk: args->fused->cache->slots_i64[7] (99) must be below 64, the number of \
             slots in 4 pages of 16",
            "Context::append: slots[7] (99) must be below 64, the number of slots in 4 pages of 16",
        ),
        (
            "Context::append",
            "rope_apply_qk: args->fused->v is set, but neither v_out nor cache->v is, where it \
             would go",
            "Context::append: v is set, but neither v_out nor the cache's v is, where it would go",
        ),
        (
            "Context::append",
            "rope_apply_qk: args->k.layout (ROPE_LAYOUT_BSHD) must be NHD, as it is a cache: the cache \
             has it, but where data source and cache are one, cache->k.layout has",
            "Context::append: k.layout (Layout::Bshd) must be Layout::Nhd, as it is a cache: the cache \
             has it, but where data the source and the cache are one, the layout of the cache's k has",
        ),
        (
            "Context::move_slots",
            "rope_apply_qk: args->fused->source->page_size (0) is required",
            "Context::move_slots: the cache's page size (0) is required",
        ),
        (
            "Context::move_between",
            "rope_apply_qk: args->fused->source->slots_i32[1] (8) must be below 8",
            "Context::move_between: the source's slots[1] (8) must be below 8",
        ),
        (
            "Context::apply",
            "rope_apply_qk: args->fused->k_norm->x[0].dtype (ROPE_DTYPE_I8) must be F32",
            "Context::apply: the dtype of what k's norm was given (DType::I8) must be DType::F32",
        ),
        (
            "Context::apply_call",
            "rope_apply_qk: args->fused->q_norm->x[0] (ROPE_DTYPE_F32, 2 heads of 64 channels) must be \
             like the output",
            "Context::apply_call: what q's norm was given (DType::F32, 2 heads of 64 channels) must be \
             like the output",
        ),
        (
            "Context::append",
            "rope_apply_qk: args->fused->cache->k.stride_batch, stride_token and stride_head (0, 33, 0) \
             must be multiples of 32",
            "Context::append: the strides of the cache's k (0, 33, 0) must be multiples of 32",
        ),
        (
            "Context::apply",
            "rope_apply_qk: args->q_out.scale->stride_batch, stride_token and stride_head must be 0 with \
             value, which serves all",
            "Context::apply: q_out.scale.strides must be 0 with value, which serves all",
        ),
        (
            "Context::apply",
            "rope_apply_qk: args->fused->q_norm->eps (0) is required",
            "Context::apply: the eps of q's norm (0) is required",
        ),
        (
            "PreparedCall::apply",
            "rope_prepared_apply: data->cache_k overlaps data->q_norm_weight",
            "PreparedCall::apply: the cache's k overlaps the weight of q's norm",
        ),
        (
            "Context::apply",
            "rope_apply_qk: args->positions.cu_seqlens[1] (4) breaks the rule: from 0 to tokens",
            "Context::apply: cu_seqlens[1] (4) breaks the rule: from 0 to tokens",
        ),
        (
            "Config::build",
            "rope_context_create: config->seq_len (0) must be positive, because \
             ROPE_SCALING_LONGROPE requires it",
            "Config::build: seq_len (0) must be positive, because Scaling::LongRope requires it",
        ),
        (
            "Context::with_sets",
            "rope_context_create_sets: configs[3]->pairing must be that of configs[0]: sets differ",
            "Context::with_sets: configs[3].pairing must be that of configs[0]: sets differ",
        ),
        (
            "Context::apply_thd",
            "rope_apply_thd: k (0x21e2c0ffee) and k_heads (0) do not agree",
            "Context::apply_thd: k and k_heads (0) do not agree",
        ),
        (
            "Context::apply",
            "rope_apply_qk: args->cos_sin->stride_token (3) must be 0 or at least the row's width (8)",
            "Context::apply: rows.stride (3) must be 0 or at least the row's width (8)",
        ),
        // Names of config.json stay.
        (
            "Model::from_json",
            "rope_model_create: rope_scaling.rope_type (\"lama3\") must be one of: a_b",
            "Model::from_json: rope_scaling.rope_type (\"lama3\") must be one of: a_b",
        ),
        // Of this crate, once and through another function.
        ("Config::build", "librope: inv_freq: 3", "Config::build: inv_freq: 3"),
        (
            "Model::contexts",
            "Model::config: layer_type (7): 3",
            "Model::contexts: layer_type (7): 3",
        ),
    ];

    #[test]
    fn messages_are_in_the_words_of_this_crate() {
        for &(function, message, want) in CASES {
            assert_eq!(of_function(function, message), want);
        }
    }

    #[test]
    fn constants_are_variants() {
        let c = |constant| of_function("f", &format!("rope_x: {constant}"));
        let numbers = || -1..100;
        for dtype in numbers().filter_map(DType::of) {
            let name = format!("{dtype:?}");
            let of_c = match name.as_str() {
                "Q80" => "Q8_0".into(),
                "F8E4M3" | "F8E5M2" => name.replacen("F8", "F8_", 1),
                _ => name.to_uppercase(),
            };
            assert_eq!(c(format!("ROPE_DTYPE_{of_c}")), format!("f: DType::{name}"));
        }
        for operation in numbers().filter_map(Operation::of) {
            let name = format!("{operation:?}");
            assert_eq!(c(name.to_uppercase()), format!("f: Operation::{name}"));
        }
        let span = c("ROPE_NORM_SPAN_ALL_HEADS".into());
        assert_eq!(span, format!("f: NormSpan::{:?}", NormSpan::AllHeads));
        assert_eq!(c("ROPE_SHARD_ZIGZAG".into()), "f: Shard::zigzag");
        assert_eq!(c("ROPE_COS_SIN_FULL_HALVES".into()), "f: CosSin::full_halves");
        assert_eq!(c("ROPE_POSITIONS_IDS_ABT".into()), "f: Positions::AxesBatchTokens");
    }

    /// Every message that the C sources hold, with a value for each of its placeholders.
    #[test]
    fn no_message_has_names_of_c() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../src");
        if !root.is_dir() {
            return; // of a package alone
        }
        let mut checked = 0;
        for folder in ["", "base", "math", "context", "call"] {
            for entry in std::fs::read_dir(root.join(folder)).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_none_or(|extension| extension != "cc" && extension != "h") {
                    continue;
                }
                let text = std::fs::read_to_string(&path).unwrap();
                for (at, _) in text.match_indices("\"%s: ") {
                    let message = filled(&text[at..]);
                    let got = of_function("f", &format!("rope_context_create: {message}"));
                    // struct_size is this crate's own to set: no user can see it.
                    let own = got.contains("struct_size") || got.contains("ROPE_INIT");
                    let of_c = |word: &str| {
                        ["ROPE_", "rope_", "0x"].iter().any(|&c| word.starts_with(c))
                            || word == "NULL"
                    };
                    let mut words = got.split(|c: char| !c.is_alphanumeric() && c != '_');
                    let left = got.contains("->") || got.contains('%') || words.any(of_c);
                    assert!(!left || own, "{}: {message} became {got}", path.display());
                    checked += 1;
                }
            }
        }
        assert!(checked > 60, "{checked}");
    }

    /// The literals at the beginning of a text, joined, without `%s: ` and with values.
    fn filled(text: &str) -> String {
        let (mut format, mut rest) = (String::new(), text);
        while let Some(literal) = rest.trim_start().strip_prefix('"') {
            let end = literal.find('"').unwrap();
            format.push_str(&literal[..end]);
            rest = &literal[end + 1..];
        }
        let (mut out, mut rest) = (String::new(), format.strip_prefix("%s: ").unwrap());
        while let Some((before, spec)) = rest.split_once('%') {
            out.push_str(before);
            let end = spec.find(|c: char| "sdugpf".contains(c)).unwrap() + 1;
            let is_path =
                spec.starts_with('s') && spec[1..].starts_with(|c: char| c.is_alphabetic());
            out.push_str(match &spec[end - 1..end] {
                "s" if out.ends_with("ROPE_SCALING_") => "YARN",
                "s" if out.ends_with("ROPE_POSITIONS_") => "IDS_T",
                "s" if out.ends_with("ROPE_OPERATION_") => "SHIFT",
                "s" if out.ends_with("ROPE_LAYOUT_") => "NHD",
                "s" if out.ends_with("ROPE_SLOTS_") => "PAGED",
                "s" if out.ends_with("ROPE_SHARD_") => "HEADS",
                "s" if out.ends_with("ROPE_COS_SIN_") => "SPLIT",
                "s" if is_path => "args->", // %sbatch: a path, then a field
                "s" => "head_dim",
                "p" => "0x7f00c0de",
                _ => "7",
            });
            rest = &spec[end..];
        }
        out + rest
    }
}
