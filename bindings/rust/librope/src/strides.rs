//! How tensors and arrays of scales lie.

use crate::size;

/// Distances in elements, of [`Q80`](crate::Q80) in channels, between batch rows, tokens and heads; in a
/// cache, between pages, slots and heads. Channels of a head are adjacent. These three are all there are,
/// now and later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Strides {
    /// From one batch row, or page, to the next.
    pub batch: usize,
    /// From one token, or slot, to the next.
    pub token: usize,
    /// From one head to the next; 0 in an input repeats one head for all.
    pub head: usize,
}

impl Strides {
    /// One more than the largest offset touched; `None` if it does not fit.
    #[inline]
    pub(crate) fn reach(&self, [batch, tokens, heads]: [usize; 3], dim: usize) -> Option<usize> {
        size::reach([self.batch, self.token, self.head], [batch, tokens, heads], dim)
    }
}

/// What messages call the counts of a tensor of this name.
pub(crate) fn counted(name: &str) -> [&'static str; 2] {
    if name.starts_with("the cache's") { ["pages", "page size"] } else { ["batch", "tokens"] }
}
