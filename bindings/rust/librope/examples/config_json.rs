//! Reads a config.json and prints the kinds of RoPE of the model.
//!
//! `cargo run --example config_json -- path/to/config.json`

use librope::Model;

const GEMMA_3: &str = r#"{"model_type": "gemma3_text", "hidden_size": 2560,
    "num_attention_heads": 8, "head_dim": 256, "max_position_embeddings": 131072,
    "rope_theta": 1000000, "rope_local_base_freq": 10000,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "num_hidden_layers": 12}"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let json = match std::env::args().nth(1) {
        Some(path) => std::fs::read(path)?,
        None => GEMMA_3.into(),
    };
    let model = Model::from_json(&json)?;
    for (t, name) in model.layer_types().enumerate() {
        let config = model.config(t)?;
        let config = if config.needs_seq_len() { config.with_seq_len(1) } else { config };
        let rope = config.build()?;
        let frequencies = rope.inv_freq(0)?;
        let (first, last) = (frequencies.first(), frequencies.last());
        println!("{name}: head_dim {}, theta {}", rope.head_dim(), config.theta());
        println!("  {} frequencies from {first:?} to {last:?}", frequencies.len());
    }
    let kinds: Vec<usize> =
        (0..).map_while(|layer| model.layer_type(layer).ok()).take(12).collect();
    println!("layers: {kinds:?} ..");
    Ok(())
}
