//! Random multimodal prompts.

use librope::{PromptPart, prompt_ids};

use crate::Counts;
use crate::random::Random;

fn side(random: &mut Random) -> i32 {
    match random.below(24) {
        0 => random.pick(&[-1, i32::MIN, i32::MAX, 1 << 20]),
        _ => random.below(12) as i32,
    }
}

pub fn case(random: &mut Random, counts: &mut Counts) {
    let runs: Vec<PromptPart> = (0..random.below(6))
        .map(|_| PromptPart {
            text: match random.below(24) {
                0 => random.pick(&[-1, i64::MIN, i64::MAX]),
                _ => random.below(20) as i64,
            },
            t: side(random),
            h: side(random),
            w: side(random),
            t_interval: if random.one_in(3) { side(random) } else { 0 },
        })
        .collect();
    // What fits into memory is really made: keep to a few million ids.
    let tokens = runs.iter().try_fold(0i64, |all, run| {
        let visual = i64::from(run.t).checked_mul(run.h.into())?.checked_mul(run.w.into())?;
        all.checked_add(run.text.checked_add(visual)?)
    });
    if tokens.is_some_and(|tokens| (1 << 22..1 << 42).contains(&tokens)) {
        return;
    }
    let result = prompt_ids(&runs, random.position());
    if let Ok((ids, _)) = &result {
        assert_eq!(Some(ids.len() as i64), tokens.map(|tokens| 3 * tokens));
    }
    counts.count("prompt_ids", &result);
}
