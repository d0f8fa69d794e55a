//! Where in a cache the tokens of a step go.

use librope_sys as sys;

use crate::error::{Result, invalid};
use crate::positions::{arrays, expect};
use crate::size::product;

/// The numbers of slots: slot `page * page_size + n` is slot `n` of a page. Slices convert into it:
/// `Slots::mapped(&slots)`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum SlotNumbers<'a> {
    /// 32-bit numbers.
    I32(&'a [i32]),
    /// 64-bit numbers.
    I64(&'a [i64]),
}
arrays!(SlotNumbers I32 i32, SlotNumbers I64 i64);

/// How the slot of each token in a [`KvCache`](crate::KvCache) is found. The same for all layers of a
/// step, so it belongs to the [`Step`](crate::Step).
///
/// The sequences are those of the positions: batch rows, or the runs of
/// [`Step::with_cu_seqlens`](crate::Step::with_cu_seqlens); token `i` of one is counted from 0 in this
/// call. `starts` are the slots of each sequence that were filled before, whatever the position ids are.
///
/// A slot or page that does not exist is an error, and nothing is written then; a negative one means
/// nowhere: the token is stored in no slot, and written to outputs like any other. If two tokens have
/// the same slot, its contents are unspecified, and nothing else is: such a call does not use the threads of
/// [`Step::with_runner`](crate::Step::with_runner).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
#[must_use]
pub enum Slots<'a> {
    /// Each token has a number, `[batch, tokens]`: `slot_mapping`. Numbers behind those of all tokens
    /// are left; fewer are an error: padding has -1.
    Mapped(SlotNumbers<'a>),
    /// Page tables `[sequences, width]`: token `i` of sequence `s` goes to index `n = starts[s] + i` of
    /// the pages that row `s` lists, to slot `n % page_size` of the page in entry `n / page_size`.
    Paged {
        /// Numbers of pages. Only entries that a token needs are read.
        table: &'a [i32],
        /// Entries of each row.
        width: usize,
        /// One for each sequence.
        starts: &'a [i32],
    },
    /// The same with rows of different lengths: row `s` are the entries `page_starts[s]` to
    /// `page_starts[s + 1] - 1`.
    Ragged {
        /// Numbers of pages, row behind row.
        table: &'a [i32],
        /// One more than there are sequences; never decreasing.
        page_starts: &'a [i32],
        /// One for each sequence.
        starts: &'a [i32],
    },
    /// Sequence `s` owns page `s`: token `i` goes to its slot `starts[s] + i`.
    Linear(&'a [i32]),
}

impl<'a> Slots<'a> {
    /// [`Slots::Mapped`] of any array.
    #[inline]
    pub fn mapped(slots: impl Into<SlotNumbers<'a>>) -> Self {
        Slots::Mapped(slots.into())
    }

    /// [`Slots::Paged`].
    #[inline]
    pub fn paged(table: &'a [i32], width: usize, starts: &'a [i32]) -> Self {
        Slots::Paged { table, width, starts }
    }

    /// [`Slots::Ragged`].
    #[inline]
    pub fn ragged(table: &'a [i32], page_starts: &'a [i32], starts: &'a [i32]) -> Self {
        Slots::Ragged { table, page_starts, starts }
    }

    /// [`Slots::Linear`].
    #[inline]
    pub fn linear(starts: &'a [i32]) -> Self {
        Slots::Linear(starts)
    }

    /// Fills the C struct, after checking that every number that it leads to lies inside its slice, and
    /// that all tokens (of all batch rows) have one.
    pub(crate) fn check(
        &self,
        sequences: usize,
        tokens: Option<usize>,
        raw: &mut sys::rope_kv_cache,
    ) -> Result<()> {
        let starts = match *self {
            Slots::Mapped(numbers) => {
                raw.kind = sys::ROPE_SLOTS_MAPPED;
                let len = match numbers {
                    SlotNumbers::I32(slots) => {
                        raw.slots_i32 = slots.as_ptr();
                        slots.len()
                    }
                    SlotNumbers::I64(slots) => {
                        raw.slots_i64 = slots.as_ptr();
                        slots.len()
                    }
                };
                // The library takes missing numbers for padding, and would lose the tokens.
                if tokens.is_none_or(|tokens| len < tokens) {
                    expect("the array of slots (padding has -1)", len, tokens)?;
                }
                raw.slots_length = len as i64; // of a slice of 4 bytes and more
                return Ok(());
            }
            Slots::Paged { table, width, starts } => {
                raw.kind = sys::ROPE_SLOTS_PAGED;
                raw.page_table = table.as_ptr();
                if width == 0 {
                    return invalid(format_args!("page tables need a width of 1 or more"));
                }
                expect("the page table", table.len(), product([sequences, width]))?;
                raw.page_table_stride = i64::try_from(width).unwrap_or(i64::MAX); // of no sequences
                starts
            }
            Slots::Ragged { table, page_starts, starts } => {
                raw.kind = sys::ROPE_SLOTS_PAGED;
                raw.page_table = table.as_ptr();
                raw.page_starts = page_starts.as_ptr();
                expect("page_starts", page_starts.len(), sequences.checked_add(1))?;
                // The library looks at a row before it looks at the next one's ends.
                let inside = |&at: &i32| usize::try_from(at).is_ok_and(|at| at <= table.len());
                if let Some(i) = page_starts.iter().position(|at| !inside(at)) {
                    return invalid(format_args!(
                        "page_starts[{i}] ({}) must be from 0 to the {} entries of the page table",
                        page_starts[i],
                        table.len()
                    ));
                }
                starts
            }
            Slots::Linear(starts) => {
                raw.kind = sys::ROPE_SLOTS_LINEAR;
                starts
            }
        };
        raw.starts = starts.as_ptr();
        expect("the array of starts", starts.len(), Some(sequences))
    }
}
