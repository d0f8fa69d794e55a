//! GGUF files, from bytes and from a path.

use librope::{Error, Model, Pairing};

enum Value {
    Uint(u32),
    Float(f32),
}

fn text(words: &str) -> Vec<u8> {
    [&(words.len() as u64).to_le_bytes()[..], words.as_bytes()].concat()
}

fn gguf(architecture: &str, keys: &[(&str, Value)]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3_u32.to_le_bytes());
    out.extend(0_u64.to_le_bytes());
    out.extend((keys.len() as u64 + 1).to_le_bytes());
    out.extend(text("general.architecture"));
    out.extend(8_u32.to_le_bytes());
    out.extend(text(architecture));
    for (key, value) in keys {
        out.extend(text(&format!("{architecture}.{key}")));
        match value {
            Value::Uint(number) => {
                out.extend(4_u32.to_le_bytes());
                out.extend(number.to_le_bytes());
            }
            Value::Float(number) => {
                out.extend(6_u32.to_le_bytes());
                out.extend(number.to_le_bytes());
            }
        }
    }
    out
}

fn gemma3() -> Vec<u8> {
    gguf(
        "gemma3",
        &[
            ("block_count", Value::Uint(6)),
            ("embedding_length", Value::Uint(2560)),
            ("attention.key_length", Value::Uint(256)),
            ("attention.sliding_window", Value::Uint(1024)),
            ("rope.freq_base", Value::Float(1e6)),
        ],
    )
}

fn expect_gemma3(model: &Model) {
    let (first, last) = (model.layer_type(0).unwrap(), model.layer_type(5).unwrap());
    assert_ne!(first, last);
    assert!(model.layer_type(6).is_err());
    let config = model.config(last).unwrap();
    assert_eq!(config.theta(), 1e6);
    assert_eq!(config.pairing(), Some(Pairing::Halves));
    assert_eq!(model.config(first).unwrap().theta(), 1e4);
}

#[test]
fn bytes_and_their_beginning() {
    let whole = gemma3();
    expect_gemma3(&Model::from_gguf(&whole).unwrap());
    expect_gemma3(&Model::from_gguf([&whole[..], &[0; 4096]].concat()).unwrap());
    let Err(Error::Parse(message)) = Model::from_gguf(&whole[..40]) else {
        panic!("it ends too early")
    };
    assert!(message.contains("ends after 40 bytes, inside key 1 of 6"), "{message}");
}

#[test]
fn files() {
    let path = std::env::temp_dir().join(format!("librope-{}.gguf", std::process::id()));
    std::fs::write(&path, gemma3()).unwrap();
    let model = Model::load_gguf(&path);
    std::fs::remove_file(&path).unwrap();
    expect_gemma3(&model.unwrap());
    let Err(Error::InvalidArgument(message)) = Model::load_gguf(&path) else {
        panic!("it is gone")
    };
    assert!(message.contains("cannot be opened"), "{message}");
    assert!(matches!(Model::load_gguf("a\0b"), Err(Error::InvalidArgument(_))));
}

#[test]
fn what_is_not_read_is_refused() {
    assert!(matches!(Model::from_gguf(gguf("bert", &[])), Err(Error::Unsupported(_))));
    assert!(matches!(Model::from_gguf(b""), Err(Error::Parse(_))));
}

#[test]
fn keys_that_a_program_has_parsed() {
    use librope::GgufValue::{Bool, Bools, Float, Floats, Int, Ints, Text, Texts};
    let gemma = [
        ("general.architecture", Text("gemma3")),
        ("gemma3.block_count", Int(6)),
        ("gemma3.embedding_length", Int(2560)),
        ("gemma3.attention.key_length", Int(256)),
        ("gemma3.attention.sliding_window", Int(1024)),
        ("gemma3.rope.freq_base", Float(1e6)),
        ("tokenizer.ggml.tokens", Texts(262_144)),
        ("tokenizer.ggml.scores", Floats(&[0.5])),
        ("tokenizer.ggml.add_bos_token", Bool(true)),
    ];
    expect_gemma3(&Model::from_gguf_values(&gemma, &[]).unwrap());
    let granite = [
        ("general.architecture", Text("granite_swa")),
        ("granite_swa.block_count", Int(2)),
        ("granite_swa.attention.key_length", Int(8)),
        ("granite_swa.attention.sliding_window", Int(512)),
        ("granite_swa.attention.sliding_window_pattern", Bools(&[1, 0])),
        ("granite_swa.attention.rope_pattern", Ints(&[1, 1])),
    ];
    let factors = [("rope_freqs.weight", &[1.0, 2.0, 3.0, 4.0][..])];
    let model = Model::from_gguf_values(&granite, &factors).unwrap();
    assert_eq!(model.config(0).unwrap().freq_factors(), [1.0, 2.0, 3.0, 4.0]);
    let twice = [("general.architecture", Text("llama")); 2];
    let Err(Error::InvalidArgument(message)) = Model::from_gguf_values(&twice, &[]) else {
        panic!("it appears twice")
    };
    assert!(message.contains("appears twice"), "{message}");
    let Err(Error::InvalidArgument(message)) = Model::from_gguf_values(&[("a\0", Int(1))], &[])
    else {
        panic!("it has a NUL")
    };
    assert!(message.contains("NUL"), "{message}");
    let flags = [("general.architecture", Text("llama")), ("llama.no_rope", Bools(&[1, 0, 200]))];
    let Err(Error::InvalidArgument(message)) = Model::from_gguf_values(&flags, &[]) else {
        panic!("it is no flag")
    };
    assert!(
        message.contains("values (\"llama.no_rope\"): Bools[2] (200) must be 0 or 1"),
        "{message}"
    );
}
