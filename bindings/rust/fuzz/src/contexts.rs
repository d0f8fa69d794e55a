//! Random configurations, most of them nearly right.

use librope::{Angle, Config, Context, DType, LongRope, Pairing, Rounding, Scaling, Yarn};

use crate::Counts;
use crate::random::Random;

fn length(random: &mut Random) -> i64 {
    match random.below(16) {
        0 => random.pick(&[0, -1, i64::MIN, i64::MAX, 1 << 53]),
        _ => random.pick(&[1, 2048, 4096, 8192, 32768, 131_072]),
    }
}

fn table(random: &mut Random, pairs: usize) -> Vec<f64> {
    let len = random.size(pairs).min(2000);
    let odd = random.one_in(16);
    (0..len).map(|i| if odd { random.number() } else { 1.0 + i as f64 / 64.0 }).collect()
}

fn scaling(random: &mut Random, pairs: usize) -> Scaling {
    match random.below(10) {
        7 => Scaling::DynamicSteps {
            factor: random.number(),
            max_position_embeddings: length(random),
            seq_len: length(random),
        },
        0 => Scaling::Linear { factor: random.number() },
        1 => Scaling::Dynamic {
            factor: random.number(),
            max_position_embeddings: length(random),
            seq_len: length(random),
        },
        2 => Scaling::Yarn(
            Yarn::new(random.number(), length(random))
                .with_beta(random.pick(&[0.0, 32.0]), random.pick(&[0.0, 1.0]))
                .with_mscale(random.pick(&[0.0, 1.0]), random.pick(&[0.0, 1.0])),
        ),
        3 => Scaling::LongRope(
            LongRope::new(table(random, pairs), table(random, pairs), length(random))
                .with_max_position_embeddings(length(random))
                .with_seq_len(length(random)),
        ),
        4 => Scaling::Llama3 {
            factor: random.number(),
            low_freq_factor: random.pick(&[1.0, 4.0]),
            high_freq_factor: random.pick(&[4.0, 1.0, 8.0]),
            original_max_position_embeddings: length(random),
        },
        5 => Scaling::Proportional { factor: random.number() },
        6 => Scaling::Nope,
        _ => Scaling::Default,
    }
}

fn config(random: &mut Random) -> Config {
    let pairings = [
        Pairing::Halves,
        Pairing::Interleaved,
        Pairing::InterleavedToHalves,
        Pairing::HalvesPerAxis,
    ];
    let usual = if random.one_in(6) {
        2 * (1 + random.below(512))
    } else {
        random.pick(&[2, 4, 8, 16, 30, 32, 64, 66, 80, 96, 128, 256])
    };
    let head_dim = random.size(usual);
    let pairing = random.pick(&pairings);
    let mut rotary = head_dim;
    let mut config = match random.below(12) {
        0 => Config::nope(head_dim),
        1 => Config::from_inv_freq(head_dim, pairing, table(random, usual / 2)),
        _ => Config::new(head_dim, random.number(), pairing),
    };
    if random.one_in(3) {
        let part = 2 * (1 + random.below(usual.max(2) / 2));
        rotary = random.size(part);
        let offset = random.below(usual.saturating_sub(part) + 1);
        config = config.with_rotary_dim(rotary).with_rotary_offset(random.size(offset));
    }
    let pairs = rotary.min(1 << 12) / 2;
    if random.one_in(2) {
        config = config.with_scaling(scaling(random, pairs));
    }
    if random.one_in(2) {
        config = config.with_angle(random.pick(&[
            Angle::Exact,
            Angle::Ggml,
            Angle::Divide,
            Angle::Float32,
        ]));
    }
    if random.one_in(3) {
        config = config.with_rounding(random.pick(&[Rounding::Eager, Rounding::CosSin]));
    }
    if random.one_in(8) {
        config = config.with_inv_freq_dtype(random.pick(&[DType::F16, DType::Bf16, DType::F32]));
    }
    if random.one_in(6) {
        config = config.with_attention_factor(random.number());
    }
    if random.one_in(5) {
        config = config.with_freq_factors(table(random, pairs));
    }
    if random.one_in(12) {
        config = config.with_seq_len(length(random));
    }
    if pairing == Pairing::HalvesPerAxis || random.one_in(3) {
        // Sections that add up to the pairs, for up to 6 axes; the library takes 4, and must not take
        // more because those beyond are 0.
        let axes = 1 + random.below(6);
        let used = if random.one_in(2) { axes.min(4) } else { axes };
        let mut sections = vec![0; axes];
        sections[..used].fill(pairs / used);
        sections[0] += pairs % used;
        if random.one_in(8) {
            sections[axes - 1] = random.size(pairs);
        }
        config = config.with_mrope(&sections, random.one_in(3));
    }
    if random.one_in(6) {
        let axes = 1 + random.below(9);
        let len = random.size(pairs).min(2000);
        let of_pairs: Vec<u8> = (0..len).map(|_| random.below(axes) as u8).collect();
        config = config.with_pair_axis(random.size(axes), of_pairs);
    }
    config
}

/// A context, if the configuration was accepted.
pub fn make(random: &mut Random, counts: &mut Counts) -> Option<Context> {
    let result = if random.one_in(6) {
        let base = config(random);
        let sets: Vec<Config> = (0..random.below(5))
            .map(|_| match random.below(4) {
                0 => config(random),
                1 => base.clone().with_freq_factors(table(random, base.rotary_dim().min(4096) / 2)),
                _ => base.clone().with_seq_len(length(random)),
            })
            .collect();
        let result = Context::with_sets(&sets);
        counts.count("Context::with_sets", &result);
        result
    } else {
        let config = config(random);
        let seq_len = length(random);
        counts.count("Config::next_change", &config.next_change(seq_len));
        let result = config.build();
        counts.count("Config::build", &result);
        result
    };
    let context = result.ok()?;
    for set in [0, 1, random.size(0)] {
        counts.count("Context::info", &context.info(set));
        counts.count("Context::inv_freq", &context.inv_freq(set));
    }
    Some(context)
}
