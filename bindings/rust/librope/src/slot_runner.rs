//! The runner of a call that stores in slots. Two of its tokens may have one slot: on two threads they would be
//! written at the same time, which safe code must not do, so such a call runs on the thread that makes it.
//! The slots are looked at when the library asks for threads, so short calls do not pay for it.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, OnceLock};

use librope_sys as sys;

use crate::runner::Runner;
use crate::slots::{SlotNumbers, Slots};
use crate::step::Step;

#[derive(Debug)]
pub(crate) struct SlotRunner<'a> {
    runner: Runner<'a>,
    slots: Slots<'a>,
    page_size: usize,
    cu_seqlens: Option<&'a [i32]>,
    /// Of each batch row, where there are no `cu_seqlens`.
    tokens: usize,
    all_tokens: usize,
    repeat: OnceLock<bool>,
}

impl<'a> SlotRunner<'a> {
    /// Calls `body` with the step, whose runner, if it has one, takes care of its slots until then.
    pub(crate) fn around<T>(
        step: &Step<'a>,
        page_size: usize,
        body: impl FnOnce(&Step<'_>) -> T,
    ) -> T {
        match Self::of(step, page_size) {
            Some(careful) => body(&careful.lent_to(step)),
            None => body(step),
        }
    }

    /// The same of a prepared call, which keeps the result.
    pub(crate) fn kept<T>(
        step: &Step<'a>,
        page_size: usize,
        body: impl FnOnce(&Step<'_>) -> T,
    ) -> (T, Option<Arc<Self>>) {
        match Self::of(step, page_size).map(Arc::new) {
            Some(careful) => (body(&careful.lent_to(step)), Some(careful)),
            None => (body(step), None),
        }
    }

    fn of(step: &Step<'a>, page_size: usize) -> Option<Self> {
        let (runner, slots) = (step.runner?, step.slots?);
        let all_tokens = step.batch.saturating_mul(step.tokens); // refused where it wraps
        let (cu_seqlens, tokens) = (step.cu_seqlens, step.tokens);
        let repeat = OnceLock::new();
        Some(Self { runner, slots, page_size, cu_seqlens, tokens, all_tokens, repeat })
    }

    fn lent_to<'b>(&'b self, step: &Step<'b>) -> Step<'b> {
        let raw = sys::rope_runner {
            parallel_for: Some(call),
            pool: ptr::from_ref(self).cast_mut().cast(),
        };
        Step { runner: Some(Runner::of(raw)), ..*step }
    }

    /// Whether two tokens have one slot. The library has checked the slots.
    fn repeats(&self) -> bool {
        let mut runs = Vec::new();
        match self.slots {
            Slots::Mapped(SlotNumbers::I32(numbers)) => {
                return repeat(numbers.iter().take(self.all_tokens).map(|&n| i64::from(n)));
            }
            Slots::Mapped(SlotNumbers::I64(numbers)) => {
                return repeat(numbers.iter().take(self.all_tokens).copied());
            }
            Slots::Paged { table, width, starts } => {
                for (s, &start) in starts.iter().enumerate() {
                    self.add_pages(&mut runs, s, start, &table[s * width..][..width]);
                }
            }
            Slots::Ragged { table, page_starts, starts } => {
                for (s, &start) in starts.iter().enumerate() {
                    let row = page_starts[s] as usize..page_starts[s + 1] as usize;
                    self.add_pages(&mut runs, s, start, &table[row]);
                }
            }
            Slots::Linear(_) => {} // a page for each sequence
        }
        runs.retain(|&(first, _)| first >= 0); // others are nowhere
        runs.sort_unstable();
        runs.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0)
    }

    /// Adds the slots of a sequence as runs, one for each page.
    fn add_pages(&self, runs: &mut Vec<(i64, i64)>, sequence: usize, start: i32, row: &[i32]) {
        let count = match self.cu_seqlens {
            Some(cu) => (cu[sequence + 1] - cu[sequence]) as usize,
            None => self.tokens,
        };
        let (mut at, size) = (start as usize, self.page_size);
        let end = at + count;
        while at < end {
            let next = end.min((at / size + 1) * size);
            let page = i64::from(row[at / size]);
            let first = if page < 0 { -1 } else { page * size as i64 + (at % size) as i64 };
            runs.push((first, (next - at) as i64));
            at = next;
        }
    }
}

/// Whether a number comes twice; negative ones do not count. With a bit for each slot, of which a cache has a
/// limited number; sorted where they are far more than tokens.
fn repeat(numbers: impl Iterator<Item = i64> + Clone) -> bool {
    let (count, top) =
        numbers.clone().fold((0, 0), |(count, top): (u64, i64), n| (count + 1, top.max(n)));
    let numbers = numbers.filter_map(|n| u64::try_from(n).ok());
    if top as u64 > 64 * count + (1 << 20) {
        let mut sorted: Vec<u64> = numbers.collect();
        sorted.sort_unstable();
        return sorted.windows(2).any(|pair| pair[0] == pair[1]);
    }
    let mut bits = vec![0u64; (top / 64) as usize + 1];
    for n in numbers {
        let (word, bit) = (&mut bits[(n / 64) as usize], 1 << (n % 64));
        if *word & bit != 0 {
            return true;
        }
        *word |= bit;
    }
    false
}

/// The C callback.
unsafe extern "C" fn call(
    careful: *mut c_void,
    f: sys::rope_task_fn,
    task: *mut c_void,
    count: u32,
) -> i32 {
    // SAFETY: `lent_to` put it there, and it lives as long as the call that it was lent to.
    let careful = unsafe { &*careful.cast::<SlotRunner<'_>>() };
    let (Some(f), Some(threads)) = (f, careful.runner.raw.parallel_for) else { return 1 };
    if *careful.repeat.get_or_init(|| careful.repeats()) {
        // SAFETY: the library's own function and argument, with an index below `count`.
        (0..count).for_each(|i| unsafe { f(task, i) });
        return 0;
    }
    // SAFETY: the library's arguments, to a runner that lives as long.
    unsafe { threads(careful.runner.raw.pool, Some(f), task, count) }
}

#[cfg(test)]
mod tests {
    use super::repeat;

    /// Near numbers have bits, far ones are sorted.
    #[test]
    fn numbers_that_come_twice() {
        let both = |numbers: &[i64], want| {
            for far in [0, 1 << 40] {
                let numbers = numbers.iter().map(|&n| if n < 0 { n } else { n + far });
                assert_eq!(repeat(numbers), want, "{far}");
            }
        };
        both(&[], false);
        both(&[-1, -1, -7, i64::MIN, i64::MIN], false);
        both(&[0, 63, 64, -1, 127, 128, -1, 1], false);
        for twice in [0, 63, 64, 128] {
            both(&[twice, 0, 63, 64, 128], true);
            both(&[128, 64, -1, 63, 0, -1, twice], true);
        }
        // At the limit of both, and apart by a multiple of a word's bits.
        for top in [(1 << 20) + 128, (1 << 20) + 129, i64::MAX] {
            assert!(!repeat([top, top - 64].into_iter()));
            assert!(repeat([top, top].into_iter()));
        }
    }
}
