//! How tensors and arrays of scales lie.

use crate::error::{Result, invalid};
use crate::size;

/// Order of the dimensions, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// Contiguous `[batch, tokens, heads, channels]`; with batch 1 also `[tokens, heads, channels]`.
    Bshd,
    /// Contiguous `[batch, heads, tokens, channels]`.
    Bhsd,
    /// Contiguous `[tokens, batch, heads, channels]`.
    Sbhd,
    /// Of a cache: contiguous `[pages, page_size, heads, channels]`.
    Nhd,
    /// Of a cache: contiguous `[pages, heads, page_size, channels]`.
    Hnd,
    /// Strides of one's own.
    Strided(Strides),
}

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
    if is_of_cache(name) { ["pages", "page size"] } else { ["batch", "tokens"] }
}

/// The scales of the memory of a cache are, too.
fn is_of_cache(name: &str) -> bool {
    name.ends_with("the cache's k") || name.ends_with("the cache's v")
}

/// That a count was forgotten, if it is why something does not have the size that was described.
pub(crate) fn not_forgotten(name: &str, [outer, inner]: [usize; 2]) -> Result<()> {
    if !is_of_cache(name) {
        return if outer == 0 && inner > 0 { no_batch() } else { Ok(()) };
    }
    match (outer, inner) {
        (0, _) => invalid(format_args!("the cache's pages (0) is required, and must be positive")),
        (_, 0) => invalid(format_args!(
            "the cache's page size (0) is required, and must be from 1 to 1073741824"
        )),
        _ => Ok(()),
    }
}

pub(crate) fn no_batch<T>() -> Result<T> {
    invalid(format_args!(
        "batch (0) is required: 1 for packed sequences and for one sequence, 0 only with empty tensors"
    ))
}
