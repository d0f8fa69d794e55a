//! Prefill and decode: K is turned where it lies in the cache.

use librope::{Config, Pairing, Positions, Step, ViewMut};

fn main() -> librope::Result<()> {
    const LAYERS: usize = 3;
    let (q_heads, k_heads, dim, room) = (32, 8, 128, 64);
    let rope = Config::new(dim, 500_000.0, Pairing::Halves).build()?;
    println!("{} on {}", librope::VERSION, rope.backend());

    let mut caches = vec![vec![0.0f32; room * k_heads * dim]; LAYERS];
    let mut past = 0;
    for tokens in [7, 1, 1, 1] {
        let step = Step::new(1, tokens, Positions::Offset(past as i64));
        for cache in &mut caches {
            let mut q = vec![0.5f32; tokens * q_heads * dim]; // stands for a projection
            let new = &mut cache[past * k_heads * dim..][..tokens * k_heads * dim];
            new.fill(0.25);
            rope.apply(&step, ViewMut::bshd(&mut q, q_heads), ViewMut::bshd(new, k_heads))?;
        }
        past += tokens;
    }
    println!("{past} tokens in the cache of each of {LAYERS} layers");
    Ok(())
}
