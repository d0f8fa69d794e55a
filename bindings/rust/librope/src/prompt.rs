use librope_sys as sys;

use crate::error::{Result, check, invalid, named, require_library};

/// Text, then at most one image or video, as a prompt of a multimodal model holds them. The fields are
/// those of the C struct, which is frozen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct PromptPart {
    /// Tokens of text.
    pub text: i64,
    /// Frames of visual tokens after merging; 0: there are none.
    pub t: i32,
    /// Their rows.
    pub h: i32,
    /// Their columns.
    pub w: i32,
    /// Ids from one frame to the next; 0: 1.
    pub t_interval: i32,
}

impl PromptPart {
    /// Text alone.
    pub fn text(tokens: i64) -> PromptPart {
        PromptPart { text: tokens, ..PromptPart::default() }
    }

    fn tokens(&self) -> Option<i64> {
        let visual = i64::from(self.t).checked_mul(self.h.into())?.checked_mul(self.w.into())?;
        self.text.checked_add(visual)
    }
}

/// The ids of a multimodal prompt (`get_rope_index` of Qwen-VL and relatives), beginning at `start`:
/// `ids[3, tokens]` for [`Positions::AxesBatchTokens`](crate::Positions::AxesBatchTokens), and the id
/// of the token after them, where decoding continues.
///
/// ```
/// use librope::{PromptPart, prompt_ids};
///
/// let image = PromptPart { text: 1, t: 1, h: 4, w: 3, ..PromptPart::default() };
/// let (ids, next) = prompt_ids(&[image, PromptPart::text(1)], 0)?;
/// assert_eq!(ids.len(), 3 * 14);
/// assert_eq!(next, 6);
/// # Ok::<(), librope::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for parts that break a rule, and
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
pub fn prompt_ids(parts: &[PromptPart], start: i64) -> Result<(Vec<i64>, i64)> {
    named("prompt_ids", || ids_of(parts, None, start))
}

/// [`prompt_ids`] for videos whose frames are not a whole number of ids apart (Qwen2.5-VL:
/// `tokens_per_second * second_per_grid_t`): `t_intervals` has that number of every part, or 0 where its
/// own counts. Each frame's id is rounded down, as transformers does in f32.
///
/// ```
/// use librope::{PromptPart, prompt_ids_timed};
///
/// let video = PromptPart { t: 4, h: 1, w: 1, ..PromptPart::default() };
/// let (ids, next) = prompt_ids_timed(&[video], &[1.4], 0)?;
/// assert_eq!(ids[..4], [0, 1, 2, 4]);
/// assert_eq!(next, 5);
/// # Ok::<(), librope::Error>(())
/// ```
///
/// # Errors
/// Those of [`prompt_ids`]; as many numbers as parts are needed, none of them negative.
pub fn prompt_ids_timed(
    parts: &[PromptPart],
    t_intervals: &[f64],
    start: i64,
) -> Result<(Vec<i64>, i64)> {
    named("prompt_ids_timed", || {
        if t_intervals.len() != parts.len() {
            return invalid(format_args!(
                "t_intervals has {} numbers, and must have one for each of {} parts",
                t_intervals.len(),
                parts.len()
            ));
        }
        ids_of(parts, Some(t_intervals), start)
    })
}

fn ids_of(
    parts: &[PromptPart],
    t_intervals: Option<&[f64]>,
    start: i64,
) -> Result<(Vec<i64>, i64)> {
    require_library()?;
    let raw: Vec<sys::rope_prompt_part> = parts
        .iter()
        .map(|r| sys::rope_prompt_part {
            text: r.text,
            t: r.t,
            h: r.h,
            w: r.w,
            t_interval: r.t_interval,
        })
        .collect();
    let tokens = parts.iter().try_fold(0i64, |all, part| all.checked_add(part.tokens()?));
    let ids = tokens.and_then(|n| usize::try_from(n).ok()?.checked_mul(3));
    let (Some(tokens), Some(length), Ok(count)) = (tokens, ids, i32::try_from(raw.len())) else {
        return invalid(format_args!("parts have no possible number of tokens"));
    };
    let mut ids = Vec::new();
    if ids.try_reserve_exact(length).is_err() {
        return Err(crate::Error::OutOfMemory(format!("librope: no memory for {length} ids")));
    }
    ids.resize(length, 0);
    let mut next = 0;
    let (raw, ids_at) = (raw.as_ptr(), ids.as_mut_ptr());
    // SAFETY: `count` parts, and as many intervals; `ids` has 3 * tokens entries; `next` is writable.
    check(unsafe {
        match t_intervals {
            None => sys::rope_prompt_ids(raw, count, start, ids_at, tokens, &raw mut next),
            Some(apart) => sys::rope_prompt_ids_timed(
                raw,
                apart.as_ptr(),
                count,
                start,
                ids_at,
                tokens,
                &raw mut next,
            ),
        }
    })?;
    Ok((ids, next))
}
