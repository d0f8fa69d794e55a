//! `candle_nn::rotary_emb::rope` beside librope on the same tensors: 32 heads of 128 channels,
//! prefill of 512 tokens and decode of one, f32 and bf16.
//!
//! `cargo bench -p librope-candle`. Both run on rayon's threads: RAYON_NUM_THREADS says how many.

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::sync::Arc;

use candle_core::DType;
use common::{numbers, tables};
use criterion::{Criterion, criterion_group, criterion_main};
use librope::{Config, Pairing};
use librope_candle::{Dims, Rope};

fn compare(c: &mut Criterion) {
    let context = Arc::new(Config::new(128, 10000.0, Pairing::Halves).build().expect("plain"));
    for (name, tokens) in [("prefill 512", 512), ("decode", 1)] {
        for dtype in [DType::F32, DType::BF16] {
            let x = numbers(&[1, 32, tokens, 128], dtype).expect("numbers");
            let (cos, sin) = tables(tokens, 128, dtype).expect("tables");
            let mut group = c.benchmark_group(format!("{name} {dtype:?}"));
            group.bench_function("candle_nn rope", |b| {
                b.iter(|| {
                    candle_nn::rotary_emb::rope(black_box(&x), &cos, &sin).expect("a tensor")
                });
            });
            group.bench_function("librope rope", |b| {
                b.iter(|| librope_candle::rope(black_box(&x), &cos, &sin).expect("a tensor"));
            });
            group.bench_function("librope by position", |b| {
                let rope = Rope::at_offset(&context, Dims::Bhsd, 0);
                b.iter(|| rope.apply(black_box(&x)).expect("a tensor"));
            });
            group.finish();
        }
    }
}

criterion_group!(benches, compare);
criterion_main!(benches);
