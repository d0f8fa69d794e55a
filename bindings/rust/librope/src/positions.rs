use librope_sys as sys;

use crate::error::{Result, invalid};
use crate::size::{not_negative, product, reach};

/// An array of ids. Slices convert into it: `Positions::tokens(&ids)`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Ids<'a> {
    /// 32-bit ids.
    I32(&'a [i32]),
    /// 64-bit ids.
    I64(&'a [i64]),
    /// Float coordinates (vision).
    F32(&'a [f32]),
}

/// One length per sequence.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Offsets<'a> {
    /// 32-bit lengths.
    I32(&'a [i32]),
    /// 64-bit lengths.
    I64(&'a [i64]),
}

macro_rules! arrays {
    ($($name:ident $variant:ident $type:ty),*) => {$(
        impl<'a> From<&'a [$type]> for $name<'a> {
            #[inline]
            fn from(array: &'a [$type]) -> Self {
                $name::$variant(array)
            }
        }

        impl<'a> From<&'a Vec<$type>> for $name<'a> {
            #[inline]
            fn from(array: &'a Vec<$type>) -> Self {
                $name::$variant(array)
            }
        }

        impl<'a, const N: usize> From<&'a [$type; N]> for $name<'a> {
            #[inline]
            fn from(array: &'a [$type; N]) -> Self {
                $name::$variant(array)
            }
        }
    )*};
}
arrays!(Ids I32 i32, Ids I64 i64, Ids F32 f32, Offsets I32 i32, Offsets I64 i64);
pub(crate) use arrays;

/// Where the positions of tokens come from. Variants without axes use one id for all axes (text).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
#[must_use]
pub enum Positions<'a> {
    /// Token `i` of every sequence is at this offset plus `i`.
    Offset(i64),
    /// Token `i` of sequence `s` is at `offsets[s] + i`: what is cached before this step. Sequences
    /// are the batch rows, or the runs of [`Step::with_cu_seqlens`](crate::Step::with_cu_seqlens).
    SeqOffsets(Offsets<'a>),
    /// Every token is at this one position. With [`Operation::Shift`](crate::Operation::Shift) it is the
    /// distance that all of them move.
    Same(i64),
    /// `ids[tokens]`, the same for all batch rows.
    Tokens(Ids<'a>),
    /// `ids[batch, tokens]`: `position_ids`.
    BatchTokens(Ids<'a>),
    /// `ids[axes, batch, tokens]`: `position_ids` of mrope.
    AxesBatchTokens(Ids<'a>),
    /// `ids[batch, tokens, axes]`: coordinates of patches.
    BatchTokensAxes(Ids<'a>),
    /// Strides of one's own; 0 repeats.
    Strided {
        /// The array.
        ids: Ids<'a>,
        /// From one axis to the next.
        axis: usize,
        /// From one batch row to the next.
        batch: usize,
        /// From one token to the next.
        token: usize,
    },
}

impl<'a> Positions<'a> {
    /// [`Positions::SeqOffsets`] of any array.
    #[inline]
    pub fn seq_offsets(offsets: impl Into<Offsets<'a>>) -> Self {
        Positions::SeqOffsets(offsets.into())
    }

    /// [`Positions::Tokens`] of any array.
    #[inline]
    pub fn tokens(ids: impl Into<Ids<'a>>) -> Self {
        Positions::Tokens(ids.into())
    }

    /// [`Positions::BatchTokens`] of any array.
    #[inline]
    pub fn batch_tokens(ids: impl Into<Ids<'a>>) -> Self {
        Positions::BatchTokens(ids.into())
    }

    /// [`Positions::AxesBatchTokens`] of any array.
    #[inline]
    pub fn axes_batch_tokens(ids: impl Into<Ids<'a>>) -> Self {
        Positions::AxesBatchTokens(ids.into())
    }

    /// [`Positions::BatchTokensAxes`] of any array.
    #[inline]
    pub fn batch_tokens_axes(ids: impl Into<Ids<'a>>) -> Self {
        Positions::BatchTokensAxes(ids.into())
    }

    /// Whether each token is one further than the one before it.
    #[inline]
    pub(crate) fn moves_on(&self) -> bool {
        matches!(self, Positions::Offset(_) | Positions::SeqOffsets(_))
    }

    /// Fills the zeroed C struct, after checking that every id lies inside its slice. The struct points
    /// to `self`, too.
    #[inline(always)]
    pub(crate) fn check(
        &self,
        [batch, tokens, axes]: [usize; 3],
        cu_seqlens: Option<&[i32]>,
        freq_sets: Option<&[i32]>,
        raw: &mut sys::rope_positions,
    ) -> Result<()> {
        let mut sequences = batch;
        if let Some(cu) = cu_seqlens {
            // The library reads sequences + 1 entries, and checks their values.
            let Some(n) = cu.len().checked_sub(1).and_then(|n| i32::try_from(n).ok()) else {
                return invalid(format_args!(
                    "cu_seqlens ({} entries) must have one entry more than sequences",
                    cu.len()
                ));
            };
            raw.cu_seqlens = cu.as_ptr();
            raw.sequences = n;
            sequences = n as usize;
        }
        if let Some(sets) = freq_sets {
            expect("freq_sets", sets.len(), Some(sequences))?;
            raw.freq_sets = sets.as_ptr();
        }
        let (kind, ids, want) = match *self {
            Positions::Offset(offset) => {
                raw.kind = sys::ROPE_POSITIONS_OFFSET;
                raw.offset = offset;
                return Ok(());
            }
            Positions::SeqOffsets(offsets) => {
                let len = match offsets {
                    Offsets::I32(array) => {
                        raw.offsets_i32 = array.as_ptr();
                        array.len()
                    }
                    Offsets::I64(array) => {
                        raw.offsets_i64 = array.as_ptr();
                        array.len()
                    }
                };
                raw.kind = sys::ROPE_POSITIONS_SEQ_OFFSETS;
                expect("the array of offsets", len, Some(sequences))?;
                return Ok(());
            }
            Positions::Same(ref id) => {
                raw.kind = sys::ROPE_POSITIONS_IDS_STRIDED; // with strides 0
                raw.ids_i64 = id;
                return Ok(());
            }
            Positions::Tokens(ids) => (sys::ROPE_POSITIONS_IDS_T, ids, Some(tokens)),
            Positions::BatchTokens(ids) => {
                (sys::ROPE_POSITIONS_IDS_BT, ids, product([batch, tokens]))
            }
            Positions::AxesBatchTokens(ids) => {
                (sys::ROPE_POSITIONS_IDS_ABT, ids, product([axes, batch, tokens]))
            }
            Positions::BatchTokensAxes(ids) => {
                (sys::ROPE_POSITIONS_IDS_BTA, ids, product([batch, tokens, axes]))
            }
            Positions::Strided { ids, axis, batch: b, token } => {
                raw.stride_axis = axis as i64;
                raw.stride_batch = b as i64;
                raw.stride_token = token as i64;
                not_negative([axis, b, token])?;
                let reach = reach([axis, b, token], [axes, batch, tokens], 1);
                let len = ids.len();
                if batch > 0 && tokens > 0 && reach.is_none_or(|reach| reach > len) {
                    let need =
                        reach.map_or("more than there can be".into(), |need| need.to_string());
                    return invalid(format_args!(
                        "the ids need {need} entries by their strides (axis {axis}, batch {b}, token \
                         {token}), and their slice has {len}"
                    ));
                }
                (sys::ROPE_POSITIONS_IDS_STRIDED, ids, Some(len))
            }
        };
        expect("the array of ids", ids.len(), want)?;
        raw.kind = kind;
        match ids {
            Ids::I32(array) => raw.ids_i32 = array.as_ptr(),
            Ids::I64(array) => raw.ids_i64 = array.as_ptr(),
            Ids::F32(array) => raw.ids_f32 = array.as_ptr(),
        }
        Ok(())
    }
}

impl Ids<'_> {
    #[inline]
    fn len(&self) -> usize {
        match self {
            Ids::I32(array) => array.len(),
            Ids::I64(array) => array.len(),
            Ids::F32(array) => array.len(),
        }
    }
}

#[inline]
pub(crate) fn expect(name: &str, len: usize, want: Option<usize>) -> Result<()> {
    if Some(len) == want { Ok(()) } else { unexpected(name, len, want) }
}

#[cold]
#[inline(never)]
fn unexpected(name: &str, len: usize, want: Option<usize>) -> Result<()> {
    match want {
        Some(want) => {
            let entries = if len == 1 { "entry" } else { "entries" };
            invalid(format_args!("{name} has {len} {entries}, and the call needs {want}"))
        }
        None => invalid(format_args!("the call's sizes are beyond the address space")),
    }
}
