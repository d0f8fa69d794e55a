//! The vectors that C, C++, Rust and Go share, and random cases against the reference of `common`.

mod common;

use common::{Number, Random, data, numbers};
use librope::half::{bf16, f16};
use librope::{
    Angle, Config, Context, CosSinMut, Layout, Model, Operation, Pairing, Positions, PromptPart,
    Scaling, Step, Strides, View, ViewMut, Yarn, prompt_ids,
};
use serde_json::Value;

#[test]
fn worked_examples() {
    let data = data("worked-examples.json");
    let theta = data["theta"].as_f64().unwrap();
    for case in data["cases"].as_array().unwrap() {
        let shape: Vec<usize> = numbers(&case["shape"]).iter().map(|&n| n as usize).collect();
        let [batch, tokens, heads, dim] = shape[..] else { panic!("four dimensions") };
        let mut x: Vec<f32> = numbers(&case["x"]).iter().map(|&v| v as f32).collect();
        let rope = Config::new(dim, theta, Pairing::Interleaved).build().unwrap();
        let step = Step::new(batch, tokens, Positions::Offset(0));
        rope.apply(&step, ViewMut::bshd(&mut x, heads), ()).unwrap();
        for (got, want) in x.iter().zip(numbers(&case["expected"])) {
            assert!((f64::from(*got) - want).abs() < 1e-4, "{}: {got} {want}", case["name"]);
        }
    }

    let table = &data["freqs_cis_5x4"];
    let cos: Vec<Vec<f64>> = table["cos"].as_array().unwrap().iter().map(numbers).collect();
    let sin: Vec<Vec<f64>> = table["sin"].as_array().unwrap().iter().map(numbers).collect();
    let rope = Config::new(2 * cos[0].len(), theta, Pairing::Interleaved).build().unwrap();
    let mut rows = vec![0.0f32; cos.len() * 2 * cos[0].len()];
    let step = Step::new(1, cos.len(), Positions::Offset(0));
    rope.fill_cos_sin(&step, CosSinMut::complex(&mut rows)).unwrap();
    let want = cos.iter().flatten().zip(sin.iter().flatten());
    for (got, (c, s)) in rows.chunks(2).zip(want) {
        assert!((f64::from(got[0]) - c).abs() < 1e-4 && (f64::from(got[1]) - s).abs() < 1e-4);
    }
}

/// `rope_parameters` by hand, as a program without config.json would write them.
fn config_of(parameters: &Value, model: &Value, head_dim: usize, seq_len: i64) -> Config {
    let number = |name: &str| parameters[name].as_f64().unwrap_or(0.0);
    let integer = |name: &str| parameters[name].as_i64().unwrap_or(0);
    let max = model["max_position_embeddings"].as_i64().unwrap_or(0);
    let original = match integer("original_max_position_embeddings") {
        0 => max,
        n => n,
    };
    let mut config = Config::new(head_dim, number("rope_theta"), Pairing::Halves);
    if let Some(factor) = parameters["partial_rotary_factor"].as_f64() {
        config = config.with_rotary_dim((head_dim as f64 * factor) as usize);
    }
    let kind = parameters["rope_type"].as_str().or(parameters["type"].as_str()).unwrap();
    let config = config.with_scaling(match kind {
        "default" => Scaling::Default,
        "linear" => Scaling::Linear { factor: number("factor") },
        "dynamic" => {
            Scaling::Dynamic { factor: number("factor"), max_position_embeddings: max, seq_len }
        }
        "yarn" => Scaling::Yarn(
            Yarn::new(number("factor"), original)
                .with_beta(number("beta_fast"), number("beta_slow"))
                .with_mscale(number("mscale"), number("mscale_all_dim")),
        ),
        "llama3" => Scaling::Llama3 {
            factor: number("factor"),
            low_freq_factor: number("low_freq_factor"),
            high_freq_factor: number("high_freq_factor"),
            original_max_position_embeddings: original,
        },
        "proportional" => Scaling::Proportional { factor: number("factor") },
        other => panic!("no case for {other}"),
    });
    config.with_attention_factor(number("attention_factor"))
}

fn check_frequencies(name: &str, config: &Config, want: &[f64], attention_factor: f64) {
    for (angle, bound) in [(Angle::Float32, 1.3e-6), (Angle::Exact, 1e-11)] {
        let rope = config.clone().with_angle(angle).build().unwrap();
        let got = rope.inv_freq(0).unwrap();
        assert_eq!(got.len(), want.len(), "{name}");
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            assert!((got - want).abs() <= bound * want.abs(), "{name}[{i}]: {got} {want}");
        }
        let factor = rope.info(0).unwrap().attention_factor;
        assert!((factor - attention_factor).abs() < 1e-12, "{name}: {factor}");
    }
}

#[test]
fn golden_frequencies() {
    let mut checked = 0;
    for record in data("golden.json")["golden"].as_array().unwrap() {
        if record["kind"] != "inv_freq" {
            continue;
        }
        let model = &record["config"];
        let hidden = model["hidden_size"].as_u64().unwrap();
        let heads = model["num_attention_heads"].as_u64().unwrap();
        let head_dim = model["head_dim"].as_u64().unwrap_or(hidden / heads) as usize;
        let seq_len = record["seq_len"].as_i64().unwrap_or(0);
        let parameters = &record["rope_parameters"];
        let name = record["name"].as_str().unwrap();
        let want = numbers(&record["expected_ref_fp64"]);
        let factor = record["attention_scaling"].as_f64().unwrap();

        let by_hand = config_of(parameters, model, head_dim, seq_len);
        check_frequencies(name, &by_hand, &want, factor);

        // The same through the parser: as one model's config.json.
        let mut json = model.clone();
        json["model_type"] = "llama".into();
        json["num_hidden_layers"] = 2.into();
        json["rope_parameters"] = parameters.clone();
        let parsed = Config::from_json(json.to_string()).unwrap().with_angle(Angle::Float32);
        let parsed = if parsed.needs_seq_len() { parsed.with_seq_len(seq_len) } else { parsed };
        check_frequencies(name, &parsed, &want, factor);
        checked += 1;
    }
    assert_eq!(checked, 10);
}

#[test]
fn derived_frequencies() {
    let mut checked = 0;
    for record in data("golden.json")["derived"].as_array().unwrap() {
        let name = record["name"].as_str().unwrap();
        let parameters = &record["rope_parameters"];
        let kind = parameters["rope_type"].as_str().or(parameters["type"].as_str());
        // The lists of phi35_mini and the formula of alpha are the parser's business.
        if record["inv_freq"].is_null() || kind == Some("dynamic-alpha") {
            continue;
        }
        let mut parameters = parameters.clone();
        parameters["rope_theta"] = record["rope_theta"].clone();
        let mut model = Value::Null;
        if kind == Some("dynamic") {
            model = serde_json::json!({ "max_position_embeddings": 32768 });
        }
        let dim = record["rotary_dim"].as_u64().unwrap() as usize;
        let seq_len = record["seq_len"].as_i64().unwrap_or(0);
        let config = config_of(&parameters, &model, dim, seq_len);
        let factor = record["attention_scaling"].as_f64().unwrap();
        check_frequencies(name, &config, &numbers(&record["inv_freq"]), factor);
        checked += 1;
    }
    assert!(checked >= 8, "{checked}");
}

#[test]
fn golden_position_ids() {
    let video = |t| PromptPart { text: 1, t, h: 4, w: 3, t_interval: 0 };
    let text = PromptPart::text(1);
    let cases = [
        ("qwen2_vl_image_position_ids", vec![video(1), text]),
        ("qwen2_vl_video_position_ids", vec![video(2), text]),
        ("qwen3_vl_video_position_ids", vec![video(1), video(1), text]),
    ];
    let golden = data("golden.json");
    for (name, runs) in cases {
        let mut records = golden["golden"].as_array().unwrap().iter();
        let record = records.find(|r| r["name"] == name).unwrap();
        let want: Vec<i64> = (0..3)
            .flat_map(|axis| numbers(&record["expected_thw"][axis]))
            .map(|id| id as i64)
            .collect();
        assert_eq!(prompt_ids(&runs, 0).unwrap().0, want, "{name}");
    }
}

#[test]
fn every_model_of_the_collection_is_read() {
    let models = data("models.json");
    let mut built = 0;
    for record in models.as_array().unwrap() {
        let Ok(model) = Model::from_json(record["config"].to_string()) else { continue };
        for t in 0..model.layer_types().len() {
            let config = model.config(t).unwrap();
            let config = if config.needs_seq_len() { config.with_seq_len(1) } else { config };
            built += usize::from(config.build().is_ok());
        }
    }
    // Most are whole; some records are excerpts without head sizes.
    assert!(built > 60, "{built}");
}

fn offset_of(layout: Layout, sizes: [usize; 4], at: [usize; 3]) -> usize {
    let [batch, tokens, heads, dim] = sizes;
    let [b, t, h] = at;
    match layout {
        Layout::Bshd => ((b * tokens + t) * heads + h) * dim,
        Layout::Bhsd => ((b * heads + h) * tokens + t) * dim,
        Layout::Sbhd => ((t * batch + b) * heads + h) * dim,
        Layout::Strided(s) => b * s.batch + t * s.token + h * s.head,
        other => panic!("no case for {other:?}"),
    }
}

/// One random call: sizes, layout, pairing, span, positions, operation, in and out of place.
fn random_case<T: Number>(seed: u64) {
    let mut r = Random(seed * 2 + 1);
    let head_dim = 2 * (1 + r.below(70));
    let rotary_dim = 2 * (1 + r.below(head_dim / 2));
    let rotary_offset = r.below(head_dim - rotary_dim + 1) / 2 * 2;
    let pairings = [Pairing::Halves, Pairing::Interleaved, Pairing::InterleavedToHalves];
    let pairing = r.pick(&pairings);
    let attention_factor = r.pick(&[0.0, 1.25]);
    let rope: Context = Config::new(head_dim, r.pick(&[10000.0, 5e5]), pairing)
        .with_rotary_dim(rotary_dim)
        .with_rotary_offset(rotary_offset)
        .with_attention_factor(attention_factor)
        .build()
        .unwrap();

    let (batch, tokens, heads) = (1 + r.below(3), 1 + r.below(6), 1 + r.below(5));
    let gap = r.below(5);
    let head = head_dim + gap;
    let strides = Strides { head, token: head * heads + gap, batch: (head * heads + gap) * tokens };
    let layout = r.pick(&[Layout::Bshd, Layout::Bhsd, Layout::Sbhd, Layout::Strided(strides)]);
    let sizes = [batch, tokens, heads, head_dim];
    let len = match layout {
        Layout::Strided(s) => s.batch * batch,
        _ => batch * tokens * heads * head_dim,
    };
    let x: Vec<T> = r.vec(len);
    let limit = r.pick(&[16, 4096, 1 << 20]);

    let ids: Vec<i64> = (0..batch * tokens).map(|_| r.below(limit) as i64 - 7).collect();
    let narrow: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
    let kind = r.below(6);
    let positions = match kind {
        0 => Positions::Offset(ids[0]),
        1 => Positions::seq_offsets(&ids[..batch]),
        2 => Positions::seq_offsets(&narrow[..batch]),
        3 => Positions::tokens(&ids[..tokens]),
        4 => Positions::batch_tokens(&narrow),
        _ => Positions::batch_tokens(&ids),
    };
    let position = |b: usize, t: usize| match kind {
        0 => ids[0] + t as i64,
        1 | 2 => ids[b] + t as i64,
        3 => ids[t],
        _ => ids[b * tokens + t],
    };
    let step = Step::new(batch, tokens, positions);

    let mut got = x.clone();
    let place = r.below(3);
    match place {
        0 => rope.apply(&step, ViewMut::new(&mut got, layout, heads), ()),
        1 => rope.apply(&step, (), ViewMut::new(&mut got, layout, heads)),
        _ => {
            let input = View::new(&x, layout, heads);
            rope.apply(&step, (input, ViewMut::new(&mut got, layout, heads)), ())
        }
    }
    .unwrap();

    let a = if attention_factor == 0.0 { 1.0 } else { attention_factor };
    let mut untouched = vec![true; len];
    for b in 0..batch {
        for t in 0..tokens {
            let angles = common::angles(&rope, position(b, t));
            for h in 0..heads {
                let at = offset_of(layout, sizes, [b, t, h]);
                let old = &x[at..at + head_dim];
                let (want, bound) = common::rotate_head(old, rotary_offset, pairing, &angles, a);
                for i in 0..head_dim {
                    let error = (got[at + i].to_f64() - want[i]).abs();
                    assert!(error <= bound[i], "case {seed}: {error} > {}", bound[i]);
                    untouched[at + i] = false;
                }
            }
        }
    }
    for i in (0..len).filter(|&i| untouched[i]) {
        assert_eq!(got[i], x[i], "case {seed}: element {i} lies between heads");
    }

    // Undone, the values are back to their precision.
    let back = step.with_operation(Operation::Inverse);
    rope.apply(&back, ViewMut::new(&mut got, layout, heads), ()).unwrap();
    for (got, x) in got.iter().zip(&x) {
        assert!((got.to_f64() - x.to_f64()).abs() <= 6.0 * T::HALF_ULP, "case {seed}");
    }
}

#[test]
fn random_f32() {
    (0..400).for_each(random_case::<f32>);
}

#[test]
fn random_f16() {
    (1000..1400).for_each(random_case::<f16>);
}

#[test]
fn random_bf16() {
    (2000..2400).for_each(random_case::<bf16>);
}
