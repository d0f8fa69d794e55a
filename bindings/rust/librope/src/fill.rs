//! Rows of cos and sin for an engine's own cache of them.

use std::ptr;

use librope_sys as sys;

use crate::context::Context;
use crate::error::{Result, check, invalid, named};
use crate::rows::CosSinMut;
use crate::size::length;
use crate::step::{Angles, Step};

impl Context {
    /// Writes the rows of cos and sin of the step's positions: to fill an engine's cache in its own
    /// layout, or once per step for all layers ([`Step::with_rows`]). Of the step its positions count,
    /// and neither its operation nor what calls read besides.
    ///
    /// ```
    /// use librope::{Config, CosSin, CosSinMut, Pairing, Positions, Step, ViewMut};
    ///
    /// let rope = Config::new(128, 500_000.0, Pairing::Halves).build()?;
    /// let mut rows = vec![0.0f32; 128];
    /// rope.fill_cos_sin(&Step::new(1, 1, Positions::Offset(12345)), CosSinMut::packed(&mut rows))?;
    ///
    /// let step = Step::with_rows(1, 1, CosSin::packed(&rows));
    /// for _layer in 0..32 {
    ///     let mut q = vec![1.0f32; 8 * 128];
    ///     rope.apply(&step, ViewMut::bshd(&mut q, 8), ())?;
    /// }
    /// # Ok::<(), librope::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the step has rows instead of positions, or these or `out` do not
    /// fit. Nothing has been written then.
    #[allow(clippy::needless_pass_by_value, reason = "the slices are borrowed exclusively")]
    pub fn fill_cos_sin(&self, step: &Step<'_>, out: CosSinMut<'_>) -> Result<()> {
        named("Context::fill_cos_sin", || {
            if !self.takes_slices {
                return self.on_device();
            }
            let Angles::Positions(positions) = &step.angles else {
                return invalid(format_args!("fill_cos_sin needs positions"));
            };
            let (batch, tokens) = (step.batch, step.tokens);
            // SAFETY: integers and pointers: zeros are valid.
            let mut raw: sys::rope_positions = unsafe { std::mem::zeroed() };
            let counts = [step.position_rows(), tokens, self.axes];
            positions.check(counts, step.cu_seqlens, step.freq_sets, &mut raw)?;
            raw.batch_repeat = length(step.batch_repeat)?;
            if let Some(shard) = &step.shard {
                raw.shard = shard.as_raw()?;
            }
            let out = out.check(batch, tokens, self.pairs)?;
            let (batch, tokens) = (length(batch)?, length(tokens)?);
            // SAFETY: ids and rows lie inside their slices, and `out` is exclusive.
            check(unsafe {
                sys::rope_cos_sin_fill(
                    self.as_raw(),
                    batch,
                    tokens,
                    &raw const raw,
                    &raw const out,
                    ptr::null_mut(),
                )
            })
        })
    }
}
