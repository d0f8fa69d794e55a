//! Random `config.json` texts: real ones with a few values or bytes changed.

use std::sync::OnceLock;

use librope::{Config, Model, Pairing};
use serde_json::{Value, json};

use crate::Counts;
use crate::calls;
use crate::random::Random;

/// The configurations of the repository's collection.
fn collection() -> &'static [Value] {
    static COLLECTION: OnceLock<Vec<Value>> = OnceLock::new();
    COLLECTION.get_or_init(|| {
        let records: Vec<Value> =
            serde_json::from_str(include_str!("../../../../tests/data/models.json"))
                .expect("the collection is JSON");
        records.into_iter().map(|mut record| record["config"].take()).collect()
    })
}

fn value(random: &mut Random) -> Value {
    match random.below(10) {
        0 => Value::Null,
        1 => json!(random.one_in(2)),
        2 => json!(random.position()),
        3 => json!(random.number()),
        4 => json!(-(random.below(9) as i64)),
        5 => json!(random.pick(&["yarn", "longrope", "dynamic", "default", "llama", "", "nope"])),
        6 => json!(vec![random.number(); random.below(70)]),
        7 => json!({ "rope_type": "linear", "factor": random.number() }),
        8 => json!([[random.below(5), "full_attention"], {}]),
        _ => json!(random.below(1 << 16)),
    }
}

/// Changes, adds or takes away one value somewhere in the tree.
fn mutate(random: &mut Random, tree: &mut Value) {
    match tree {
        Value::Object(map) if !map.is_empty() => {
            let index = random.below(map.len());
            let key = map.keys().nth(index).expect("below the length").clone();
            match random.below(6) {
                0 => drop(map.remove(&key)),
                1 => drop(map.insert(key, value(random))),
                2 => drop(map.insert("head_dim".into(), json!(random.below(300)))),
                _ => mutate(random, &mut map[&key]),
            }
        }
        Value::Array(list) if !list.is_empty() => {
            let index = random.below(list.len());
            match random.below(4) {
                0 => drop(list.remove(index)),
                1 => list.push(value(random)),
                _ => mutate(random, &mut list[index]),
            }
        }
        other => *other = value(random),
    }
}

fn text(random: &mut Random) -> Vec<u8> {
    let mut tree = random.pick(&collection().iter().collect::<Vec<_>>()).clone();
    for _ in 0..random.below(4) {
        mutate(random, &mut tree);
    }
    let mut text = tree.to_string().into_bytes();
    if random.one_in(4) {
        for _ in 0..=random.below(4) {
            let at = random.below(text.len().max(1));
            match random.below(4) {
                0 => text.truncate(at),
                1 => text.insert(at.min(text.len()), random.next() as u8),
                2 if at < text.len() => drop(text.remove(at)),
                _ if at < text.len() => text[at] = random.pick(b"0123456789{}[]\",:-eE.\\u\0\xff"),
                _ => (),
            }
        }
    }
    text
}

pub fn case(random: &mut Random, counts: &mut Counts) {
    let text = text(random);
    counts.count("Config::from_json", &Config::from_json(&text));
    let result = Model::from_json(&text);
    counts.count("Model::from_json", &result);
    let Ok(model) = result else { return };
    let kinds = model.layer_types().len();
    assert!(kinds > 0 && model.layer_types().all(|name| model.find(name).is_some()));
    for layer in [0, random.size(3), random.size(40)] {
        let kind = model.layer_type(layer);
        counts.count("Model::layer_type", &kind);
        assert!(kind.is_err() || kind.is_ok_and(|kind| kind < kinds));
    }
    counts.count("Model::contexts", &model.contexts(random.position()));
    for t in [random.below(kinds), random.size(kinds)] {
        let result = model.config(t);
        counts.count("Model::config", &result);
        let Ok(mut config) = result else { continue };
        if config.pairing().is_none() && random.one_in(2) {
            config = config.with_pairing(Pairing::Halves);
        }
        if config.head_dim() == 0 {
            config = config.with_head_dim(64);
        }
        if config.needs_seq_len() {
            config = config.with_seq_len(random.position());
        }
        // What the getters say can be set again.
        let _ = config.clone().with_scaling(config.scaling()).with_angle(config.angle());
        let result = config.build();
        counts.count("Config::build", &result);
        if let Ok(context) = result {
            calls::case(&context, random, counts);
        }
    }
}
