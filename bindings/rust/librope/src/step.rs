use crate::enums::Operation;
use crate::error::{Result, invalid, unsupported};
use crate::norm::Norms;
use crate::positions::Positions;
use crate::rows::CosSin;
use crate::runner::Runner;
use crate::shard::Shard;
use crate::slots::Slots;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Angles<'a> {
    Positions(Positions<'a>),
    Rows(CosSin<'a>),
}

/// What belongs to one step of the program and is the same for all its layers: sizes, positions, the
/// operation, the slots of a cache, the threads.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Step<'a> {
    pub(crate) batch: usize,
    pub(crate) tokens: usize,
    pub(crate) angles: Angles<'a>,
    pub(crate) operation: Option<Operation>,
    pub(crate) cu_seqlens: Option<&'a [i32]>,
    pub(crate) freq_sets: Option<&'a [i32]>,
    pub(crate) batch_repeat: usize,
    pub(crate) shard: Option<Shard>,
    pub(crate) slots: Option<Slots<'a>>,
    pub(crate) source: Option<Slots<'a>>,
    pub(crate) from: Option<Positions<'a>>,
    pub(crate) from_freq_sets: Option<&'a [i32]>,
    pub(crate) norms: Option<&'a Norms<'a>>,
    pub(crate) runner: Option<Runner<'a>>,
}

impl<'a> Step<'a> {
    /// `tokens` is of each batch row; batch is 1 for packed sequences. With 0 of either, a call does
    /// nothing; a move with batch 0 is refused, and so are gradients of weights with 0 of either, as no token
    /// would write them.
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
        Step {
            batch,
            tokens,
            angles,
            operation: None,
            cu_seqlens: None,
            freq_sets: None,
            batch_repeat: 1,
            shard: None,
            slots: None,
            source: None,
            from: None,
            from_freq_sets: None,
            norms: None,
            runner: None,
        }
    }

    /// Sets what the call does: [`Operation::Forward`] unless it is set, which moves in a cache need.
    ///
    /// With [`Operation::Shift`] positions are distances: [`Positions::Same`] for all tokens,
    /// [`Positions::Tokens`] and its kind for each; [`Positions::Offset`] and
    /// [`Positions::SeqOffsets`], which would move token `i` by `offset + i`, are an error. It needs
    /// [`Angle::Exact`](crate::Angle::Exact), and 16-bit keys keep their norm best with
    /// [`Rounding::Float32`](crate::Rounding::Float32).
    ///
    /// ```
    /// use librope::{Angle, Config, Operation, Pairing, Positions, Step, ViewMut};
    ///
    /// let rope = Config::new(64, 10000.0, Pairing::Halves).with_angle(Angle::Exact).build()?;
    /// let (tokens, k_heads) = (100, 2);
    /// let mut cached = vec![1.0f32; tokens * k_heads * 64]; // keys 1000 to 1099 become 0 to 99
    /// let shift = Step::new(1, tokens, Positions::Same(-1000)).with_operation(Operation::Shift);
    /// rope.apply(&shift, (), ViewMut::bshd(&mut cached, k_heads))?;
    /// # Ok::<(), librope::Error>(())
    /// ```
    #[inline]
    pub fn with_operation(mut self, operation: Operation) -> Step<'a> {
        self.operation = Some(operation);
        self
    }

    /// [`Operation::Rerotate`]: keys that are rotated move from these positions to those of the step. They
    /// follow the same rules, and need not be of the same kind.
    ///
    /// ```
    /// use librope::{Config, Pairing, Positions, Step, ViewMut};
    ///
    /// let rope = Config::new(64, 10000.0, Pairing::Halves).build()?;
    /// let (tokens, k_heads) = (100, 2);
    /// let mut cached = vec![1.0f32; tokens * k_heads * 64]; // keys 1000 to 1099 become 0 to 99
    /// let step = Step::new(1, tokens, Positions::Offset(0)).rerotating(Positions::Offset(1000));
    /// rope.apply(&step, (), ViewMut::bshd(&mut cached, k_heads))?;
    /// # Ok::<(), librope::Error>(())
    /// ```
    #[inline]
    pub fn rerotating(mut self, from: Positions<'a>) -> Step<'a> {
        self.operation = Some(Operation::Rerotate);
        self.from = Some(from);
        self
    }

    /// The frequency set of every sequence before the move, with [`rerotating`](Step::rerotating) alone.
    /// Without it they stay in those of [`with_freq_sets`](Step::with_freq_sets).
    #[inline]
    pub fn from_freq_sets(mut self, freq_sets: &'a [i32]) -> Step<'a> {
        self.from_freq_sets = Some(freq_sets);
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

    /// So many batch rows, one after the other, share their positions (ids, offset and frequency set), of
    /// which there are those of `batch / count` rows: for the groups of a grouped QKV `[tokens, batch,
    /// groups, q + 2, head_dim]`, each of which is a batch row. With `cu_seqlens` it is the batch.
    #[inline]
    pub fn with_batch_repeat(mut self, count: usize) -> Step<'a> {
        self.batch_repeat = count;
        self
    }

    /// The tokens are those that one of several ranks has. With [`Positions::Offset`] and
    /// [`Positions::SeqOffsets`].
    #[inline]
    pub fn with_shard(mut self, shard: Shard) -> Step<'a> {
        self.shard = Some(shard);
        self
    }

    /// Where in a cache the tokens go: for [`append`](crate::Context::append), its prepared form, and
    /// [`move_slots`](crate::Context::move_slots), which need it and are the only calls that take it.
    #[inline]
    pub fn with_slots(mut self, slots: Slots<'a>) -> Step<'a> {
        self.slots = Some(slots);
        self
    }

    /// Where in a cache the tokens are read, for [`move_slots`](crate::Context::move_slots). Without it
    /// they are read where they go.
    #[inline]
    pub fn with_source(mut self, source: Slots<'a>) -> Step<'a> {
        self.source = Some(source);
        self
    }

    /// Norms q and k, and v on its way into a cache, in the same pass: with the norms of the layer whose
    /// call is next, unlike all else that a step has. A context of [`Config::nope`](crate::Config::nope)
    /// norms and does not rotate. For [`Operation::Forward`], and with
    /// [`Call::with_gradients`](crate::Call::with_gradients) for [`Operation::Backward`].
    #[inline]
    pub fn with_norms(mut self, norms: &'a Norms<'a>) -> Step<'a> {
        self.norms = Some(norms);
        self
    }

    /// Lends threads to long calls.
    #[inline]
    pub fn with_runner(mut self, runner: Runner<'a>) -> Step<'a> {
        self.runner = Some(runner);
        self
    }

    #[inline(always)]
    pub(crate) fn operation(&self) -> Operation {
        self.operation.unwrap_or_default()
    }

    /// The batch rows that positions have. A number that does not divide is refused by the library.
    #[inline(always)]
    pub(crate) fn position_rows(&self) -> usize {
        if self.batch_repeat > 1 { self.batch / self.batch_repeat } else { self.batch }
    }

    /// Those that positions have: batch rows, or the runs of `cu_seqlens`.
    pub(crate) fn sequences(&self) -> usize {
        self.cu_seqlens.map_or(self.batch, |cu| cu.len().saturating_sub(1))
    }

    /// Refuses what only a move has, where calls are prepared.
    pub(crate) fn is_no_move(&self) -> Result<()> {
        if self.source.is_none() {
            return Ok(());
        }
        unsupported(format_args!(
            "moves are not prepared: Step::with_source is for move_slots and move_between"
        ))
    }

    /// That a call has not what it needs, or would not look at all that the step has.
    #[cold]
    #[inline(never)]
    pub(crate) fn misplaced<T>(&self) -> Result<T> {
        if self.slots.is_some() || self.source.is_some() {
            return invalid(format_args!(
                "this step has slots of a cache, for append and move_slots: other calls take none"
            ));
        }
        if self.norms.is_some() {
            return invalid(format_args!(
                "this step has norms: prepare_call prepares calls with them"
            ));
        }
        invalid(format_args!("this call needs the slots of the tokens: Step::with_slots"))
    }
}
