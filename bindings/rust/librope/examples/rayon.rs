//! Prefill on rayon's threads, and on librope's own.
//!
//! `cargo run --release --features rayon --example rayon`

use std::time::Instant;

use librope::{Config, Pairing, Pool, Positions, Runner, Step, ViewMut};

fn main() -> librope::Result<()> {
    let (tokens, heads, dim) = (4096, 32, 128);
    let rope = Config::new(dim, 500_000.0, Pairing::Halves).build()?;
    let mut q = vec![1.0f32; tokens * heads * dim];
    let step = Step::new(1, tokens, Positions::Offset(0));

    let pool = Pool::new(0)?;
    for (name, step) in [
        ("this thread", step),
        ("rayon", step.with_runner(Runner::rayon())),
        ("Pool", step.with_runner(pool.runner())),
    ] {
        rope.apply(&step, ViewMut::bshd(&mut q, heads), ())?; // wakes the threads
        let start = Instant::now();
        rope.apply(&step, ViewMut::bshd(&mut q, heads), ())?;
        println!("{name}: {:?}", start.elapsed());
    }
    Ok(())
}
