//! What calls with norms have beside those without: apart, so that these do not pay for them.

use librope_sys::{self as sys, Init as _};

use crate::context::Context;
use crate::error::Result;
use crate::size::product;
use crate::step::Step;
use crate::tensor::Raw;

impl Context {
    /// # Safety
    /// This call may read and write the tensors, which may only alias where the library refuses it.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn apply_normed(
        &self,
        step: &Step<'_>,
        tensors: [&Option<Raw>; 4],
    ) -> Result<()> {
        if step.slots.is_some() || step.source.is_some() {
            return step.misplaced();
        }
        let mut fused = sys::rope_fused::init();
        let mut norms = [sys::rope_norm::init(); 3];
        self.set_norms(step, [tensors[0], tensors[1], &None], 0, &mut norms, &mut fused)?;
        self.with_args(step, tensors, &raw const fused, |args| {
            // SAFETY: as this function's.
            unsafe { sys::rope_apply_qk(self.as_raw(), args) }
        })
    }

    /// Fills the norms of the step, if it has any, for q, k and v.
    pub(crate) fn set_norms(
        &self,
        step: &Step<'_>,
        [q, k, v]: [&Option<Raw>; 3],
        v_dim: usize,
        norms: &mut [sys::rope_norm; 3],
        fused: &mut sys::rope_fused,
    ) -> Result<()> {
        let Some(given) = step.norms else { return Ok(()) };
        let dim = |raw: &Raw| if raw.span { self.span_dim } else { self.head_dim() };
        let turned = |raw: &Option<Raw>| raw.as_ref().map(|raw| [raw.heads, dim(raw)]);
        let values = v.as_ref().map(|raw| [raw.heads, v_dim]);
        let tokens = product([step.batch, step.tokens]);
        given.check([turned(q), turned(k), values], tokens, norms, fused)
    }
}
