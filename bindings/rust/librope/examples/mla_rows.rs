//! The cache of `DeepSeek` V3.2 in the rows of `FlashMLA`, 656 bytes for each token: 512 channels of the latent in E4M3,
//! in four groups with a scale each, and the 64 channels of the key, which turn, in bf16. One call writes them, and turns
//! the queries, with the channels beside it that are absorbed into the latent (`rest`) in the order of tokens. Another
//! reads the rows back as f32. The program compares what is read with what the bytes say, and that with the latents, and
//! with keys and queries that it turns itself.

use librope::half::bf16;
use librope::{
    BytePart, Call, Config, F8E4M3, KvCache, Pages, Pairing, Positions, Result, Scale, Slots, Step,
    Strides, View, ViewMut, bytes_of,
};

const LATENT: usize = 512;
const GROUP: usize = 128;
const DIM: usize = 64;
const WIDTH: usize = LATENT + DIM;
const SCALES: usize = LATENT; // from this byte of a row on
const KEY: usize = SCALES + LATENT / GROUP * 4;
const ROW: usize = KEY + 2 * DIM;
const PAGES: usize = 2;
const PAGE_SIZE: usize = 64;
const SLOTS: [i64; 3] = [70, 3, 71];
const TOKENS: usize = SLOTS.len();
const FIRST: usize = 1000; // position of the first token
const HEADS: usize = 4; // of queries

/// The parts of rows, each in elements of its own.
fn cache(bytes: &mut [u8]) -> Result<KvCache<'_>> {
    let rows = |size| Strides { batch: PAGE_SIZE * ROW / size, token: ROW / size, head: 0 };
    let scale = Scale::computed(&mut []).with_group(GROUP as u16).with_strides(rows(4));
    let scale = scale.with_power_of_two().with_min_scale(1e-4);
    let latent = BytePart::of::<F8E4M3>(0, 1, rows(1)).with_scale_at(SCALES, scale);
    let key = BytePart::of::<bf16>(KEY, 1, rows(2));
    Ok(KvCache::in_bytes(PAGES, PAGE_SIZE, bytes, Some(key), Some(latent))?.with_v_head_dim(LATENT))
}

fn e4m3(bits: u8) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let size = match exponent {
        0 => fraction / 512.0,
        _ => (8.0 + fraction) * 2f32.powi(exponent - 10),
    };
    if bits & 0x80 == 0 { size } else { -size }
}

/// Stands for what projections give.
fn numbers(step: f32, count: usize) -> Vec<bf16> {
    let number = |i: usize| (step * i as f32).sin() * 2f32.powi(-((i % 7) as i32));
    (0..count).map(|i| bf16::from_f32(number(i))).collect()
}

/// By how much of a pair `got` is off what is `given`, turned.
fn off_turned(given: &[bf16], position: usize, got: impl Iterator<Item = f32>) -> f64 {
    let got: Vec<f64> = got.map(f64::from).collect();
    assert!(got.len() == DIM && got.iter().all(|x| x.is_finite()));
    let of_pair = |i: usize| {
        let angle = position as f64 * 10000f64.powf(-2.0 * i as f64 / DIM as f64);
        let (x0, x1) = (f64::from(given[2 * i]), f64::from(given[2 * i + 1]));
        let (sin, cos) = angle.sin_cos();
        let off0 = got[2 * i] - (x0 * cos - x1 * sin);
        let off1 = got[2 * i + 1] - (x1 * cos + x0 * sin);
        off0.hypot(off1) / x0.hypot(x1)
    };
    (0..DIM / 2).map(of_pair).fold(0.0, f64::max)
}

fn main() -> Result<()> {
    let rope = Config::new(DIM, 10000.0, Pairing::Interleaved).build()?;
    let projected = numbers(0.7, TOKENS * WIDTH);
    let mut memory = vec![0f32; PAGES * PAGE_SIZE * ROW / 4]; // aligned to the scales

    // Queries: what turns, and what is absorbed, by a product for each head, [heads, tokens, LATENT].
    let (q, absorbed) = (numbers(0.3, TOKENS * HEADS * DIM), numbers(0.4, TOKENS * HEADS * LATENT));
    let (mut turned, mut rest) = (vec![bf16::ZERO; q.len()], vec![bf16::ZERO; absorbed.len()]);

    // A latent and a key beside it for each token, into their rows.
    let token = Strides { batch: 0, token: WIDTH, head: 0 };
    let key = View::strided(&projected[LATENT..], 1, token);
    let step = Step::new(1, TOKENS, Positions::Offset(FIRST as i64));
    let step = step.with_slots(Slots::mapped(&SLOTS));
    let mut rows = cache(bytes_of(&mut memory))?;
    let call = Call::new()
        .with_q((View::bshd(&q, HEADS), ViewMut::bshd(&mut turned, HEADS)))
        .with_rest((View::bhsd(&absorbed, HEADS), ViewMut::bshd(&mut rest, HEADS)))
        .with_rest_head_dim(LATENT)
        .with_k(key)
        .with_v(View::strided(&projected, 1, token))
        .with_cache(&mut rows);
    rope.apply_call(&step, call)?;

    // Read back: a move to a cache of f32, by a context that does not turn.
    let (mut keys, mut latents) = (vec![0f32; TOKENS * DIM], vec![0f32; TOKENS * LATENT]);
    let mut read = KvCache::new(1, TOKENS)
        .with_k(Pages::nhd(&mut keys, 1))
        .with_v(Pages::nhd(&mut latents, 1))
        .with_v_head_dim(LATENT);
    let step = Step::new(1, TOKENS, Positions::Offset(0)).with_source(Slots::mapped(&SLOTS));
    Config::nope(DIM).build()?.move_between(
        &step.with_slots(Slots::linear(&[0])),
        &rows,
        &mut read,
    )?;
    drop((rows, read));

    let (mut of_latents, mut of_keys, mut of_queries) = (0f64, 0f64, 0f64);
    for (t, slot) in SLOTS.iter().enumerate() {
        let row = &bytes_of(&mut memory)[*slot as usize * ROW..][..ROW];
        let projected = &projected[t * WIDTH..][..WIDTH];
        let scales: Vec<f32> = row[SCALES..KEY]
            .chunks(4)
            .map(|x| f32::from_ne_bytes([x[0], x[1], x[2], x[3]]))
            .collect();
        for (c, &got) in latents[t * LATENT..][..LATENT].iter().enumerate() {
            let scale = scales[c / GROUP];
            assert!(got.to_bits() == (e4m3(row[c]) * scale).to_bits(), "channel {c} of a latent");
            let x = f64::from(projected[c]);
            let size = x.abs() + f64::from(scale) / 64.0; // codes below 1/64 have one distance
            of_latents = of_latents.max((f64::from(got) - x).abs() / size);
        }
        let key = &keys[t * DIM..][..DIM];
        let stored = row[KEY..].chunks(2).map(|x| bf16::from_ne_bytes([x[0], x[1]]).to_f32());
        assert!(stored.eq(key.iter().copied()), "the key of token {t}");
        of_keys = of_keys.max(off_turned(&projected[LATENT..], FIRST + t, key.iter().copied()));
        for h in 0..HEADS {
            let (head, column) = (t * HEADS + h, h * TOKENS + t);
            let (made, given) = (&rest[head * LATENT..], &absorbed[column * LATENT..]);
            assert!(made[..LATENT] == given[..LATENT], "the rest of head {h} of token {t}");
            let got = turned[head * DIM..][..DIM].iter().map(|x| x.to_f32());
            of_queries = of_queries.max(off_turned(&q[head * DIM..], FIRST + t, got));
        }
    }
    println!(
        "{TOKENS} rows of {ROW} bytes: latents are off by up to {of_latents:.4} of their value, keys by {of_keys:.4}, \
         queries by {of_queries:.4}"
    );
    assert!(of_latents <= 1.0 / 16.0 && of_keys.max(of_queries) <= 1.0 / 256.0 + 1e-4);
    Ok(())
}
