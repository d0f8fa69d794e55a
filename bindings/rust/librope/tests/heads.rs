//! What differs from head to head: rows of cos and sin, and frequencies.

use librope::{Config, CosSin, CosSinMut, Ids, Pairing, Positions, Step, ViewMut};

fn refused<T: std::fmt::Debug>(result: librope::Result<T>, words: &str) {
    let error = result.unwrap_err();
    assert!(error.message().contains(words), "{error}");
}

/// Each head by a row of its own, tokens first and heads first: as two calls of one head each.
#[test]
fn rows_may_belong_to_heads() {
    let rope = Config::new(64, 10000.0, Pairing::Halves).build().unwrap();
    let (tokens, width) = (3, 64);
    let row = |t: usize, h: usize| (0..width).map(move |i| (t * 1000 + h * 100 + i) as f32 * 0.01);
    let tokens_first: Vec<f32> = (0..6).flat_map(|n| row(n / 2, n % 2)).collect();
    let heads_first: Vec<f32> = (0..6).flat_map(|n| row(n % 3, n / 3)).collect();
    let given: Vec<f32> = (0..tokens * 2 * 64).map(|i| i as f32 * 0.125).collect();
    let turned = |rows: CosSin<'_>| {
        let mut q = given.clone();
        rope.apply(&Step::with_rows(1, tokens, rows), ViewMut::bshd(&mut q, 2), ()).unwrap();
        q
    };
    let got = turned(CosSin::packed(&tokens_first).per_head(2));
    let other = CosSin::packed(&heads_first).per_head(2).with_stride(width);
    assert_eq!(got, turned(other.with_head_stride(tokens * width)));
    for h in 0..2 {
        let own: Vec<f32> = (0..tokens).flat_map(|t| row(t, h)).collect();
        let alone = turned(CosSin::packed(&own));
        for t in 0..tokens {
            let head = (t * 2 + h) * 64..(t * 2 + h + 1) * 64;
            assert_eq!(got[head.clone()], alone[head]);
        }
    }
}

/// Frequencies of each head, summed over axes: positions of which one is 0 turn by the other alone.
#[test]
fn frequencies_may_belong_to_heads_and_add_up() {
    let table: Vec<f64> = (0..2 * 3 * 8).map(|i| f64::from(i % 7) * 0.25 - 0.5).collect();
    let config = Config::from_frequency(16, Pairing::Halves, 2, 3, table.clone());
    let rope = config.clone().build().unwrap();
    assert_eq!(rope.info(0).unwrap().freq_heads, 3);
    assert_eq!(rope.inv_freq(0).unwrap(), table);
    let given: Vec<f32> = (0..3 * 16).map(|i| i as f32 * 0.125 - 2.0).collect();
    let ids = [7i64, 11];
    let positions = || Positions::BatchTokensAxes(Ids::I64(&ids));
    let mut q = given.clone();
    rope.apply(&Step::new(1, 1, positions()), ViewMut::bshd(&mut q, 3), ()).unwrap();
    for h in 0..3 {
        for i in 0..8 {
            let angle = 7.0 * table[h * 8 + i] + 11.0 * table[24 + h * 8 + i];
            let (x, y) = (f64::from(given[h * 16 + i]), f64::from(given[h * 16 + i + 8]));
            let want = x * angle.cos() - y * angle.sin();
            assert!((f64::from(q[h * 16 + i]) - want).abs() < 1e-5);
        }
    }
    let mut rows = vec![0.0f32; 3 * 16];
    let step = Step::new(1, 1, positions());
    rope.fill_cos_sin(&step, CosSinMut::packed(&mut rows).per_head(3)).unwrap();
    let mut again = given.clone();
    let step = Step::with_rows(1, 1, CosSin::packed(&rows).per_head(3));
    rope.apply(&step, ViewMut::bshd(&mut again, 3), ()).unwrap();
    assert_eq!(again, q);
    refused(Config::from_frequency(16, Pairing::Halves, 2, 3, vec![1.0; 47]).build(), "47 entries");
    // Another builder does not make another table of it.
    refused(config.clone().with_mrope(&[8], false).build(), "axes (1) must be those of the table");
    let four = config.clone().with_pair_axis(4, vec![]).with_rotary_dim(8);
    refused(four.build(), "axes (4) must be those of the table of frequencies, which has 2");
    assert!(config.with_pair_axis(2, vec![]).build().is_ok());
}
