//! `candle_nn::rotary_emb::rope` beside librope on the same tensors: 32 heads of 128 channels,
//! prefill of 512 tokens and decode of one, f32 and bf16.
//!
//! `cargo bench -p candle-compare`. Both run on one thread unless RAYON_NUM_THREADS says otherwise.

use std::hint::black_box;
use std::sync::Arc;

use candle_compare::{numbers, tables};
use candle_core::DType;
use criterion::{Criterion, criterion_group, criterion_main};
use librope::candle::{Dims, Rope};
use librope::{Config, Pairing};

fn compare(c: &mut Criterion) {
    // candle uses rayon's threads for prefill, librope none that it is not given.
    if std::env::var_os("RAYON_NUM_THREADS").is_none() {
        // SAFETY: no other thread exists yet.
        unsafe { std::env::set_var("RAYON_NUM_THREADS", "1") };
    }
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
                b.iter(|| librope::candle::rope(black_box(&x), &cos, &sin).expect("a tensor"));
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
