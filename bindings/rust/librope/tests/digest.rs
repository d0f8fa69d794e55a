//! Digests of configurations and models: equal for one rotation, another for another.

use librope::{Config, Digest, Error, Model, Pairing, Scaling};

const FOUR: &str = r#"{"model_type": "qwen2", "hidden_size": 512, "num_attention_heads": 8,
    "num_hidden_layers": 2, "rope_theta": 1000000.0,
    "rope_scaling": {"type": "linear", "factor": 4.0}}"#;
const FIVE: &str = r#"{"num_hidden_layers": 2, "rope_parameters": {"factor": 4, "rope_theta": 1000000,
    "rope_type": "linear"}, "num_attention_heads": 8, "hidden_size": 512, "model_type": "qwen2"}"#;

#[test]
fn of_models_is_one_for_all_spellings() {
    let four = Model::from_json(FOUR).unwrap();
    let five = Model::from_json(FIVE).unwrap();
    for same in [Digest::Rotation, Digest::Angles, Digest::Bits] {
        assert_eq!(four.digest(None, same), five.digest(None, same));
        assert_eq!(four.digest(Some(0), same), four.config(0).unwrap().digest(same));
        assert_ne!(four.digest(None, same), four.digest(Some(0), same));
    }
    assert!(matches!(four.digest(Some(1), Digest::Rotation), Err(Error::InvalidArgument(_))));
}

#[test]
fn of_configurations_tells_a_factor_and_a_pairing() {
    let plain = Config::new(64, 10000.0, Pairing::Halves);
    let digest = |config: &Config| config.digest(Digest::Rotation).unwrap();
    let scaled = plain.clone().with_scaling(Scaling::Linear { factor: 2.0 });
    let one = plain.clone().with_scaling(Scaling::Linear { factor: 1.0 });
    assert_ne!(digest(&plain), digest(&scaled));
    assert_eq!(digest(&plain), digest(&one));
    assert_ne!(digest(&plain), digest(&Config::new(64, 10000.0, Pairing::Interleaved)));
    assert_eq!(digest(&plain), digest(&plain.clone().with_seq_len(7)));
}
