//! Safe code reads and writes inside its slices only, whatever a configuration says: every number of
//! axes with every pairing and table. Run with a sanitized library, this is its test for reads, too.

mod common;

use common::Random;
use librope::{Config, Context, Error, Pairing, Positions, Result, Step, Strides, View, ViewMut};

const PAIRINGS: [Pairing; 4] =
    [Pairing::Halves, Pairing::Interleaved, Pairing::InterleavedToHalves, Pairing::HalvesPerAxis];
const BORDER: usize = 512;
const DIM: usize = 64;

/// Rotates two tokens of one head in the middle of a buffer, and looks at the rest of it.
fn rotate_between_borders(context: &Context, what: &str) {
    let (tokens, axes) = (2, context.axes());
    let before: Vec<f32> = Random(3).vec(2 * BORDER + tokens * DIM);
    let ids: Vec<i64> = (0..(tokens * axes) as i64).map(|i| i + 3).collect();
    let step = Step::new(1, tokens, Positions::axes_batch_tokens(&ids));
    let mut memory = before.clone();
    let inside = &mut memory[BORDER..][..tokens * DIM];
    context.apply(&step, ViewMut::bshd(inside, 1), ()).unwrap();
    assert_eq!(memory[..BORDER], before[..BORDER], "{what}: before the slice");
    let end = BORDER + tokens * DIM;
    assert_eq!(memory[end..], before[end..], "{what}: behind the slice");

    // Out of place, with a gap between the heads that belongs to nobody.
    let mut memory = before.clone();
    let gap = Strides { token: DIM + 32, head: DIM + 32, batch: 0 };
    let input = &before[..tokens * DIM];
    let output = ViewMut::strided(&mut memory[BORDER..][..tokens * DIM + 32], 1, gap);
    context.apply(&step, (View::bshd(input, 1), output), ()).unwrap();
    assert_eq!(memory[..BORDER], before[..BORDER], "{what}: before the slice");
    let between = BORDER + DIM..BORDER + DIM + 32;
    assert_eq!(memory[between.clone()], before[between], "{what}: between the heads");
    let end = BORDER + 2 * DIM + 32;
    assert_eq!(memory[end..], before[end..], "{what}: behind the slice");
}

/// The sections of `axes` axes, which add up to the pairs.
fn sections(axes: usize) -> Vec<usize> {
    let mut sections = vec![DIM / 2 / axes; axes];
    sections[0] += DIM / 2 % axes;
    sections
}

#[test]
fn no_axes_or_tables_lead_outside() {
    let mut built = 0;
    for axes in 1..=8 {
        for pairing in PAIRINGS {
            let base = || Config::new(DIM, 1e4, pairing);
            let tables = [
                ("none", base()),
                ("freq_factors", base().with_freq_factors(vec![1.5; DIM / 2])),
                ("inv_freq", Config::from_inv_freq(DIM, pairing, vec![0.5; DIM / 2])),
            ];
            for (name, config) in tables {
                let what = format!("{axes} axes, {pairing:?}, {name}");
                let axis: Vec<u8> = (0..DIM / 2).map(|i| (i * axes / (DIM / 2)) as u8).collect();
                let cases = [
                    config.clone().with_mrope(&sections(axes), false),
                    config.clone().with_mrope(&sections(axes), true),
                    config.clone().with_mrope(&[DIM / 2, 0, 0, 0], false).with_pair_axis(axes, []),
                    config.clone().with_mrope(&[8; 4], false).with_pair_axis(axes, axis.clone()),
                    config.clone().with_pair_axis(axes, axis.clone()).with_mrope(&[16; 2], false),
                    config.clone().with_pair_axis(axes, vec![0; DIM / 2]),
                ];
                for context in cases.iter().filter_map(|config| config.build().ok()) {
                    rotate_between_borders(&context, &what);
                    built += 1;
                }
            }
        }
    }
    assert!(built > 200, "{built}");
}

/// Tables of another length than the pairs are refused by that, before a byte behind them is read.
#[test]
fn short_tables_are_not_read() {
    let pairs = 512;
    let refused = |result: Result<Context>| {
        let Err(Error::InvalidArgument(message)) = result else { panic!("{result:?}") };
        assert!(message.contains("the length of the tables"), "{message}");
    };
    for len in [1, 2, pairs - 1, pairs + 1] {
        let base = || Config::new(2 * pairs, 1e4, Pairing::Halves);
        for axes in [2, 8] {
            refused(base().with_pair_axis(axes, vec![0; len]).build());
        }
        refused(base().with_freq_factors(vec![1.0; len]).build());
        refused(Config::from_inv_freq(2 * pairs, Pairing::Halves, vec![1.0; len]).build());
    }
}

#[test]
fn sections_and_pair_axis_replace_each_other() {
    let base = || Config::new(DIM, 1e4, Pairing::Halves);
    let axis: Vec<u8> = (0..DIM / 2).map(|i| (i % 5) as u8).collect();
    let by_axis = base().with_mrope(&[16, 8, 8], true).with_pair_axis(5, axis.clone());
    assert_eq!((by_axis.axes(), by_axis.pair_axis()), (5, &axis[..]));
    assert!(by_axis.mrope_section().is_empty() && !by_axis.mrope_interleaved());
    assert_eq!(by_axis.build().unwrap().axes(), 5);
    let by_section = by_axis.with_mrope(&[16, 8, 8], true);
    assert_eq!((by_section.axes(), by_section.mrope_section()), (3, vec![16, 8, 8]));
    assert!(by_section.pair_axis().is_empty() && by_section.mrope_interleaved());
    assert_eq!(by_section.build().unwrap().axes(), 3);
    let error = base().with_mrope(&[DIM / 2, 0, 0, 0], false).with_pair_axis(5, []).build();
    assert!(matches!(error, Err(Error::InvalidArgument(_))));
}

#[test]
fn results_in_new_memory_are_those_in_given_memory() {
    let (batch, tokens, heads) = (2, 5, 3);
    let step = Step::new(batch, tokens, Positions::Offset(9));
    let yarn =
        Config::new(DIM, 1e4, Pairing::Interleaved).with_rotary_dim(32).with_rotary_offset(16);
    for config in [yarn, Config::nope(DIM), Config::new(DIM, 1e4, Pairing::InterleavedToHalves)] {
        let rope = config.build().unwrap();
        let dim = rope.info(0).unwrap().rotary_dim;
        for (span, width) in [(false, DIM), (true, dim)] {
            let x: Vec<f32> = Random(8).vec(batch * tokens * heads * width);
            let view = || {
                let view = View::bhsd(&x, heads);
                if span { view.span() } else { view }
            };
            let mut want = vec![f32::NAN; x.len()];
            let output = ViewMut::sbhd(&mut want, heads);
            let output = if span { output.span() } else { output };
            rope.apply(&step, (view(), output), ()).unwrap();
            assert_eq!(rope.apply_to_vec(&step, view(), librope::Layout::Sbhd).unwrap(), want);
        }
    }
    let rope = Config::new(DIM, 1e4, Pairing::Halves).build().unwrap();
    let x = [1.0f32; DIM];
    let one = Strides::default();
    let many = View::strided(&x, 1 << 40, one);
    let error =
        rope.apply_to_vec(&Step::new(1, 1, Positions::Offset(0)), many, librope::Layout::Bshd);
    assert!(error.is_err());
    let strided = librope::Layout::Strided(one);
    let step = Step::new(1, 1, Positions::Offset(0));
    assert!(rope.apply_to_vec(&step, View::bshd(&x, 1), strided).is_err());
    let nothing = Step::new(1, 0, Positions::Offset(0));
    assert_eq!(
        rope.apply_to_vec(&nothing, View::<f32>::bshd(&[], 2), librope::Layout::Bshd),
        Ok(vec![])
    );
}
