use librope_sys as sys;

use crate::positions::Positions;
use crate::rows::CosSin;
use crate::runner::Runner;

/// What a call does. With `R(p)` the rotation by position `p` and `a` the attention factor, these
/// are four different things unless `a` is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Operation {
    /// `a R(p) x`: rotates.
    #[default]
    Forward = sys::ROPE_FORWARD,
    /// `a R(-p) x`: the gradient of [`Forward`](Operation::Forward).
    Backward = sys::ROPE_BACKWARD,
    /// `1/a R(-p) x`: undoes [`Forward`](Operation::Forward).
    Inverse = sys::ROPE_INVERSE,
    /// `R(p) x`: moves rotated keys by `p`, negative too (context shift).
    Shift = sys::ROPE_SHIFT,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Angles<'a> {
    Positions(Positions<'a>),
    Rows(CosSin<'a>),
}

/// What belongs to one step of the program and is the same for all its layers: sizes, positions, the
/// operation, the threads.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Step<'a> {
    pub(crate) batch: usize,
    pub(crate) tokens: usize,
    pub(crate) angles: Angles<'a>,
    pub(crate) operation: Operation,
    pub(crate) cu_seqlens: Option<&'a [i32]>,
    pub(crate) freq_sets: Option<&'a [i32]>,
    pub(crate) runner: Option<Runner<'a>>,
}

impl<'a> Step<'a> {
    /// `tokens` is of each batch row; batch is 1 for packed sequences.
    #[inline]
    pub fn new(batch: usize, tokens: usize, positions: Positions<'a>) -> Step<'a> {
        Step::of(batch, tokens, Angles::Positions(positions))
    }

    /// Rotates by rows of cos and sin in place of positions. For [`Operation::Forward`] and
    /// [`Operation::Backward`].
    #[inline]
    pub fn with_rows(batch: usize, tokens: usize, rows: CosSin<'a>) -> Step<'a> {
        Step::of(batch, tokens, Angles::Rows(rows))
    }

    #[inline]
    fn of(batch: usize, tokens: usize, angles: Angles<'a>) -> Step<'a> {
        let operation = Operation::Forward;
        Step { batch, tokens, angles, operation, cu_seqlens: None, freq_sets: None, runner: None }
    }

    /// Sets what the call does.
    #[inline]
    pub fn with_operation(mut self, operation: Operation) -> Step<'a> {
        self.operation = operation;
        self
    }

    /// Packed sequences: sequence `s` is tokens `cu_seqlens[s]` to `cu_seqlens[s + 1] - 1`, from 0
    /// to all tokens, never decreasing.
    #[inline]
    pub fn with_cu_seqlens(mut self, cu_seqlens: &'a [i32]) -> Step<'a> {
        self.cu_seqlens = Some(cu_seqlens);
        self
    }

    /// The frequency set of every sequence, for contexts with several.
    #[inline]
    pub fn with_freq_sets(mut self, freq_sets: &'a [i32]) -> Step<'a> {
        self.freq_sets = Some(freq_sets);
        self
    }

    /// Lends threads to long calls.
    #[inline]
    pub fn with_runner(mut self, runner: Runner<'a>) -> Step<'a> {
        self.runner = Some(runner);
        self
    }
}
